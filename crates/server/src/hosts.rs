//! Requests that name two hosts.
//!
//! What stands in front may go by one of them, and we by the other: so one that says two is refused before anybody looks at either.

use std::ops::ControlFlow;

use axum::{
    extract::Request,
    http::{Uri, header, uri::Scheme},
    response::{IntoResponse, Response},
};

use crate::{e2b::worded, error::Refused};

pub(crate) fn check(request: &Request) -> ControlFlow<Response> {
    if names_one(request) {
        return ControlFlow::Continue(());
    }
    let refused = Refused::invalid("Host", "the request names two hosts");
    ControlFlow::Break(worded(request, refused.into_response()))
}

/// In its headers and in its target, which is where HTTP/2 has it.
fn names_one(request: &Request) -> bool {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let (of_header, more) = (headers.next(), headers.next());
    let named = |authority: &str| without_usual_port(authority, request.uri()).to_ascii_lowercase();
    let is_same = |authority: &str| match of_header.map(|host| host.to_str()) {
        None | Some(Ok("")) => true, // which names none
        Some(host) => host.is_ok_and(|host| named(host) == named(authority)),
    };
    more.is_none() && request.uri().authority().is_none_or(|authority| is_same(authority.as_str()))
}

/// With the port that the scheme has anyway it is the same host.
fn without_usual_port<'a>(host: &'a str, uri: &Uri) -> &'a str {
    let port = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => ":80",
        Some(scheme) if *scheme == Scheme::HTTPS => ":443",
        _ => return host,
    };
    host.strip_suffix(port).unwrap_or(host)
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
            ("http://one/a", &["one:80"]),
            ("http://one:80/a", &["one"]),
            ("https://one:443/a", &["one"]),
            ("http://one/a", &[""]),
        ] {
            assert!(names_one(target, hosts), "{target} {hosts:?}");
        }
        for (target, hosts) in [
            ("/a", &["one", "two"][..]),
            ("/a", &["one", "one"]),
            ("http://one/a", &["two"]),
            ("http://one/a", &["one:443"]),
            ("https://one/a", &["one:80"]),
            ("http://one:8080/a", &["one"]),
            ("http://user@one/a", &["one"]),
        ] {
            assert!(!names_one(target, hosts), "{target} {hosts:?}");
        }
    }
}
