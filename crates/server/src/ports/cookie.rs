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

/// Ours is none of the sandbox's business.
pub(super) fn without_ours(headers: &mut HeaderMap) {
    let is_ours = |pair: &str| pair.trim().split('=').next() == Some(NAME);
    let kept: Vec<HeaderValue> = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| match value.to_str() {
            Ok(text) if text.split(';').any(is_ours) => {
                let pairs: Vec<&str> = text.split(';').filter(|pair| !is_ours(pair)).map(str::trim).collect();
                (!pairs.is_empty()).then(|| HeaderValue::from_str(&pairs.join("; ")).ok()).flatten()
            }
            _ => Some(value.clone()),
        })
        .collect();
    headers.remove(header::COOKIE);
    for value in kept {
        headers.append(header::COOKIE, value);
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
    let kept = parts.filter(|part| !attribute(part, "domain") && (door.way == Way::Host || !attribute(part, "path")));
    let mut cookie = kept.fold(pair.to_owned(), |cookie, part| cookie + "; " + part);
    if door.way == Way::Path {
        cookie = cookie + "; Path=" + &door.prefix();
    }
    HeaderValue::from_str(&cookie).ok()
}
