//! The HTTP proxy: CONNECT, and requests with an absolute target. One request for each connection.

use std::fmt::Display;

use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use crate::{
    decision::{Decision, Reason},
    event::How,
    gate::authority,
    gateway::{Gateway, NotDialed},
    host::Host,
    http::head::{self, Head, HeadError},
    relay::{Opening, carry, linger},
    serve::read_until,
};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub host: Host,
    pub port: u16,
    /// The target in origin form; `None` is a tunnel.
    pub path: Option<String>,
}

pub(crate) async fn serve(gateway: &Gateway, mut guest: TcpStream) {
    let mut bytes = Vec::new();
    let reading = read_until(&mut guest, &mut bytes, head::parse_more);
    let head = match timeout(gateway.limits.handshake, reading).await {
        Ok(Ok(Ok(head))) => head,
        Ok(Ok(Err(error))) => return answer(guest, "400 Bad Request", &not_understood(error)).await,
        Ok(Err(_)) => return,
        Err(_) => return answer(guest, "408 Request Timeout", "Cabana got no whole request in time.\n").await,
    };
    let wanted = match wanted(&head) {
        Ok(wanted) => wanted,
        Err(error) => {
            if let HeadError::BadHost(why) = error {
                gateway.refuse(How::Http, &head.target, 0, Reason::BadHost(why));
            }
            return answer(guest, "400 Bad Request", &not_understood(error)).await;
        }
    };
    let port = wanted.port;
    let asked = authority(&wanted.host, Some(port));
    let (flow, outer) = match gateway.dial(How::Http, wanted.host, port).await {
        Ok(dialled) => dialled,
        Err(error) => return explain(guest, &asked, error).await,
    };
    let opening = match wanted.path {
        None => {
            if guest.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_err() {
                return;
            }
            Opening::Tunnel(bytes)
        }
        Some(path) => {
            let host = authority(&flow.host, (port != 80).then_some(port));
            match (head.forwarded(&path, &host), head.framing()) {
                (Ok(head), Ok(framing)) => Opening::Request { head, framing, already: bytes },
                (Err(error), _) | (_, Err(error)) => {
                    return answer(guest, "400 Bad Request", &not_understood(error)).await;
                }
            }
        }
    };
    carry(gateway, &flow, guest, outer, opening).await;
}

pub(crate) fn wanted(head: &Head) -> Result<Wanted, HeadError> {
    let wanted = if head.method == "CONNECT" { tunnel(head)? } else { absolute(head)? };
    // Before anything is dialled: a request that will not be sent must not open a connection.
    head.framing()?;
    head.named_by_connection()?;
    let default = if wanted.path.is_none() { 443 } else { 80 };
    match head.host()? {
        Some((host, _)) if host != wanted.host => Err(HeadError::OtherHost),
        // A client of CONNECT may leave the port out of the Host field, whatever it is.
        Some((_, Some(port))) if port != wanted.port => Err(HeadError::OtherHost),
        Some((_, None)) if wanted.path.is_some() && wanted.port != default => Err(HeadError::OtherHost),
        _ => Ok(wanted),
    }
}

fn tunnel(head: &Head) -> Result<Wanted, HeadError> {
    let (host, port) = Host::parse_authority(&head.target)?;
    Ok(Wanted { host, port: port.ok_or(HeadError::Target)?, path: None })
}

fn absolute(head: &Head) -> Result<Wanted, HeadError> {
    let (scheme, rest) = head.target.split_at_checked(7).ok_or(HeadError::Target)?;
    if !scheme.eq_ignore_ascii_case("http://") {
        return Err(HeadError::Target);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let (host, port) = Host::parse_authority(authority)?;
    Ok(Wanted { host, port: port.unwrap_or(80), path: Some(path) })
}

async fn explain(guest: TcpStream, asked: &str, error: NotDialed) {
    match error {
        NotDialed::Refused(decision) => answer(guest, "403 Forbidden", &refusal(asked, &decision)).await,
        NotDialed::Missing => {
            let text = format!("Cabana found no address for {asked}: there is no such name.\n");
            answer(guest, "502 Bad Gateway", &text).await;
        }
        NotDialed::Unreachable => {
            answer(guest, "502 Bad Gateway", &format!("Cabana may connect to {asked}, but it does not answer.\n"))
                .await;
        }
        NotDialed::TimedOut => {
            answer(guest, "504 Gateway Timeout", &format!("Cabana may connect to {asked}, but it took too long.\n"))
                .await;
        }
    }
}

fn refusal(asked: &str, decision: &Decision) -> String {
    let Decision { rule, reason, .. } = decision;
    format!("Cabana refused {asked}.\nRule: {rule}\nReason: {reason}.\nWhat to do: {}\n", reason.advice())
}

fn not_understood(error: impl Display) -> String {
    format!("Cabana does not pass this request on: {error}.\n")
}

async fn answer(mut guest: TcpStream, status: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if guest.write_all(format!("{head}{body}").as_bytes()).await.is_ok() {
        linger(guest).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(first: &str, host: &str) -> Result<(String, u16, Option<String>), HeadError> {
        let text = format!("{first} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (head, _) = head::parse(text.as_bytes())?.expect("the head is whole");
        wanted(&head).map(|wanted| (wanted.host.to_string(), wanted.port, wanted.path))
    }

    #[test]
    fn each_form_of_target_is_read() {
        assert_eq!(read("CONNECT a.com:443", "a.com:443"), Ok(("a.com".into(), 443, None)));
        assert_eq!(read("CONNECT a.com:8443", "a.com"), Ok(("a.com".into(), 8443, None)));
        assert_eq!(read("CONNECT [::1]:443", "[::1]:443"), Ok(("::1".into(), 443, None)));
        assert_eq!(read("GET http://a.com", "A.com."), Ok(("a.com".into(), 80, Some("/".into()))));
        assert_eq!(read("GET HTTP://a.com:81?x#y", "a.com:81"), Ok(("a.com".into(), 81, Some("/?x".into()))));
    }

    #[test]
    fn a_host_field_that_differs_from_the_target_is_refused() {
        for (first, host) in [
            ("GET http://a.com/", "b.com"),
            ("GET http://a.com/", "a.com:81"),
            ("GET http://a.com:81/", "a.com"),
            ("CONNECT a.com:443", "b.com:443"),
            ("CONNECT a.com:443", "a.com:80"),
        ] {
            assert_eq!(read(first, host), Err(HeadError::OtherHost), "{first} {host}");
        }
    }

    #[test]
    fn other_targets_are_refused() {
        for first in ["GET /", "GET *", "GET https://a.com/", "GET ftp://a.com/", "CONNECT a.com", "OPTIONS *", "GET a"]
        {
            assert_eq!(read(first, "a.com"), Err(HeadError::Target), "{first}");
        }
        for first in [
            "GET http:///",
            "GET http://u:p@a.com/",
            "GET http://a.com\\@b.com/",
            "CONNECT a.com:0",
            "GET http://a.com:/",
            "CONNECT http://a.com/",
            "GET http://a.com:80:80/",
            "GET http://[::1/",
            "GET http://b%2ecom/",
        ] {
            assert!(matches!(read(first, "a.com"), Err(HeadError::BadHost(_))), "{first}");
        }
    }

    proptest! {
        #[test]
        fn any_target_is_read_without_panic(target in "[!-~]{1,60}") {
            let _ = read(&format!("GET {target}"), "a.com");
            let _ = read(&format!("GET http://{target}"), "a.com");
            let _ = read(&format!("CONNECT {target}"), "a.com");
        }
    }
}
