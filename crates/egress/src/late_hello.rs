//! A TLS hello behind something else: after STARTTLS, Postgres' SSLRequest and the like. Hosted databases and mail servers choose
//! by its name whom they serve, so it is held to the same as a first one.
//!
//! The guest decides what it sends in one piece, and a server may read a request for TLS by its length and leave the hello behind it
//! in its socket. So a hello is looked for at every place of all that is sent. Few bytes begin one, and they occur by chance in what
//! is encrypted otherwise (SSH). Behind other bytes of a piece it also has to be framed as a hello, which nothing is by chance.

use std::{borrow::Cow, io, ops::ControlFlow};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};

use crate::{
    decision::Reason,
    gate::{MOST, check_hello, refused},
    gateway::{Flow, Gateway},
    relay::Activity,
    tls::{self, ClientHello, Hello},
};

/// A hello that has begun, as it seems.
pub(crate) struct LateHello {
    /// What came before it in the same piece: it is passed on at once.
    pub(crate) before: Vec<u8>,
    /// From its first byte on.
    bytes: Vec<u8>,
    /// So many of them the server has already. They have no name in them.
    sent: usize,
    /// Whether a piece begins with it: a client that waited for the server's word sends it so.
    leads: bool,
}

/// What a hello turned out to be.
pub(crate) enum Judged {
    /// It is in order. What of it, and what behind it, is still to be sent; and what to look for there, where the server takes
    /// it for something else.
    InOrder { hello: Vec<u8>, watch: HelloWatch, behind: Vec<u8> },
    /// It only looked like one.
    None(NoHello),
}

/// What looked like a hello.
pub(crate) struct NoHello {
    bytes: Vec<u8>,
    sent: usize,
}

impl LateHello {
    /// Waits for all of it.
    pub(crate) async fn judge(
        mut self,
        gateway: &Gateway,
        flow: &Flow,
        from: &mut (impl AsyncRead + Unpin),
        activity: &Activity,
    ) -> io::Result<Judged> {
        let whole = async {
            loop {
                match (self.is_framed(), tls::client_hello(&self.bytes)) {
                    (Some(false), _) => return Ok(Found::NoHello),
                    (_, Hello::Whole(hello, len)) => {
                        let found = HelloWatch::behind(&self.bytes[..len]).map(|watch| Found::Whole(hello, len, watch));
                        return Ok(found.unwrap_or(Found::Unreadable));
                    }
                    (None, _) if self.bytes.len() <= MOST => {}
                    (Some(true), Hello::More) if self.bytes.len() <= MOST => {}
                    (Some(true) | None, Hello::More | Hello::Malformed) => return Ok(Found::Unreadable),
                }
                if from.read_buf(&mut self.bytes).await? == 0 {
                    // Nothing comes of what has no end.
                    return io::Result::Ok(if self.is_framed().is_some() { Found::Unreadable } else { Found::NoHello });
                }
                activity.note();
            }
        };
        match timeout(gateway.limits.handshake, whole).await.unwrap_or(Ok(Found::Unreadable))? {
            Found::Whole(hello, len, watch) => {
                check_hello(gateway, flow, &hello)?;
                let behind = self.bytes.split_off(len);
                Ok(Judged::InOrder { hello: self.bytes.split_off(self.sent), watch, behind })
            }
            Found::NoHello => Ok(Judged::None(NoHello { bytes: self.bytes, sent: self.sent })),
            Found::Unreadable => Err(refused(gateway, flow, Reason::Unreadable)),
        }
    }

    fn is_framed(&self) -> Option<bool> {
        if self.leads { Some(true) } else { tls::is_framed_as_hello(&self.bytes) }
    }
}

enum Found {
    Whole(ClientHello, usize, HelloWatch),
    NoHello,
    Unreadable,
}

