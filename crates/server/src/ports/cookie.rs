//! The cookie that stands for a link, and those that pages set.

use axum::http::{HeaderMap, HeaderValue, header};
use cabana_runtime::{Grant, Time};

use super::address::{Door, Way};

/// Of the cookie, and of the parameter of a link.
pub(super) const NAME: &str = "cabana_link";

/// What the client sends by this name: there may be several, since pages can set some too.
pub(super) fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().strip_prefix(NAME)?.strip_prefix('='))
}

/// Until the link ends, for this port alone; no script sees it.
pub(super) fn of_link(door: &Door, token: &str, grant: &Grant, now: Time, secure: bool) -> String {
    let left = grant.expires.duration_since(now).as_secs().max(0);
    let secure = if secure { "; Secure" } else { "" };
    format!("{NAME}={token}; Path={}; Max-Age={left}; HttpOnly; SameSite=Lax{secure}", door.prefix())
}

/// Ours is none of the sandbox's business. In HTTP/1.1 the rest is one header, however many it was.
pub(super) fn without_ours(headers: &mut HeaderMap) {
    let pairs = headers.get_all(header::COOKIE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    let is_ours = |pair: &[u8]| pair.split(|byte| *byte == b'=').next() == Some(NAME.as_bytes());
    let rest = pairs.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty() && !is_ours(pair));
    let rest = HeaderValue::from_bytes(&rest.collect::<Vec<_>>().join(&b"; "[..]));
    headers.remove(header::COOKIE);
    if let Ok(rest) = rest
        && !rest.is_empty()
    {
        headers.insert(header::COOKIE, rest);
    }
}

/// A cookie of a page is for its own port: of no other host, and of no other path where paths are what tells them apart.
pub(super) fn scoped(door: &Door, value: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = value.to_str().ok()?.split(';').map(str::trim);
    let pair = parts.next()?;
    if pair.split('=').next().map(str::trim) == Some(NAME) {
        return None;
    }
    let attribute = |part: &str, name| part.split('=').next().is_some_and(|it| it.trim().eq_ignore_ascii_case(name));
    let kept = parts.filter(|part| !attribute(part, "domain") && (door.way != Way::Path || !attribute(part, "path")));
    let mut cookie = kept.fold(pair.to_owned(), |cookie, part| cookie + "; " + part);
    if door.way == Way::Path {
        cookie = cookie + "; Path=" + &door.prefix();
    }
    HeaderValue::from_str(&cookie).ok()
}
