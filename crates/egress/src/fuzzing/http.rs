//! The HTTP proxy's parsers: whatever is passed on is read in one way only, also by a reader that forgives everything.

use crate::{
    gate::authority,
    http::{
        body::Body,
        head::{self, Framing, Head},
        proxy,
    },
};

pub fn http_head(bytes: &[u8]) {
    let Ok(Some((head, len))) = head::parse(bytes) else { return };
    assert!(len <= bytes.len() && bytes[..len].ends_with(b"\r\n\r\n"));
    let Ok(Some((alone, whole))) = head::parse(&bytes[..len]) else { panic!("what follows a head made it one") };
    assert_eq!((&alone, whole), (&head, len), "what follows the head changes it");
    in_pieces(&bytes[..len], &head);
    // As the proxy sends it, and as the gate does under an allow-list.
    if let Ok(wanted) = proxy::wanted(&head)
        && let Some(path) = &wanted.path
    {
        assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()));
        forwarded(&head, path, &authority(&wanted.host, (wanted.port != 80).then_some(wanted.port)));
    }
    if head.target.starts_with('/')
        && let Ok(Some((host, port))) = head.host()
    {
        forwarded(&head, &head.target, &authority(&host, port));
    }
}

/// One byte after the other, as a slow guest sends it.
fn in_pieces(bytes: &[u8], head: &Head) {
    for end in 1..bytes.len().min(600) {
        assert_eq!(head::parse_more(&bytes[..end], end - 1), Ok(None), "a part of a head is a head");
    }
    let Ok(Some((whole, _))) = head::parse_more(bytes, bytes.len() - 1) else { panic!("the last byte ends it") };
    assert_eq!(whole, *head);
}

fn forwarded(head: &Head, target: &str, host: &str) {
    let (Ok(sent), Ok(framing)) = (head.forwarded(target, host), head.framing()) else { return };
    let Ok(Some((again, len))) = head::parse(&sent) else { panic!("{:?}", String::from_utf8_lossy(&sent)) };
    assert_eq!((len, again.framing()), (sent.len(), Ok(framing)), "{:?}", String::from_utf8_lossy(&sent));
    assert_eq!((&*again.method, &*again.target, again.minor), (&*head.method, target, 1));
    let lines = forgiving(&sent);
    let count = |name: &[u8]| lines.iter().filter(|(field, _)| field == name).count();
    let told = (count(b"content-length"), count(b"transfer-encoding"));
    let expected = match framing {
        Framing::None => (0, 0),
        Framing::Length(_) => (1, 0),
        Framing::Chunked => (0, 1),
    };
    assert_eq!(told, expected, "two readers may see two ends of the body");
    let one = |name: &[u8], value: &[u8]| {
        assert_eq!(
            lines.iter().filter(|(field, _)| field == name).map(|(_, value)| &value[..]).collect::<Vec<_>>(),
            [value]
        );
    };
    one(b"host", host.as_bytes());
    one(b"connection", b"close");
    for own in [&b"proxy-authorization"[..], b"proxy-connection", b"upgrade", b"te", b"keep-alive", b"trailer"] {
        assert_eq!(count(own), 0, "what was for this hop goes on");
    }
}

/// The fields as the most generous server reads them: any line end, spaces anywhere, a folded line as one of its own.
fn forgiving(head: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let lines: Vec<&[u8]> = head.split(|byte| matches!(byte, b'\n' | b'\r' | 0 | 0x0b | 0x0c)).collect();
    let texts = lines.iter().map(|line| line.trim_ascii()).filter(|line| !line.is_empty()).skip(1);
    let fields = texts.map(|line| {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let name: Vec<u8> = line[..colon].trim_ascii().to_ascii_lowercase();
        (name, line.get(colon + 1..).unwrap_or_default().trim_ascii().to_vec())
    });
    fields.collect()
}

/// The first byte says how the body ends and in what pieces it comes.
pub fn http_body(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let framing = match how & 3 {
        0 => Framing::Length(u64::from(how >> 2)),
        1 => Framing::None,
        _ => Framing::Chunked,
    };
    let piece = usize::from(how >> 2).max(1);
    let whole = sent(framing, [bytes]);
    let pieces = sent(framing, bytes.chunks(piece));
    match (whole, pieces) {
        (Some((one, ended)), Some((other, also))) => {
            assert_eq!(
                (data(framing, &one, ended), ended),
                (data(framing, &other, also), also),
                "pieces make another body"
            );
            check(framing, bytes, &data(framing, &one, ended), ended);
        }
        (one, other) => assert_eq!(one.is_none(), other.is_none(), "pieces make another verdict"),
    }
}

fn sent<'a>(framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<(Vec<u8>, bool)> {
    let (mut body, mut out) = (Body::new(framing), Vec::new());
    for piece in pieces {
        body.feed(piece, &mut out).ok()?;
    }
    Some((out, body.is_done()))
}

/// What the server gets out of it. What we send is the plainest form: anything else is a panic.
fn data(framing: Framing, sent: &[u8], ended: bool) -> Vec<u8> {
    if framing != Framing::Chunked {
        return sent.to_vec();
    }
    let (mut data, mut rest) = (Vec::new(), sent);
    while !rest.is_empty() {
        let Some(line) = rest.windows(2).position(|two| two == b"\r\n") else { panic!("a chunk without a size") };
        let Some(size) = std::str::from_utf8(&rest[..line]).ok().and_then(|size| usize::from_str_radix(size, 16).ok())
        else {
            panic!("a size that is none")
        };
        let chunk = &rest[line + 2..line + 2 + size];
        assert_eq!(&rest[line + 2 + size..line + 4 + size], b"\r\n");
        data.extend_from_slice(chunk);
        rest = &rest[line + 4 + size..];
        assert_eq!(size == 0, rest.is_empty() && ended, "the last chunk is not the last");
    }
    data
}

/// Against a reader of the guest's bytes that was written for nothing but this.
fn check(framing: Framing, bytes: &[u8], data: &[u8], ended: bool) {
    match framing {
        Framing::None => assert_eq!((data, ended), (&[][..], true)),
        Framing::Length(length) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            assert_eq!((data, ended), (&bytes[..bytes.len().min(length)], bytes.len() >= length));
        }
        Framing::Chunked => {
            let (mut rest, mut expected) = (bytes, Vec::new());
            while let Some(line) = rest.iter().position(|byte| *byte == b'\n') {
                let digits: String = rest[..line].iter().map(|byte| char::from(*byte)).collect();
                let digits = digits.split([';', '\r']).next().unwrap_or_default().to_owned();
                let Ok(size) = usize::from_str_radix(&digits, 16) else { panic!("the size {digits:?} was taken") };
                rest = &rest[line + 1..];
                expected.extend_from_slice(&rest[..size.min(rest.len())]);
                if size == 0 || rest.len() < size + 2 {
                    break;
                }
                rest = &rest[size + 2..];
            }
            assert_eq!(data, expected, "another reader sees another body");
        }
    }
}
