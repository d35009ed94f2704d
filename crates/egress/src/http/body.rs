//! The body of one request, and not a byte after it: what follows would be a second request that nobody checked.
//!
//! A chunked body is taken apart and put together anew, so that the server sees only the plainest form of it. Extensions
//! and trailers are dropped.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::{
    http::head::Framing,
    relay::{Activity, write},
};

const PIECE: usize = 16 * 1024;
const SIZE_LINE: usize = 256;
const TRAILERS: usize = 8192;

/// Sends the body; `already` is what was read behind the head.
pub(crate) async fn send(
    framing: Framing,
    already: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> io::Result<()> {
    let mut body = Body::new(framing);
    let mut out = Vec::new();
    body.feed(already, &mut out)?;
    let mut piece = vec![0; PIECE];
    loop {
        write(to, &out).await?;
        if body.is_done() {
            return Ok(());
        }
        let len = from.read(&mut piece).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        activity.note();
        out.clear();
        body.feed(&piece[..len], &mut out)?;
    }
}

pub(crate) enum Body {
    Length(u64),
    Size(Vec<u8>),
    Data(u64),
    DataEnd(Vec<u8>),
    Trailers { line: usize, total: usize, after_cr: bool },
    Done,
}

impl Body {
    pub(crate) fn new(framing: Framing) -> Body {
        match framing {
            Framing::None | Framing::Length(0) => Body::Done,
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Size(Vec::new()),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Body::Done)
    }

    pub(crate) fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        while !bytes.is_empty() && !self.is_done() {
            bytes = match self {
                Body::Length(left) | Body::Data(left) => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    let (data, rest) = bytes.split_at(len);
                    *left -= len as u64;
                    self.emit(data, out);
                    rest
                }
                _ => {
                    self.step(bytes[0], out)?;
                    &bytes[1..]
                }
            };
        }
        Ok(())
    }

    fn emit(&mut self, data: &[u8], out: &mut Vec<u8>) {
        match self {
            Body::Data(left) => {
                out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
                if *left == 0 {
                    *self = Body::DataEnd(Vec::new());
                }
            }
            Body::Length(left) => {
                out.extend_from_slice(data);
                if *left == 0 {
                    *self = Body::Done;
                }
            }
            _ => {}
        }
    }

    /// One byte of what is not data.
    fn step(&mut self, byte: u8, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Body::Size(line) => {
                line.push(byte);
                if line.ends_with(b"\n") {
                    *self = match chunk_size(line)? {
                        0 => Body::Trailers { line: 0, total: 0, after_cr: false },
                        size => Body::Data(size),
                    };
                } else if line.len() > SIZE_LINE {
                    return Err(malformed());
                }
            }
            Body::DataEnd(end) => {
                end.push(byte);
                match &end[..] {
                    b"\r" => {}
                    b"\r\n" => *self = Body::Size(Vec::new()),
                    _ => return Err(malformed()),
                }
            }
            Body::Trailers { line, total, after_cr } => {
                *total += 1;
                match (byte, *after_cr) {
                    (b'\n', true) if *line == 0 => {
                        out.extend_from_slice(b"0\r\n\r\n");
                        *self = Body::Done;
                    }
                    (b'\n', true) => (*line, *after_cr) = (0, false),
                    (b'\r', false) => *after_cr = true,
                    (b'\n', false) | (_, true) => return Err(malformed()),
                    _ if *total > TRAILERS => return Err(malformed()),
                    _ => *line += 1,
                }
            }
            Body::Length(_) | Body::Data(_) | Body::Done => {}
        }
        Ok(())
    }
}

