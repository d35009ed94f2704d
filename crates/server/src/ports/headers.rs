//! What of a request the sandbox sees, and what of its answer the client does.

use axum::http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode, Version,
    header::{self, CONNECTION, UPGRADE},
    request::Parts,
};

use super::{
    address::{Door, Way, authority, is_secure},
    cookie,
};
use crate::{App, auth, listen::Peer};

/// What is between two neighbours, and not for whoever is behind.
const BETWEEN: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    UPGRADE,
];

/// What reaches beyond a host of its own, too: other ports and protocols of it, and the cookies of the whole domain, which are those of
/// all other previews.
const BEYOND_THE_HOST: [&str; 3] = ["alt-svc", "clear-site-data", "strict-transport-security"];

/// What changes how a browser treats all of a host, and not one answer of it.
const OF_THE_HOST: [&str; 5] =
    ["nel", "origin-agent-cluster", "report-to", "reporting-endpoints", "service-worker-allowed"];

/// A page without an origin: it shares ours, and with it nothing that others keep there.
const NO_ORIGIN: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";

pub(super) fn is_websocket(parts: &Parts) -> bool {
    let has = |name, token: &str| {
        let values = parts.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|it| it.trim().eq_ignore_ascii_case(token))
    };
    parts.version == Version::HTTP_11 && has(CONNECTION, "upgrade") && has(UPGRADE, "websocket")
}

fn drop_between(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    for name in values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
        headers.remove(name.trim());
    }
    for name in BETWEEN {
        headers.remove(name);
    }
}

fn for_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Without what opens our own doors, and with where it came from.
pub(super) fn inwards(app: &App, door: &Door, parts: &Parts) -> HeaderMap {
    let mut headers = parts.headers.clone();
    drop_between(&mut headers);
    auth::without_own_key(&mut headers);
    cookie::inwards(door, &mut headers);
    let is_ours = |name: &&HeaderName| {
        let name = name.as_str();
        name.starts_with("cabana-")
            || name.starts_with("x-forwarded-")
            || matches!(name, "forwarded" | "expect")
            || door.opened_by.contains(&name)
    };
    let ours: Vec<HeaderName> = headers.keys().filter(is_ours).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
    let mut say = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    say("host", door.host.clone().unwrap_or_else(|| format!("localhost:{}", door.port)));
    say("x-forwarded-proto", if is_secure(app, &parts.headers) { "https" } else { "http" }.to_owned());
    if let Some(host) = authority(&parts.uri, &parts.headers) {
        say("x-forwarded-host", host.to_string());
    }
    if let Some(peer) = parts.extensions.get::<Peer>() {
        say("x-forwarded-for", peer.address.ip().to_string());
    }
    if door.way == Way::Path {
        say("x-forwarded-prefix", door.prefix().trim_end_matches('/').to_owned());
    }
    if is_websocket(parts) {
        for_websocket(&mut headers);
    }
    headers
}

/// Without what reaches beyond the port it comes from.
pub(super) fn outwards(door: &Door, headers: &mut HeaderMap, upgraded: bool) {
    drop_between(headers);
    if upgraded {
        for_websocket(headers);
    }
    let shares_ours = door.way != Way::Host;
    for name in BEYOND_THE_HOST.into_iter().chain(OF_THE_HOST.into_iter().filter(|_| shares_ours)) {
        headers.remove(name);
    }
    let most = if door.way == Way::Path { cookie::MOST_BY_PATH } else { usize::MAX };
    let cookies = headers.get_all(header::SET_COOKIE).iter().filter_map(|value| cookie::scoped(door, value));
    let cookies: Vec<HeaderValue> = cookies.take(most).collect();
    headers.remove(header::SET_COOKIE);
    for value in cookies {
        headers.append(header::SET_COOKIE, value);
    }
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    if let Some(location) = location.and_then(|location| led_back(door, location)) {
        headers.insert(header::LOCATION, location);
    }
    if door.way == Way::Header {
        // The same address is another page by other headers: nobody may keep it for all.
        if let Ok(named) = HeaderValue::try_from(door.opened_by.join(", ")) {
            headers.append(header::VARY, named);
        }
    }
    if shares_ours {
        headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(NO_ORIGIN));
    }
}

/// Without a length that is not the body's own, `length`, or of which there are several: clients of HTTP/2 take that for an error of ours.
pub(super) fn check_length(status: StatusCode, is_head: bool, length: Option<u64>, headers: &mut HeaderMap) {
    let told = plain_length(headers);
    let is_true = match status {
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::SWITCHING_PROTOCOLS => false,
        // It is that of a body that does not come.
        _ if is_head || status == StatusCode::NOT_MODIFIED => told.is_some(),
        _ => told.is_some() && told == length,
    };
    if !is_true {
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// Of one header, and nothing but digits.
fn plain_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?;
    value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok())?
}

/// What the sandbox takes for its own root is below the door.
fn led_back(door: &Door, location: &str) -> Option<HeaderValue> {
    let own = [format!("http://localhost:{}", door.port), format!("http://127.0.0.1:{}", door.port)];
    let path = own.iter().find_map(|own| location.strip_prefix(own.as_str())).unwrap_or(location);
    let below = path.strip_prefix('/').filter(|below| !below.starts_with(['/', '\\']))?;
    HeaderValue::from_str(&format!("{}{below}", door.prefix())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of these lengths.
    fn left(status: u16, is_head: bool, length: Option<u64>, told: &[&'static str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for told in told {
            headers.append(header::CONTENT_LENGTH, HeaderValue::from_static(told));
        }
        check_length(StatusCode::from_u16(status).unwrap(), is_head, length, &mut headers);
        let left = headers.get_all(header::CONTENT_LENGTH).iter();
        left.map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn only_a_length_that_is_true_goes_on() {
        assert_eq!(left(200, false, Some(5), &["5"]), ["5"]);
        assert_eq!(left(200, false, Some(0), &["0"]), ["0"]);
        for told in [&["5, 5"][..], &["5", "5"], &["+5"], &[""], &["6"], &["99999999999999999999"]] {
            assert_eq!(left(200, false, Some(5), told), [""; 0], "{told:?}");
        }
        assert_eq!(left(200, false, None, &["5"]), [""; 0], "it comes in chunks");
        for (status, is_head) in [(200, true), (404, true), (304, false)] {
            assert_eq!(left(status, is_head, Some(0), &["5"]), ["5"], "of what would have come");
            assert_eq!(left(status, is_head, Some(0), &["5, 5"]), [""; 0]);
        }
        for status in [101, 204, 205] {
            for is_head in [false, true] {
                assert_eq!(left(status, is_head, Some(0), &["0"]), [""; 0], "{status} has none");
            }
        }
    }
}
