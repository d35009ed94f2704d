//! Refusals that were made before a handler of this front had the request: by the router, by what takes a request apart, at the
//! door. On E2B's paths they are told in E2B's words, since its SDKs fail over a body in others and hide what it says.

use axum::{
    extract::Request,
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};
use cabana_e2b_wire::header as names;

use super::{ENVD_PORT, refused::Refused};
use crate::error::Refused as Ours;

/// Where the paths of the control plane begin. Our own begin otherwise.
const THEIRS: [&str; 8] = ["sandboxes", "templates", "snapshots", "volumes", "secrets", "v2", "v3", "e2b"];

fn is_theirs(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    THEIRS.contains(&first)
}

/// Around the routes, and inside of what leads to sandboxes: what answers in there has words of its own.
pub(crate) async fn in_their_words(request: Request, next: Next) -> Response {
    let is_theirs = is_theirs(request.uri().path());
    let response = next.run(request).await;
    if is_theirs { said_anew(response) } else { response }
}

/// The same for what is said at the door, where a sandbox that is named is all that tells of its agent.
pub(crate) fn worded(request: &Request, response: Response) -> Response {
    if is_for_theirs(request) { said_anew(response) } else { response }
}

pub(crate) fn is_for_theirs(request: &Request) -> bool {
    let (uri, headers) = (request.uri(), request.headers());
    let in_header = headers.get_all(header::HOST).iter().filter_map(|host| host.to_str().ok());
    let mut hosts = uri.host().into_iter().chain(in_header);
    is_theirs(uri.path()) || headers.contains_key(names::SANDBOX_ID) || hosts.any(is_of_agent)
}

/// Below whatever domain: on the agent's port nothing but this front answers.
fn is_of_agent(host: &str) -> bool {
    host.split_once('-').is_some_and(|(port, _)| port.parse() == Ok(ENVD_PORT))
}

pub(crate) fn said_anew(mut response: Response) -> Response {
    if let Some(ours) = response.extensions_mut().remove::<Ours>() {
        return Refused::from(ours).into_response();
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let status = response.status();
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    // A library's own, which has no word for what to do.
    Refused::new(status, status.canonical_reason().unwrap_or("refused")).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn paths_of_theirs_are_known_by_how_they_begin() {
        for path in ["/sandboxes", "/sandboxes/i1/nothing", "/v2/anything", "/v3/templates", "//secrets", "/volumes/"] {
            assert!(is_theirs(path), "{path}");
        }
        for path in ["/", "/v1/sandboxes", "/sandboxesx", "/healthz", "/p/i1/80/sandboxes"] {
            assert!(!is_theirs(path), "{path}");
        }
    }

    #[test]
    fn a_request_for_an_agent_is_known_by_its_host_name_or_its_header() {
        let is_for_theirs = |target: &str, headers: &[(&str, &str)]| {
            let request = Request::builder().uri(target);
            let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            super::is_for_theirs(&request.body(Body::empty()).unwrap())
        };
        for (target, headers) in [
            ("/files", &[("host", "49983-iabc.sbx.test")][..]),
            ("/process.Process/List", &[("host", "49983-iabc.localhost:7070")]),
            ("https://49983-iabc.sbx.test/health", &[]),
            ("/files", &[("host", "sbx.test"), ("host", "49983-iabc.sbx.test")]), // as one that is refused for that
            ("/files", &[("host", "127.0.0.1:7070"), ("e2b-sandbox-id", "iabc")]),
        ] {
            assert!(is_for_theirs(target, headers), "{target} {headers:?}");
        }
        for host in ["8000-iabc.sbx.test", "49983.sbx.test", "iabc-49983.sbx.test", "api.sbx.test", "127.0.0.1:49983"] {
            assert!(!is_for_theirs("/files", &[("host", host)]), "{host}");
        }
    }
}