/// `1a`, perhaps `;extension`, CR LF. No spaces, no sign, no prefix.
fn chunk_size(line: &[u8]) -> io::Result<u64> {
    let line = line.strip_suffix(b"\r\n").ok_or_else(malformed)?;
    let (digits, extension) = match line.iter().position(|byte| *byte == b';') {
        Some(at) => line.split_at(at),
        None => (line, &[][..]),
    };
    let plain = digits.iter().all(u8::is_ascii_hexdigit) && (1..=15).contains(&digits.len());
    if !plain || extension.contains(&b'\r') {
        return Err(malformed());
    }
    let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
    u64::from_str_radix(digits, 16).map_err(|_| malformed())
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the chunked body is malformed")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(framing: Framing, pieces: &[&[u8]]) -> Option<Vec<u8>> {
        let mut body = Body::new(framing);
        let mut out = Vec::new();
        for piece in pieces {
            body.feed(piece, &mut out).ok()?;
        }
        body.is_done().then_some(out)
    }

    #[test]
    fn nothing_behind_the_body_is_sent() {
        assert_eq!(sent(Framing::Length(3), &[b"abcGET / HTTP/1.1"]).unwrap(), b"abc");
        assert_eq!(sent(Framing::None, &[b"GET / HTTP/1.1"]).unwrap(), b"");
        assert_eq!(sent(Framing::Chunked, &[b"3\r\nabc\r\n0\r\n\r\nGET / "]).unwrap(), b"3\r\nabc\r\n0\r\n\r\n");
    }

    #[test]
    fn extensions_and_trailers_are_dropped() {
        let body = b"3;a=b\r\nabc\r\n0;x\r\nContent-Length: 9\r\nHost: evil\r\n\r\n";
        assert_eq!(sent(Framing::Chunked, &[body]).unwrap(), b"3\r\nabc\r\n0\r\n\r\n");
    }

    #[test]
    fn chunks_that_two_readers_read_differently_are_refused() {
        for body in [
            &b"3\nabc\r\n0\r\n\r\n"[..],
            b"0x3\r\nabc\r\n0\r\n\r\n",
            b" 3\r\nabc\r\n0\r\n\r\n",
            b"3 \r\nabc\r\n0\r\n\r\n",
            b"+3\r\nabc\r\n0\r\n\r\n",
            b"\r\n",
            b"3\r\nabcd\r\n0\r\n\r\n",
            b"3\r\nabc\n0\r\n\r\n",
            b"0\r\n\n",
            b"0\r\nX\n\r\n",
            b"fffffffffffffffff\r\n",
            b"3;a\rb\r\nabc\r\n0\r\n\r\n",
            b"0\r\nX\rY\r\n\r\n",
        ] {
            let mut out = Vec::new();
            assert!(Body::new(Framing::Chunked).feed(body, &mut out).is_err(), "{:?}", String::from_utf8_lossy(body));
        }
        let endless = [b"1;".to_vec(), vec![b'x'; 300]].concat();
        assert!(Body::new(Framing::Chunked).feed(&endless, &mut Vec::new()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Body::new(Framing::Chunked).feed(&bytes, &mut Vec::new());
        }

        #[test]
        fn a_body_in_any_pieces_is_the_same_body(
            data in prop::collection::vec(any::<u8>(), 1..200),
            chunk in 1_usize..50,
            piece in 1_usize..50,
        ) {
            let mut wire: Vec<u8> = data.chunks(chunk).flat_map(|c| [format!("{:X}\r\n", c.len()).as_bytes(), c, b"\r\n"].concat()).collect();
            wire.extend(b"0\r\n\r\n");
            let pieces: Vec<&[u8]> = wire.chunks(piece).collect();
            let out = sent(Framing::Chunked, &pieces).expect("a whole body");
            // What was sent is again a chunked body with the same data.
            let mut read: Vec<u8> = Vec::new();
            let mut rest = &out[..];
            loop {
                let line = rest.iter().position(|byte| *byte == b'\n').unwrap() + 1;
                let size = usize::try_from(chunk_size(&rest[..line]).unwrap()).unwrap();
                read.extend(&rest[line..line + size]);
                rest = &rest[line + size + 2..];
                if size == 0 { break; }
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(read, data);
        }
    }
}
