//! The head of a request, read so that no server behind us can read it differently.
//!
//! Smuggling lives on heads that two readers understand in two ways: bare line ends, folded lines, two lengths, a length
//! beside a transfer coding, spaces before a colon. Each of these is refused; nothing is repaired.

use crate::host::{Host, HostError};

pub(crate) const MAX_HEAD: usize = 16 * 1024;
const MAX_FIELDS: usize = 128;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub method: String,
    pub target: String,
    /// 0 or 1, of HTTP/1.x.
    pub minor: u8,
    fields: Vec<Field>,
}

#[derive(Debug, PartialEq, Eq)]
struct Field {
    name: String,
    value: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(u64),
    Chunked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("its head is longer than 16 KiB or has more than 128 fields")]
    TooLong,
    #[error("a line does not end in CR LF")]
    LineEnd,
    #[error("its first line is not `METHOD target HTTP/1.1`")]
    FirstLine,
    #[error("a header field is malformed or folded")]
    Field,
    #[error("it has both a Content-Length and a Transfer-Encoding")]
    TwoFramings,
    #[error("its Content-Length is not one number")]
    Length,
    #[error("its Transfer-Encoding is not `chunked`")]
    Coding,
    #[error("it must have one Host field")]
    Host,
    #[error("its Host field does not name the host of its target")]
    OtherHost,
    #[error("its Connection field names a field that must not be removed")]
    Connection,
    #[error("its target must be host:port for CONNECT, and http://host/path for all else; use CONNECT for https")]
    Target,
    #[error("its host is none: {0}")]
    BadHost(#[from] HostError),
}

/// The head and its length, once it is whole.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, HeadError> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let head = &bytes[..end.unwrap_or(bytes.len())];
    line_ends(head, end.is_some())?;
    match end {
        Some(at) if at + 4 <= MAX_HEAD => Ok(Some((parse_lines(head)?, at + 4))),
        None if bytes.len() < MAX_HEAD => Ok(None),
        _ => Err(HeadError::TooLong),
    }
}

/// The same when the first `seen` bytes were not enough: without a new line end there is nothing new to find.
pub(crate) fn parse_more(bytes: &[u8], seen: usize) -> Result<Option<(Head, usize)>, HeadError> {
    match bytes.len() < MAX_HEAD && !bytes[seen..].contains(&b'\n') {
        true => Ok(None),
        false => parse(bytes),
    }
}

fn line_ends(head: &[u8], whole: bool) -> Result<(), HeadError> {
    let bare = |at: usize| match head[at] {
        b'\n' => at == 0 || head[at - 1] != b'\r',
        b'\r' => head.get(at + 1).map_or(whole, |next| *next != b'\n'),
        _ => false,
    };
    if (0..head.len()).any(bare) { Err(HeadError::LineEnd) } else { Ok(()) }
}

fn parse_lines(head: &[u8]) -> Result<Head, HeadError> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let words: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Err(HeadError::FirstLine) };
    let minor = match version {
        b"HTTP/1.1" => 1,
        b"HTTP/1.0" => 0,
        _ => return Err(HeadError::FirstLine),
    };
    if !is_token(method) || target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(HeadError::FirstLine);
    }
    let fields: Vec<Field> = lines.map(field).collect::<Result<_, _>>()?;
    if fields.len() > MAX_FIELDS {
        return Err(HeadError::TooLong);
    }
    let method = text(method).map_err(|_| HeadError::FirstLine)?;
    let target = text(target).map_err(|_| HeadError::FirstLine)?;
    Ok(Head { method, target, minor, fields })
}

fn field(line: &[u8]) -> Result<Field, HeadError> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(HeadError::Field)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let good = |byte: &u8| *byte == b'\t' || *byte == b' ' || byte.is_ascii_graphic() || *byte >= 0x80;
    if !is_token(name) || !value.iter().all(good) {
        return Err(HeadError::Field);
    }
    let name = String::from_utf8(name.to_ascii_lowercase()).map_err(|_| HeadError::Field)?;
    Ok(Field { name, value: value.to_vec() })
}

fn is_token(bytes: &[u8]) -> bool {
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(good)
}

impl Head {
    /// What the Host field says; `None` only where HTTP/1.0 has none.
    pub(crate) fn host(&self) -> Result<Option<(Host, Option<u16>)>, HeadError> {
        match &self.values("host").collect::<Vec<_>>()[..] {
            [] if self.minor == 0 => Ok(None),
            [value] => {
                let text = std::str::from_utf8(value).map_err(|_| HeadError::Host)?;
                Ok(Some(Host::parse_authority(text)?))
            }
            _ => Err(HeadError::Host),
        }
    }