/// Watches what a guest sends. What it has seen of a hello that comes in very small pieces is passed on meanwhile: a protocol
/// whose client sends the same bytes and then waits for an answer would wait for ever.
#[derive(Default)]
pub(crate) struct HelloWatch {
    /// The last bytes, where a hello can have begun with them.
    begun: Vec<u8>,
    /// Whether a piece began with them.
    leads: bool,
}

impl HelloWatch {
    /// Watches what comes behind a hello, with which another one can have begun. `None`: another one is inside of it, which a server for
    /// which the outer one is something else would take.
    pub(crate) fn behind(hello: &[u8]) -> Option<HelloWatch> {
        let mut begun = Vec::new();
        for at in 1..hello.len() {
            let rest = &hello[at..];
            let found = match tls::begins_hello(rest) {
                Some(true) => tls::is_framed_as_hello(rest),
                can_begin => can_begin,
            };
            match found {
                Some(true) => return None,
                None if begun.is_empty() => begun = rest.to_vec(),
                _ => {}
            }
        }
        Some(HelloWatch { begun, leads: false })
    }

    /// Breaks at a piece in which a hello has begun, as it seems.
    pub(crate) fn look(&mut self, piece: &[u8]) -> ControlFlow<LateHello> {
        let Self { begun, leads } = std::mem::take(self);
        let sent = begun.len();
        let window = if sent == 0 { Cow::Borrowed(piece) } else { Cow::Owned([&begun[..], piece].concat()) };
        self.find(&window, sent, 0, |at| at == sent || leads && at == 0)
    }

    /// Goes on behind the first byte of what looked like a hello. Gives what is to be sent now.
    pub(crate) fn go_on(&mut self, NoHello { bytes, sent }: NoHello) -> ControlFlow<LateHello, Vec<u8>> {
        match self.find(&bytes, sent, 1, |_| false) {
            ControlFlow::Break(hello) => ControlFlow::Break(hello),
            ControlFlow::Continue(()) => ControlFlow::Continue(bytes[sent..].to_vec()),
        }
    }

