//! The first bytes of a connection: TLS, HTTP or something else; and what SOCKS asks for.

use crate::{
    gate::{self, First},
    late_hello::HelloWatch,
    socks,
    tls::{self, ClientHello, Hello},
};

pub fn client_hello(bytes: &[u8]) {
    hello_retry(bytes);
    late_hello(bytes);
    let hello = tls::client_hello(bytes);
    match &hello {
        Hello::Whole(hello, len) => {
            check_hello(&bytes[..*len], hello);
            assert_eq!(tls::begins_hello(bytes), Some(true), "a late one passes unread");
        }
        Hello::More | Hello::Malformed => {}
    }
    // What was said of the beginning stays true, however it was cut.
    for end in 0..bytes.len().min(400) {
        match tls::client_hello(&bytes[..end]) {
            Hello::More => {}
            early => return assert_eq!(early, hello, "after {end} bytes"),
        }
    }
}

/// A hello behind something else, in two pieces that are cut anywhere.
fn late_hello(bytes: &[u8]) {
    for cut in 0..bytes.len().min(20) {
        let mut watch = HelloWatch::default();
        let is_held = watch.look(&bytes[..cut]).is_break() || watch.look(&bytes[cut..]).is_break();
        assert!(is_held || tls::begins_hello(bytes) != Some(true), "cut after {cut} bytes");
        let behind = [b"before".as_slice(), bytes].concat();
        let (one, other) = behind.split_at(cut);
        let mut watch = HelloWatch::default();
        let is_held = watch.look(one).is_break() || watch.look(other).is_break();
        let is_hello = tls::begins_hello(bytes) == Some(true) && tls::is_framed_as_hello(bytes) == Some(true);
        assert!(is_held || !is_hello, "behind something else, cut after {cut} bytes");
    }
}

/// What a server says to a hello, and what its client sends then.
fn hello_retry(bytes: &[u8]) {
    let answer = tls::answer(bytes);
    for end in 0..bytes.len().min(400) {
        if let Some(early) = tls::answer(&bytes[..end]) {
            assert_eq!(Some(early), answer, "after {end} bytes");
            break;
        }
    }
    if let Some(skipped) = tls::skipped(bytes) {
        assert!(skipped <= bytes.len());
        assert_eq!(tls::skipped(&bytes[..skipped]), Some(skipped));
        assert_eq!(tls::skipped(&bytes[skipped..]), Some(0));
    }
}

fn check_hello(bytes: &[u8], hello: &ClientHello) {
    let Some((names, kinds)) = extensions(bytes) else { panic!("it is no hello") };
    assert_eq!(names, hello.server_name.iter().cloned().collect::<Vec<_>>(), "another name");
    assert_eq!(kinds.contains(&0xfe0d), hello.has_encrypted);
}

/// All server names of the hello and the kinds of its extensions, by a reader that goes by places and not by pieces.
fn extensions(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, Vec<usize>)> {
    let two = |bytes: &[u8], at: usize| Some(usize::from(*bytes.get(at)?) << 8 | usize::from(*bytes.get(at + 1)?));
    let (mut message, mut at) = (Vec::new(), 0);
    while let Some(length) = two(bytes, at + 3) {
        message.extend_from_slice(bytes.get(at + 5..(at + 5 + length).min(bytes.len()))?);
        at += 5 + length;
    }
    let end = 4 + (usize::from(*message.get(1)?) << 16 | two(&message, 2)?);
    let mut at = 4 + 34;
    at += 1 + usize::from(*message.get(at)?);
    at += 2 + two(&message, at)?;
    at += 1 + usize::from(*message.get(at)?);
    let (mut names, mut kinds) = (Vec::new(), Vec::new());
    if at == end {
        return Some((names, kinds));
    }
    at += 2;
    while at < end {
        let (kind, length) = (two(&message, at)?, two(&message, at + 2)?);
        kinds.push(kind);
        if kind == 0 {
            let list_end = at + 6 + two(&message, at + 4)?;
            let mut name = at + 6;
            while name < list_end {
                let length = two(&message, name + 1)?;
                names.push(message.get(name + 3..name + 3 + length)?.to_vec());
                name += 3 + length;
            }
        }
        at += 4 + length;
    }
    (at == end).then_some((names, kinds))
}

pub fn first_bytes(bytes: &[u8]) {
    let first = gate::read(bytes);
    for end in 1..bytes.len().min(300) {
        // What passed as something else must not become TLS or HTTP with the next segment: it is gone already.
        if gate::read(&bytes[..end]) == First::Other {
            assert_eq!(first, First::Other, "after {end} bytes");
            break;
        }
    }
    if first == First::Other {
        assert!(!is_request(bytes), "a request passes unread");
        assert!(!matches!(bytes, [22, 3, _, _, _, 1, ..]), "a hello passes unread");
    }
    if let First::Tls(hello, len) = first {
        check_hello(&bytes[..len], &hello);
    }
}

/// A line with two words or more, whatever is between them, of which the last begins with a version of HTTP.
fn is_request(bytes: &[u8]) -> bool {
    let is_space = |byte: u8| !matches!(byte, 0 | b'!'..=b'~');
    let Some(start) = bytes.iter().position(|byte| !is_space(*byte)) else { return false };
    let text = &bytes[start..];
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else { return false };
    let words: Vec<&[u8]> = text[..end].split(|byte| is_space(*byte)).filter(|word| !word.is_empty()).collect();
    let [first, .., last] = &words[..] else { return false };
    !first.contains(&0) && last.to_ascii_uppercase().starts_with(b"HTTP/")
}

pub fn socks(bytes: &[u8]) {
    let greeting = socks::greeting(bytes);
    if let Ok(Some((no_auth, len))) = greeting {
        assert_eq!(len, 2 + usize::from(bytes[1]));
        assert_eq!(no_auth, bytes[2..len].contains(&0));
        assert!((0..len).all(|end| socks::greeting(&bytes[..end]) == Ok(None)));
    }
    let request = socks::request(bytes);
    if let Ok(Some(((host, port), len))) = &request {
        assert_eq!((bytes[0], bytes[1]), (5, 1), "no CONNECT");
        assert_eq!(*port, u16::from_be_bytes([bytes[len - 2], bytes[len - 1]]));
        assert_eq!(crate::Host::parse(&host.to_string()).as_ref(), Ok(host));
        assert!((0..*len).all(|end| socks::request(&bytes[..end]) == Ok(None)), "a part of it is a request");
        let body = &bytes[4..*len - 2];
        match (bytes[3], host) {
            (1 | 4, crate::Host::Address(address)) => {
                let octets = match address {
                    std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
                    std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
                };
                assert_eq!(octets, body);
            }
            (3, host) => assert_eq!(crate::Host::parse(&String::from_utf8_lossy(&body[1..])).as_ref(), Ok(host)),
            other => panic!("{other:?}"),
        }
    }
}