    pub(crate) fn framing(&self) -> Result<Framing, HeadError> {
        let lengths: Vec<&[u8]> = self.values("content-length").collect();
        let codings: Vec<&[u8]> = self.values("transfer-encoding").collect();
        match (&lengths[..], &codings[..]) {
            ([], []) => Ok(Framing::None),
            ([_, ..], [_, ..]) => Err(HeadError::TwoFramings),
            ([], [coding]) if self.minor == 1 && coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            ([], _) => Err(HeadError::Coding),
            ([first, others @ ..], []) if others.iter().all(|other| other == first) => length(first),
            _ => Err(HeadError::Length),
        }
    }

    /// The head for the server: without what concerns only this hop, and with the end of the connection announced.
    pub(crate) fn forwarded(&self, target: &str, host: &str) -> Result<Vec<u8>, HeadError> {
        let named = self.named_by_connection()?;
        let framing = self.framing()?;
        let mut out = format!("{} {target} HTTP/1.1\r\nHost: {host}\r\n", self.method).into_bytes();
        for field in &self.fields {
            let kept = !OWN.contains(&&*field.name) && !named.contains(&field.name);
            if kept {
                out.extend_from_slice(field.name.as_bytes());
                out.extend_from_slice(b": ");
                out.extend_from_slice(&field.value);
                out.extend_from_slice(b"\r\n");
            }
        }
        match framing {
            Framing::None => {}
            Framing::Length(length) => out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes()),
            Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        }
        out.extend_from_slice(b"Connection: close\r\n\r\n");
        Ok(out)
    }

    /// The fields that concern only this hop because the Connection field says so.
    pub(crate) fn named_by_connection(&self) -> Result<Vec<String>, HeadError> {
        let values = self.values("connection").chain(self.values("proxy-connection"));
        let all = values.map(|value| String::from_utf8_lossy(value).to_ascii_lowercase()).collect::<Vec<_>>().join(",");
        let names: Vec<String> = all.split(',').map(|name| name.trim().to_owned()).collect();
        // `Connection: Content-Length` would have us drop what says where the body ends.
        let needed = ["host", "content-length", "transfer-encoding", "authorization", "cookie"];
        if names.iter().any(|name| needed.contains(&&**name)) { Err(HeadError::Connection) } else { Ok(names) }
    }

    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |field| field.name == name).map(|field| &field.value[..])
    }
}

