//! The headers that E2B's clients send and expect.

use base64::{Engine as _, engine::general_purpose::STANDARD};

// Of the control plane.
pub const API_KEY: &str = "x-api-key";
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
pub const NEXT_TOKEN: &str = "x-next-token";
pub const TOTAL_RUNNING: &str = "x-total-running";
/// Whether a client may try again; without it the status decides.
pub const SHOULD_RETRY: &str = "should-retry";

// Which port of which sandbox is meant, where the host does not say it.
pub const SANDBOX_ID: &str = "e2b-sandbox-id";
pub const SANDBOX_PORT: &str = "e2b-sandbox-port";

// What opens a sandbox: the first its agent, the second its ports.
pub const ACCESS_TOKEN: &str = "x-access-token";
pub const TRAFFIC_ACCESS_TOKEN: &str = "e2b-traffic-access-token";

// Of Connect's calls.
pub const CONNECT_PROTOCOL_VERSION: &str = "connect-protocol-version";
pub const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// In seconds: so often a stream says that it is alive.
pub const KEEPALIVE_PING_INTERVAL: &str = "keepalive-ping-interval";

/// What a stream of Connect's has as its content type, both ways.
pub const CONNECT_JSON: &str = "application/connect+json";

/// Whom a call to a sandbox's agent acts as: clients say it as the user of basic authentication, without a password. Nothing is
/// proved by it, since the access token is what opens the sandbox.
pub fn user_of_authorization(value: &str) -> Option<String> {
    let (scheme, credentials) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let credentials = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    let (user, _) = credentials.split_once(':')?;
    (!user.is_empty()).then(|| user.to_owned())
}

/// The header that says so.
pub fn authorization_of_user(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_lower_case_as_http_2_has_them() {
        for name in [
            API_KEY,
            IDEMPOTENCY_KEY,
            NEXT_TOKEN,
            TOTAL_RUNNING,
            SHOULD_RETRY,
            SANDBOX_ID,
            SANDBOX_PORT,
            ACCESS_TOKEN,
            TRAFFIC_ACCESS_TOKEN,
            CONNECT_PROTOCOL_VERSION,
            CONNECT_TIMEOUT_MS,
            KEEPALIVE_PING_INTERVAL,
        ] {
            assert!(!name.contains(char::is_uppercase), "{name}");
        }
    }
    #[test]
    fn a_user_is_named_by_basic_authentication() {
        assert_eq!(authorization_of_user("user"), "Basic dXNlcjo=");
        assert_eq!(user_of_authorization("Basic dXNlcjo=").as_deref(), Some("user"));
        assert_eq!(user_of_authorization("basic cm9vdDpwYXNz").as_deref(), Some("root"));
        for other in ["", "Basic", "Basic Og==", "Basic dXNlcg==", "Basic ?", "Basic /w==", "Bearer dXNlcjo="] {
            assert_eq!(user_of_authorization(other), None, "{other}");
        }
    }
}
