//! Requests that name two hosts.
//!
//! What stands in front may go by one of them, and we by the other: so one that says two is refused before anybody looks at either.

use axum::{
    extract::Request,
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{e2b::worded, error::Refused};

pub(crate) async fn check(request: Request, next: Next) -> Response {
    if names_one(&request) {
        return next.run(request).await;
    }
    let refused = Refused::invalid("Host", "the request names two hosts");
    worded(request.uri().path(), request.headers(), refused.into_response())
}

/// In its headers and in its target, which is where HTTP/2 has it.
fn names_one(request: &Request) -> bool {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let (of_header, more) = (headers.next(), headers.next());
    let is_same =
        |authority: &str| of_header.is_none_or(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
    more.is_none() && request.uri().authority().is_none_or(|authority| is_same(authority.as_str()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_request_names_one_host_however_often_it_says_it_in_one_place() {
        let names_one = |target: &str, hosts: &[&str]| {
            let request = Request::builder().uri(target);
            let request = hosts.iter().fold(request, |request, host| request.header("host", *host));
            super::names_one(&request.body(Body::empty()).unwrap())
        };
        for (target, hosts) in [
            ("/a", &[][..]),
            ("/a", &["one:80"]),
            ("http://one/a", &[]),
            ("http://one/a", &["one"]),
            ("http://One:8080/a", &["oNe:8080"]),
        ] {
            assert!(names_one(target, hosts), "{target} {hosts:?}");
        }
        for (target, hosts) in [
            ("/a", &["one", "two"][..]),
            ("/a", &["one", "one"]),
            ("http://one/a", &["two"]),
            ("http://one/a", &["one:80"]),
            ("http://user@one/a", &["one"]),
        ] {
            assert!(!names_one(target, hosts), "{target} {hosts:?}");
        }
    }
}
