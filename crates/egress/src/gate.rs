//! The first bytes of a connection to a listed name: for whom do they speak?
//!
//! One address serves many names, so a connection to an allowed one can ask for another (domain fronting). Under an
//! allow-list, where the guest connected to a name:
//! - TLS: its server name must be that name or another one that the policy allows on this port. A hello without a server
//!   name passes: it can only mean the name that was connected. A server that answers with something else than TLS has not read it as a
//!   hello, and may read a later one. Where the server asks for a second hello, that one is held to
//!   the same. What is encrypted inside is not seen: a server that serves an allowed and a forbidden name under one server
//!   name can still be asked for either. A hello with another one in it, encrypted (ECH), is refused where the policy says so.
//! - HTTP/1: the Host field is held to the same. One request is sent, with `Connection: close`, since a second one on the
//!   same connection could name anybody. Upgrades are taken out of it, so a WebSocket needs TLS here.
//! - HTTP/2 without TLS is refused: its names stand in frames that are not read.
//! - All else passes. Only the guest's bytes wait for the verdict; a server that speaks first is heard at once. What has bytes
//!   in its first line that no request has is passed on at once, but for the end of a line that some server could read as a
//!   request. Where it becomes TLS later (`late_hello`), that hello is held to the same.
//!
//! A policy that comes later judges what is known of a connection: one that began under `public` was not looked at, and is
//! kept if its own name is listed.
//!
//! Neither `public` nor an address in an allow-list tells names apart, so there nothing is looked at.

use std::{io, ops::ControlFlow};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, timeout_at},
};

use crate::{
    decision::Reason,
    gateway::{Flow, Gateway},
    host::Host,
    http::{
        body,
        head::{self, Head},
    },
    late_hello::HelloWatch,
    relay::{Activity, After, write},
    tls::{self, ClientHello, Hello},
};

pub(crate) const MOST: usize = 16 * 1024 + 1024;
/// What is read at once.
const PIECE: usize = 4096;
/// A method, and what follows it.
const LONGEST_BEGIN: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First {
    More,
    /// A hello, and its length.
    Tls(ClientHello, usize),
    Http(Head, usize),
    ClearHttp2,
    Unreadable,
    /// No request so far, and nobody who sent one would send this; but its first line goes on.
    OpenLine,
    Other,
}