    /// From this place on. So many bytes of the window were sent; `leads` says where a piece begins.
    fn find(
        &mut self,
        window: &[u8],
        sent: usize,
        mut at: usize,
        leads: impl Fn(usize) -> bool,
    ) -> ControlFlow<LateHello> {
        while let Some(next) = window[at..].iter().position(|byte| *byte == tls::HELLO_FIRST) {
            at += next;
            let (rest, leads) = (&window[at..], leads(at));
            match tls::begins_hello(rest) {
                Some(true) if leads || tls::is_framed_as_hello(rest) != Some(false) => {
                    let before = window[sent.min(at)..at].to_vec();
                    let hello = LateHello { before, bytes: rest.to_vec(), sent: sent.saturating_sub(at), leads };
                    return ControlFlow::Break(hello);
                }
                Some(_) => {}
                None => {
                    *self = Self { begun: rest.to_vec(), leads }; // and whatever begins in it
                    break;
                }
            }
            at += 1;
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a hello that has begun, and no more.
    const HELLO: [u8; 9] = [22, 3, 1, 0, 90, 1, 0, 0, 86];

    /// What came before it in its piece, what is held, and how much of that was passed on.
    type Held = (Vec<u8>, Vec<u8>, usize);

    fn held(pieces: &[&[u8]]) -> Option<Held> {
        let mut watch = HelloWatch::default();
        pieces.iter().find_map(|piece| match watch.look(piece) {
            ControlFlow::Break(LateHello { before, bytes, sent, .. }) => Some((before, bytes, sent)),
            ControlFlow::Continue(()) => None,
        })
    }

    fn whole(before: &[u8], sent: usize) -> Option<Held> {
        Some((before.to_vec(), HELLO.to_vec(), sent))
    }

    #[test]
    fn a_hello_at_the_beginning_of_a_piece_is_held_however_it_is_cut() {
        assert_eq!(held(&[b"EHLO me\r\n", b"STARTTLS\r\n", &HELLO]), whole(b"", 0));
        for cut in 1..7 {
            let (begin, rest) = HELLO.split_at(cut);
            assert_eq!(held(&[b"x", begin, rest]), whole(b"", cut), "{cut}");
            let glued = [b"SSLRequest", begin].concat();
            assert_eq!(held(&[&glued, rest]), whole(b"", cut), "{cut} with what comes before it");
            assert_eq!(held(&[b"x", b"\x16", begin, rest]), whole(b"", cut), "{cut} behind what only looked like one");
            assert_eq!(held(&[b"x", begin, b"", b"xxxx", &HELLO]), whole(b"", 0), "{cut} and another one");
        }
        let bytes: Vec<&[u8]> = HELLO.chunks(1).collect();
        assert_eq!(held(&bytes), Some((Vec::new(), HELLO[..7].to_vec(), 6)));
    }

    #[test]
    fn a_hello_behind_other_bytes_of_any_piece_is_held() {
        for pieces in 0..3 {
            let glued = [b"STARTTLS\r\n", &HELLO[..]].concat();
            let pieces: Vec<&[u8]> = [&b"EHLO me\r\n"[..]].repeat(pieces).into_iter().chain([&glued[..]]).collect();
            assert_eq!(held(&pieces), whole(b"STARTTLS\r\n", 0));
        }
        assert_eq!(held(&[b"x\x16", &[b"x\x16\x03", &HELLO[..]].concat()]), whole(b"x\x16\x03", 0));
    }

    #[test]
    fn a_hello_that_begins_inside_of_another_one_is_found_wherever_that_ends() {
        // The outer one says nothing of itself here: any bytes will do.
        let inner = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
        for end in 1..inner.len() {
            let outer = [&[22, 9, 9][..], &inner[..end]].concat();
            match HelloWatch::behind(&outer) {
                None => assert!(end >= 46, "{end}: what is there decides nothing"),
                Some(mut watch) => {
                    let ControlFlow::Break(hello) = watch.look(&inner[end..]) else { panic!("{end}: it is missed") };
                    assert_eq!((hello.bytes, hello.sent), (inner.clone(), end));
                }
            }
        }
        let malformed = [&[22, 3, 1, 0, 48, 1, 0, 0, 44], &inner[9..], &[0, 5, 9]].concat();
        assert_eq!(tls::client_hello(&malformed), Hello::Malformed, "the control: of which servers differ");
        assert!(HelloWatch::behind(&[&[22, 9, 9][..], &malformed].concat()).is_none());
        assert!(HelloWatch::behind(b"\x16\x03\x01 and nothing more \x16 \x16\x03").is_some());
    }

    #[test]
    fn what_is_no_hello_is_never_held() {
        for piece in [&b""[..], b"\x16", b"\x16\x03\x01\x00", b"\x16\x03\x01\x00\x05\x02\0\0\0", b"\x17\x03\x03\0\x05"]
        {
            assert_eq!(held(&[b"x", piece, b"abc", piece]), None, "{piece:?}");
        }
        let chance = [&HELLO[..5], &[1, 0, 0, 200], &[7; 200]].concat();
        assert_eq!(held(&[&[b"x", &chance[..]].concat()]), None, "not framed as one");
    }

    #[test]
    fn what_only_looked_like_a_hello_is_passed_on_and_what_comes_behind_it_is_looked_at() {
        for sent in 0..4 {
            let bytes = [&b"\x16\x03\x01\x16\x03"[..], &HELLO].concat();
            let ControlFlow::Break(hello) = HelloWatch::default().go_on(NoHello { bytes, sent }) else {
                panic!("it is not found")
            };
            assert_eq!((&hello.before[..], &hello.bytes[..]), (&b"\x16\x03\x01\x16\x03"[sent..], &HELLO[..]), "{sent}");
            let none = NoHello { bytes: b"\x16\x03 and so on".to_vec(), sent };
            let ControlFlow::Continue(unsent) = HelloWatch::default().go_on(none) else { panic!("{sent}: it is none") };
            assert_eq!(unsent, b"\x16\x03 and so on"[sent..]);
        }
    }
}