/// What concerns one hop, or is written anew.
const OWN: &[&str] = &[
    "connection",
    "content-length",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn length(value: &[u8]) -> Result<Framing, HeadError> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits);
    text.and_then(|text| text.parse().ok()).map(Framing::Length).ok_or(HeadError::Length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Result<Head, HeadError> {
        let (head, len) = parse(text.as_bytes())?.expect("the head is whole");
        assert_eq!(len, text.len());
        Ok(head)
    }

    fn framing(fields: &str) -> Result<Framing, HeadError> {
        whole(&format!("POST / HTTP/1.1\r\n{fields}\r\n"))?.framing()
    }

    #[test]
    fn a_plain_head_is_read() {
        let head = whole("GET http://a.com/x HTTP/1.1\r\nHost: A.com:80\r\nX-Y:  z \r\n\r\n").unwrap();
        assert_eq!((&*head.method, &*head.target, head.minor), ("GET", "http://a.com/x", 1));
        assert_eq!(head.host(), Ok(Some((Host::parse("a.com").unwrap(), Some(80)))));
        assert_eq!(head.framing(), Ok(Framing::None));
    }

    #[test]
    fn each_framing_that_two_readers_read_differently_is_refused() {
        assert_eq!(framing("Content-Length: 5\r\n"), Ok(Framing::Length(5)));
        assert_eq!(framing("Content-Length: 5\r\nContent-Length: 5\r\n"), Ok(Framing::Length(5)));
        assert_eq!(framing("Transfer-Encoding: Chunked\r\n"), Ok(Framing::Chunked));
        for (fields, error) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", HeadError::TwoFramings),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", HeadError::Length),
            ("Content-Length: 5, 5\r\n", HeadError::Length),
            ("Content-Length: +5\r\n", HeadError::Length),
            ("Content-Length: -5\r\n", HeadError::Length),
            ("Content-Length: 0x5\r\n", HeadError::Length),
            ("Content-Length:\r\n", HeadError::Length),
            ("Content-Length: 99999999999999999999\r\n", HeadError::Length),
            ("Transfer-Encoding: gzip, chunked\r\n", HeadError::Coding),
            ("Transfer-Encoding: xchunked\r\n", HeadError::Coding),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", HeadError::Coding),
            ("Transfer-Encoding: identity\r\n", HeadError::Coding),
            ("Transfer-Encoding : chunked\r\n", HeadError::Field),
            ("Transfer-Encoding\t: chunked\r\n", HeadError::Field),
            ("Transfer-Encoding:\u{b}chunked\r\n", HeadError::Field),
            ("X: y\r\n Transfer-Encoding: chunked\r\n", HeadError::Field),
            ("X: y\r\n\tz\r\n", HeadError::Field),
            ("X: y\nTransfer-Encoding: chunked\r\n", HeadError::LineEnd),
            ("X: y\rTransfer-Encoding: chunked\r\n", HeadError::LineEnd),
            ("X: y\0z\r\n", HeadError::Field),
            ("no colon\r\n", HeadError::Field),
            (": empty\r\n", HeadError::Field),
        ] {
            assert_eq!(framing(fields), Err(error), "{fields:?}");
        }
        assert_eq!(
            whole("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap().framing(),
            Err(HeadError::Coding)
        );
    }

    #[test]
    fn first_lines_of_other_shapes_are_refused() {
        for line in [
            "GET /",
            "GET  / HTTP/1.1",
            "GET / HTTP/1.1 ",
            " GET / HTTP/1.1",
            "GET\t/ HTTP/1.1",
            "GET / HTTP/2.0",
            "GET / http/1.1",
            "G(T / HTTP/1.1",
            "GET /\u{1} HTTP/1.1",
            "GET /a b HTTP/1.1",
            "",
            "GET /é HTTP/1.1",
        ] {
            assert_eq!(whole(&format!("{line}\r\nHost: a.com\r\n\r\n")), Err(HeadError::FirstLine), "{line:?}");
        }
        assert_eq!(parse(b"GET / HTTP/1.1\nHost: a\n\n"), Err(HeadError::LineEnd));
        assert_eq!(parse(&[b'a'; MAX_HEAD]), Err(HeadError::TooLong));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(129));
        assert_eq!(whole(&many), Err(HeadError::TooLong));
    }

    #[test]
    fn there_is_exactly_one_host() {
        let host = |text: &str| whole(text).unwrap().host().map(|host| host.is_some());
        assert_eq!(host("GET / HTTP/1.1\r\n\r\n"), Err(HeadError::Host));
        assert_eq!(host("GET / HTTP/1.0\r\n\r\n"), Ok(false));
        assert_eq!(host("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n"), Err(HeadError::Host));
        assert!(host("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n").is_err());
        assert!(host("GET / HTTP/1.1\r\nHost:\r\n\r\n").is_err());
        assert!(host("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n").is_err());
    }

    #[test]
    fn what_concerns_one_hop_stays_behind() {
        let head = whole(
            "POST http://a.com/x HTTP/1.1\r\nHost: a.com\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n\
             Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nAccept: */*\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
        );
        let sent = String::from_utf8(head.unwrap().forwarded("/x", "a.com").unwrap()).unwrap();
        let wanted =
            "POST /x HTTP/1.1\r\nHost: a.com\r\naccept: */*\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        assert_eq!(sent, wanted);
    }

    #[test]
    fn a_connection_field_cannot_remove_what_frames_the_body() {
        for name in ["Host", "Content-Length", "Transfer-Encoding"] {
            let head = whole(&format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: x, {name}\r\n\r\n")).unwrap();
            assert_eq!(head.forwarded("/", "a"), Err(HeadError::Connection), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((head, _))) = parse(&bytes) {
                let _ = (head.host(), head.framing(), head.forwarded("/", "a"));
            }
        }

        #[test]
        fn what_is_forwarded_is_read_back_with_the_same_framing(
            fields in prop::collection::vec("(content-length|Content-Length|Transfer-Encoding|x-a|connection|te): (chunked|[0-9]{1,3}|close|x-a)", 0..5),
        ) {
            let text = format!("POST / HTTP/1.1\r\nHost: a.com\r\n{}\r\n", fields.iter().map(|f| format!("{f}\r\n")).collect::<String>());
            let head = whole(&text).unwrap();
            if let Ok(sent) = head.forwarded("/", "a.com") {
                let (again, len) = parse(&sent).unwrap().unwrap();
                prop_assert_eq!(len, sent.len());
                prop_assert_eq!(again.framing(), head.framing());
            }
        }

        #[test]
        fn a_prefix_of_a_good_head_wants_more(cut in 0_usize..60) {
            let text = b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nA: b\r\n\r\n";
            let cut = cut.min(text.len() - 1);
            prop_assert_eq!(parse(&text[..cut]), Ok(None));
            let at_once = parse(text);
            prop_assert_eq!(parse_more(text, cut), at_once);
        }
    }
}