/// Passes the first bytes on once they are found to be in order.
pub(crate) async fn open(
    gateway: &Gateway,
    flow: &Flow,
    mut bytes: Vec<u8>,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> io::Result<After> {
    let policy = gateway.policy.borrow().clone();
    if flow.host.name().is_none() || !policy.tells_names_apart() {
        to.write_all(&bytes).await?;
        return Ok(After::Stream);
    }
    match collect(gateway, &mut bytes, from).await? {
        First::Other => pass_watched(HelloWatch::default(), &bytes, to).await,
        First::OpenLine => rest_of_line(gateway, flow, &bytes, from, to, activity).await,
        First::Tls(hello, len) => {
            let watch = HelloWatch::behind(&bytes[..len]);
            let watch = watch.ok_or_else(|| refused(gateway, flow, Reason::Unreadable))?;
            check_hello(gateway, flow, &hello)?;
            write(to, &bytes[..len]).await?;
            Ok(After::ServersAnswer(watch, bytes.split_off(len)))
        }
        First::Http(head, len) => request(gateway, flow, &head, &bytes[len..], from, to, activity).await,
        First::ClearHttp2 => Err(refused(gateway, flow, Reason::ClearHttp2)),
        First::More | First::Unreadable => Err(refused(gateway, flow, Reason::Unreadable)),
    }
}

/// Passes on what is no TLS so far, up to where it becomes that.
pub(crate) async fn pass_watched(
    mut watch: HelloWatch,
    bytes: &[u8],
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<After> {
    match watch.look(bytes) {
        ControlFlow::Break(hello) => Ok(After::LateHello(hello)),
        ControlFlow::Continue(()) => {
            write(to, bytes).await?;
            Ok(After::Other(watch))
        }
    }
}

/// Passes on what follows the hello: `held` was read with it. A second one is checked if the server has asked for it.
pub(crate) async fn follow_hello(
    gateway: &Gateway,
    flow: &Flow,
    answer: tls::Answer,
    mut held: Vec<u8>,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> io::Result<()> {
    if answer == tls::Answer::Final {
        return write(to, &held).await;
    }
    loop {
        let Some(skipped) = tls::skipped(&held) else { return Err(refused(gateway, flow, Reason::Unreadable)) };
        let rest = held.split_off(skipped);
        write(to, &held).await?;
        held = rest;
        if tls::is_handshake(&held) {
            match tls::client_hello(&held) {
                Hello::Whole(hello, _) => {
                    check_hello(gateway, flow, &hello)?;
                    return write(to, &held).await;
                }
                Hello::More if held.len() <= MOST => {}
                Hello::More | Hello::Malformed => return Err(refused(gateway, flow, Reason::Unreadable)),
            }
        }
        if from.read_buf(&mut held).await? == 0 {
            return Ok(()); // without a second hello nothing comes of the first
        }
        activity.note();
    }
}

pub(crate) fn check_hello(gateway: &Gateway, flow: &Flow, hello: &ClientHello) -> io::Result<()> {
    if let Some(name) = &hello.server_name {
        check(gateway, flow, parse_name(name))?;
    }
    if hello.has_encrypted {
        gateway.check_encrypted_hello(flow).map_err(|_| denied())?;
    }
    Ok(())
}

/// Passes on a first line that goes on, and never the end of one that turns out to be a request to somebody.
async fn rest_of_line(
    gateway: &Gateway,
    flow: &Flow,
    bytes: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> io::Result<After> {
    // Of the line, what a method may be in, and what may be the beginning of a version.
    let text = skip_spaces(bytes);
    let mut begin = text[..text.len().min(LONGEST_BEGIN)].to_vec();
    let mut tail = text[text.len().saturating_sub(HTTP.len() - 1)..].to_vec();
    let mut watch = HelloWatch::default();
    if let ControlFlow::Break(hello) = watch.look(bytes) {
        return Ok(After::LateHello(hello));
    }
    let mut piece = Vec::with_capacity(PIECE);
    piece.extend_from_slice(bytes);
    loop {
        write(to, &piece).await?;
        piece.clear();
        if from.read_buf(&mut piece).await? == 0 {
            return Ok(After::Other(watch)); // which finds the same end
        }
        activity.note();
        if let ControlFlow::Break(hello) = watch.look(&piece) {
            return Ok(After::LateHello(hello));
        }
        let text = if begin.is_empty() { skip_spaces(&piece) } else { &piece };
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        begin.extend_from_slice(&line[..line.len().min(LONGEST_BEGIN - begin.len())]);
        tail.extend_from_slice(line);
        if names_a_method(&begin) || names_http(&tail) {
            return Err(refused(gateway, flow, Reason::Unreadable));
        }
        if line.len() < text.len() {
            write(to, &piece).await?;
            return Ok(After::Other(watch));
        }
        tail.drain(..tail.len().saturating_sub(HTTP.len() - 1));
    }
}

/// There is no deadline for the first byte (a server may speak first), and one for the rest of what it begins.
async fn collect(gateway: &Gateway, bytes: &mut Vec<u8>, from: &mut (impl AsyncRead + Unpin)) -> io::Result<First> {
    let mut piece = vec![0; PIECE];
    let mut deadline = None;
    // More text on a line that has no end yet decides nothing: it is not read again for each byte of it.
    let mut quiet = false;
    loop {
        let first = if quiet { First::More } else { read(bytes) };
        if first != First::More {
            return Ok(first);
        }
        if bytes.len() > MOST {
            return Ok(First::Unreadable);
        }
        if deadline.is_none() && !bytes.is_empty() {
            deadline = Some(Instant::now() + gateway.limits.handshake);
        }
        let len = match deadline {
            None => from.read(&mut piece).await?,
            Some(at) => match timeout_at(at, from.read(&mut piece)).await {
                Ok(len) => len?,
                Err(_) => return Ok(First::Unreadable),
            },
        };
        if len == 0 {
            // A line without an end is no request; a hello or a head without an end is none, and might be one to others.
            let text = skip_spaces(bytes);
            let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let begun = tls::begins(bytes) || names_a_method(text) || names_http(line);
            return Ok(if begun { First::Unreadable } else { First::Other });
        }
        let piece = &piece[..len];
        quiet = !bytes.is_empty() && !tls::begins(bytes) && piece.iter().all(|byte| matches!(byte, b' '..=b'~'));
        bytes.extend_from_slice(piece);
    }
}

pub(crate) fn read(bytes: &[u8]) -> First {
    if bytes.is_empty() {
        return First::More;
    }
    if tls::begins(bytes) {
        return match tls::client_hello(bytes) {
            Hello::More => First::More,
            Hello::Malformed => First::Unreadable,
            Hello::Whole(hello, len) => First::Tls(hello, len),
        };
    }
    // The header of a load balancer, before whatever it hides.
    if bytes.starts_with(b"\r\n\r\n\0\r\nQUIT\n") {
        return First::Unreadable;
    }
    if b"\r\n\r\n\0\r\nQUIT\n".starts_with(bytes) {
        return First::More;
    }
    let text = skip_spaces(bytes);
    let end = text.iter().position(|byte| *byte == b'\n');
    let line = &text[..end.unwrap_or(text.len())];
    let word = line.iter().position(|byte| !byte.is_ascii_graphic());
    if word.is_some_and(|end| end == 0 || !is_space(line[end])) {
        return First::Other;
    }
    // Generous in what is taken for HTTP, since what is taken for it must then be strictly right.
    if names_a_method(line) || names_http(line) {
        return match head::parse(bytes) {
            _ if line.starts_with(b"PRI * HTTP/2") => First::ClearHttp2,
            Ok(Some((head, len))) => First::Http(head, len),
            Ok(None) => First::More,
            Err(_) => First::Unreadable,
        };
    }
    match end {
        Some(_) => First::Other,
        None if bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => First::More,
        None => First::OpenLine,
    }
}

/// Some servers take more bytes for spaces than the standard has, up to those of other alphabets. A NUL is one to nobody.
fn is_space(byte: u8) -> bool {
    byte != 0 && !byte.is_ascii_graphic()
}

fn skip_spaces(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|byte| !is_space(*byte)).unwrap_or(bytes.len());
    &bytes[start..]
}

fn names_a_method(line: &[u8]) -> bool {
    METHODS.iter().any(|method| {
        let named = line.get(..method.len()).is_some_and(|word| word.eq_ignore_ascii_case(method.as_bytes()));
        named && line.get(method.len()).is_some_and(|byte| is_space(*byte))
    })
}

const HTTP: &[u8] = b"HTTP/";

fn names_http(text: &[u8]) -> bool {
    text.windows(HTTP.len()).any(|five| five.eq_ignore_ascii_case(HTTP))
}

/// `PROXY` is no method: it begins the header of a load balancer, and what begins with it is not passed on either.
const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PROXY"];

async fn request(
    gateway: &Gateway,
    flow: &Flow,
    head: &Head,
    already: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> io::Result<After> {
    let unreadable = |_| refused(gateway, flow, Reason::Unreadable);
    // A server believes an absolute target more than the Host field.
    if !head.target.starts_with('/') && head.target != "*" {
        return Err(refused(gateway, flow, Reason::Unreadable));
    }
    let host = match head.host().map_err(unreadable)? {
        Some((host, port)) => {
            let written = authority(&host, port);
            check(gateway, flow, Some(host))?;
            written
        }
        None => authority(&flow.host, None),
    };
    let framing = head.framing().map_err(unreadable)?;
    let forwarded = head.forwarded(&head.target, &host).map_err(unreadable)?;
    write(to, &forwarded).await?;
    body::send(framing, already, from, to, activity).await?;
    Ok(After::Nothing)
}

pub(crate) fn authority(host: &Host, port: Option<u16>) -> String {
    let host = match host {
        Host::Address(std::net::IpAddr::V6(v6)) => format!("[{v6}]"),
        host => host.to_string(),
    };
    port.map_or(host.clone(), |port| format!("{host}:{port}"))
}

fn parse_name(bytes: &[u8]) -> Option<Host> {
    Host::parse(std::str::from_utf8(bytes).ok()?).ok()
}

fn check(gateway: &Gateway, flow: &Flow, spoken: Option<Host>) -> io::Result<()> {
    match spoken {
        Some(host) => gateway.check_spoken(flow, host).map_err(|_| denied()),
        None => Err(refused(gateway, flow, Reason::Unreadable)),
    }
}

pub(crate) fn refused(gateway: &Gateway, flow: &Flow, reason: Reason) -> io::Error {
    gateway.refuse_flow(flow, reason);
    denied()
}

fn denied() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_could_be_http_to_any_server_is_http_or_unreadable() {
        for bytes in [
            &b"GET / HTTP/1.1\n"[..],
            b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"get / http/1.1\r\nHost: a\r\n\r\n",
            b"GET\t/ HTTP/1.1\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET /\x01 HTTP/1.1\r\n\r\n",
            b"FOO  / HTTP/1.1\r\n\r\n",
            b"FOO / HTTP/3\r\n\r\n",
            b"\n\n POST / HTTP/1.1\r\n\r\n",
            b"GET \xff HTTP/1.1\r\n\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\n\r\n",
            b"GET\x0b/x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET\x0c/x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET\x1c/x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET\x85/x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET\xa0/x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\x0bGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\xa0\n\x1fFOO /x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"PROPFIND /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
            b"PROPFIND /\xff\x00 http/1.0\r\nHost: a\r\n\r\n",
            b"\"FOO\" /\x01 HTTP/1.1\n",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11",
        ] {
            assert_eq!(read(bytes), First::Unreadable, "{:?}", String::from_utf8_lossy(bytes));
        }
        assert!(matches!(read(b"FOO / HTTP/1.1\r\nHost: a\r\n\r\nrest"), First::Http(_, 27)));
        assert_eq!(read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), First::ClearHttp2);
    }

    #[test]
    fn other_protocols_pass_with_their_first_line() {
        for bytes in [
            &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
            b"EHLO me\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
            b"GETTING started\n",
            b"PROPFIND /\xff\r\nHTTP/1.1\r\n",
            b"P\0\0\x01SELECT 'HTTP/1.1'",
        ] {
            assert_eq!(read(bytes), First::Other, "{:?}", String::from_utf8_lossy(bytes));
        }
        for bytes in [&b"0032git-upload-pack /x\0host=a\0"[..], b"\x13BitTorrent protocol", b"\x01", b"FOO /\xff HTTP"]
        {
            assert_eq!(read(bytes), First::OpenLine, "{:?}", String::from_utf8_lossy(bytes));
        }
        for bytes in [&b""[..], b"S", b"SSH-2.0", b"GET / HT", b"\x16", b"\x16\x03\x01"] {
            assert_eq!(read(bytes), First::More, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            read(&bytes);
        }

        #[test]
        fn no_prefix_of_a_request_passes_as_something_else(cut in 1_usize..50) {
            let bytes = b"POST /x HTTP/1.1\r\nHost: example.com\r\nA: b\r\n\r\nbody";
            let first = read(&bytes[..cut]);
            prop_assert!(matches!(first, First::More | First::Http(..)), "{:?}", first);
        }
    }
}
