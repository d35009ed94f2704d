//! A TLS hello behind something else: after STARTTLS, Postgres' SSLRequest and the like. Hosted databases and mail servers choose
//! by its name whom they serve, so it is held to the same as a first one.
//!
//! A client waits for the server's word before it begins with TLS, so its hello is at the beginning of a piece: nothing else is
//! looked at of what may be gigabytes. Behind other bytes of one piece it is looked for among the first bytes of a connection
//! alone (a request of fixed length may have the hello at its heels). After that a server which takes what came before its word
//! reads it as part of the old protocol.

use std::{io, ops::ControlFlow};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};

use crate::{
    decision::Reason,
    gate::{MOST, check_server_name, refused},
    gateway::{Flow, Gateway},
    relay::Activity,
    tls::{self, Hello},
};

/// A hello that has begun.
pub(crate) struct LateHello {
    /// From its first byte on.
    bytes: Vec<u8>,
    /// So many of them the server has already. They have no name in them.
    sent: usize,
}

impl LateHello {
    /// Behind other bytes, where one is there that can be read.
    pub(crate) fn find(bytes: &[u8]) -> Option<usize> {
        (1..bytes.len()).find(|at| {
            let rest = &bytes[*at..];
            tls::begins_hello(rest) == Some(true) && tls::client_hello(rest) != Hello::Malformed
        })
    }

    pub(crate) fn unsent(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0 }
    }

    /// What of it, and what behind it, is still to be sent, once its name is found to be in order.
    pub(crate) async fn judge(
        mut self,
        gateway: &Gateway,
        flow: &Flow,
        from: &mut (impl AsyncRead + Unpin),
        activity: &Activity,
    ) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let whole = async {
            loop {
                match tls::client_hello(&self.bytes) {
                    Hello::Whole(name, len) => return Ok(Some((name, len))),
                    Hello::More if self.bytes.len() <= MOST => {}
                    Hello::More | Hello::Malformed => return Ok(None),
                }
                if from.read_buf(&mut self.bytes).await? == 0 {
                    return io::Result::Ok(None);
                }
                activity.note();
            }
        };
        let whole = timeout(gateway.limits.handshake, whole).await.unwrap_or(Ok(None))?;
        let Some((name, len)) = whole else { return Err(refused(gateway, flow, Reason::Unreadable)) };
        check_server_name(gateway, flow, name)?;
        let behind = self.bytes.split_off(len);
        Ok((self.bytes.split_off(self.sent), behind))
    }
}

/// Watches what a guest sends. What it has seen of a hello that comes in very small pieces is passed on meanwhile: a protocol
/// whose client sends the same bytes and then waits for an answer would wait for ever.
pub(crate) struct HelloWatch {
    /// The last bytes, where a hello can have begun with them.
    begun: Vec<u8>,
}

impl HelloWatch {
    /// These bytes were sent, and no hello is in them.
    pub(crate) fn after(bytes: &[u8]) -> Self {
        let tail = &bytes[bytes.len().saturating_sub(tls::HELLO_BEGIN - 1)..];
        let begun = (0..tail.len()).map(|at| &tail[at..]).find(|rest| tls::begins_hello(rest).is_none());
        Self { begun: begun.unwrap_or_default().to_vec() }
    }

    /// Breaks before a piece with which a hello has surely begun.
    pub(crate) fn look(&mut self, piece: &[u8]) -> ControlFlow<LateHello> {
        let sent = self.begun.len();
        if sent == 0 && tls::begins_hello(piece) == Some(false) {
            return ControlFlow::Continue(()); // nearly all that is ever sent
        }
        let mut window = std::mem::take(&mut self.begun);
        window.extend_from_slice(&piece[..piece.len().min(tls::HELLO_BEGIN)]);
        for start in 0..=sent {
            match tls::begins_hello(&window[start..]) {
                Some(true) => {
                    let bytes = [&window[start..sent], piece].concat();
                    return ControlFlow::Break(LateHello { bytes, sent: sent - start });
                }
                Some(false) => {}
                None => {
                    self.begun = window.split_off(start);
                    break;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a hello that has begun, and no more.
    const HELLO: [u8; 9] = [22, 3, 1, 0, 90, 1, 0, 0, 86];

    /// What is held of these pieces, and how much of it was passed on.
    fn held(pieces: &[&[u8]]) -> Option<(Vec<u8>, usize)> {
        let (first, pieces) = pieces.split_first().unwrap();
        let mut watch = HelloWatch::after(first);
        pieces.iter().find_map(|piece| match watch.look(piece) {
            ControlFlow::Break(LateHello { bytes, sent }) => Some((bytes, sent)),
            ControlFlow::Continue(()) => None,
        })
    }

    #[test]
    fn a_hello_at_the_beginning_of_a_piece_is_held_however_it_is_cut() {
        assert_eq!(held(&[b"EHLO me\r\n", b"STARTTLS\r\n", &HELLO]), Some((HELLO.to_vec(), 0)));
        for cut in 1..tls::HELLO_BEGIN {
            let (begin, rest) = HELLO.split_at(cut);
            let whole = Some((HELLO.to_vec(), cut));
            assert_eq!(held(&[b"x", begin, rest]), whole, "{cut}");
            assert_eq!(held(&[&[b"SSLRequest", begin].concat(), rest]), whole, "{cut} with what comes before it");
            assert_eq!(held(&[b"x", b"\x16", begin, rest]), whole, "{cut} behind what only looked like one");
            assert_eq!(held(&[b"x", begin, b"", b"xxxx", &HELLO]), Some((HELLO.to_vec(), 0)), "{cut} and another one");
        }
        let bytes: Vec<&[u8]> = HELLO.chunks(1).collect();
        assert_eq!(held(&bytes), Some((HELLO[..tls::HELLO_BEGIN].to_vec(), tls::HELLO_BEGIN - 1)));
    }

    #[test]
    fn what_is_no_hello_is_never_held() {
        for piece in [&b""[..], b"\x16", b"\x16\x03\x01\x00", b"\x16\x03\x01\x00\x05\x02\0\0\0", b"\x17\x03\x03\0\x05"]
        {
            assert_eq!(held(&[b"x", piece, b"abc", piece]), None, "{piece:?}");
        }
    }
}
