//! The cookie that stands for a link, and those that pages set.

use axum::http::{HeaderMap, HeaderValue, header};
use cabana_runtime::{Grant, Time};

use super::address::{Door, Way};

/// Of the cookie, and of the parameter of a link.
pub(super) const NAME: &str = "cabana_link";

/// So many of a request are tried as links: a browser has one for a host and a path, and pages may have set some beside it.
const MAX_TOKENS: usize = 8;

/// What the client sends by this name, as far as it is tried.
pub(super) fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|value| value.split(';'));
    pairs.filter_map(|pair| pair.trim().strip_prefix(NAME)?.strip_prefix('=')).take(MAX_TOKENS)
}

/// Until the link ends, for this port alone; no script sees it.
pub(super) fn of_link(door: &Door, token: &str, grant: &Grant, now: Time, secure: bool) -> String {
    let left = grant.expires.duration_since(now).as_secs().max(0);
    let secure = if secure { "; Secure" } else { "" };
    format!("{NAME}={token}; Path={}; Max-Age={left}; HttpOnly; SameSite=Lax{secure}", door.prefix())
}

/// By path a host has many programs behind it, whose cookies a browser sends to all of them. So those of a page have a name of their own there.
const OF_PAGE: &str = "cabana_page_";

/// So many an answer may set by path: a browser has room for some hundred of one host, and drops the oldest.
pub(super) const MOST_BY_PATH: usize = 20;

/// Of what the client sends, what the pages of this port have set. In HTTP/1.1 it is one header, however many it was.
pub(super) fn inwards(door: &Door, headers: &mut HeaderMap) {
    let pairs = headers.get_all(header::COOKIE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    let own = pairs.map(<[u8]>::trim_ascii).filter_map(|pair| own(door, pair)).filter(|pair| !pair.is_empty());
    let own = HeaderValue::from_bytes(&own.collect::<Vec<_>>().join(&b"; "[..]));
    headers.remove(header::COOKIE);
    if let Ok(own) = own
        && !own.is_empty()
    {
        headers.insert(header::COOKIE, own);
    }
}

/// As the page named it. The cookie of a link is none of its business.
fn own<'a>(door: &Door, pair: &'a [u8]) -> Option<&'a [u8]> {
    let pair = match door.way {
        Way::Path => pair.strip_prefix(OF_PAGE.as_bytes())?,
        Way::Host | Way::Header => pair,
    };
    (pair.split(|byte| *byte == b'=').next() != Some(NAME.as_bytes())).then_some(pair)
}

/// A cookie of a page is for its own port: of no other host, and of no other path where paths are what tells them apart.
pub(super) fn scoped(door: &Door, value: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = value.to_str().ok()?.split(';').map(str::trim);
    let pair = parts.next()?;
    if pair.split('=').next().map(str::trim) == Some(NAME) {
        return None;
    }
    let attribute = |part: &str, name| part.split('=').next().is_some_and(|it| it.trim().eq_ignore_ascii_case(name));
    let by_path = door.way == Way::Path;
    let kept = parts.filter(|part| !(attribute(part, "domain") || by_path && attribute(part, "path")));
    let named = if by_path { format!("{OF_PAGE}{pair}") } else { pair.to_owned() };
    let mut cookie = kept.fold(named, |cookie, part| cookie + "; " + part);
    if by_path {
        cookie = cookie + "; Path=" + &door.prefix();
    }
    HeaderValue::from_str(&cookie).ok()
}
