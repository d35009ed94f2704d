//! What a TLS ClientHello says in clear, its server name above all, read without a TLS library and without trust.
//!
//! A hello may come in many records and many segments. What is no well-formed hello is [`Hello::Malformed`] and never "no
//! name": a server that is more tolerant than this reader would find the name that this reader missed.
//!
//! A server may ask for a second hello (HelloRetryRequest), which comes in clear too and may name another host: so its
//! answer to the first one is read as well ([`answer`]).

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// So far it can still become one.
    More,
    Malformed,
    /// And how many bytes it takes.
    Whole(ClientHello, usize),
}

/// What a hello says in clear.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// As it stands there.
    pub(crate) server_name: Option<Vec<u8>>,
    /// Another hello is in it, encrypted (ECH), which may name another host; or it looks so: browsers send some random bytes in
    /// its place.
    pub(crate) has_encrypted: bool,
}

/// What a server says to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It asks for another hello.
    Retry,
    /// It goes on, or ends: no other hello is read in clear.
    Final,
    /// It speaks something else, and took the hello for that.
    NotTls,
}

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const HEARTBEAT: u8 = 24;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const HOST_NAME: u8 = 0;
const RECORD: usize = 16 * 1024;
/// What encryption may add to a record.
const EXPANSION: usize = 256;
/// The random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Do these first bytes belong to TLS? One byte is enough to think so: some servers look at no version of a first record. Records of
/// other types count: a server may skip an alert that comes before the hello.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=24, ..])
}

/// The first of three bytes of a hello's length: no server reads one that is longer.
const MAX_LENGTH_HIGH: u8 = 2;

/// What a hello begins with.
pub(crate) const HELLO_FIRST: u8 = HANDSHAKE;

/// Of a record: no server takes another one for TLS, and some take all of these.
const MAX_MAJOR: u8 = 15;

/// Do these bytes begin a client's hello, where anything else may stand as well? `None`: so far they can. Versions do not count:
/// some servers look at none.
pub(crate) fn begins_hello(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [HANDSHAKE, 0..=MAX_MAJOR, _, high, low, CLIENT_HELLO, message @ ..] => {
            match (usize::from(u16::from_be_bytes([*high, *low])), message) {
                (1, _) => Some(true), // the rest of it is in the next record
                (2..=RECORD, [length, ..]) => Some(*length <= MAX_LENGTH_HIGH),
                (2..=RECORD, []) => None,
                _ => Some(false),
            }
        }
        [] | [HANDSHAKE] => None,
        [HANDSHAKE, 0..=MAX_MAJOR, rest @ ..] if rest.len() < 4 => None,
        _ => Some(false),
    }
}

/// Whether what begins like a hello (see [`begins_hello`]) goes on like one: its message has the length of its record, or another record
/// follows; and what is before its extensions, in which servers differ, has room in it. `None`: that is not there yet. It
/// keeps off what begins so by chance.
pub(crate) fn is_framed_as_hello(bytes: &[u8]) -> Option<bool> {
    let [_, _, _, high, low, message @ ..] = bytes else { return None };
    let record = usize::from(u16::from_be_bytes([*high, *low]));
    let is_framed = match message {
        // What is left of the record may be the client's next message.
        [_, a, b, c, ..] if 4 + u32::from_be_bytes([0, *a, *b, *c]) as usize <= record => Some(true),
        [_] | [_, _] | [_, _, _] if message.len() < record => None,
        _ => message.get(record..).and_then(begins_any_record),
    };
    match is_framed {
        Some(true) => has_room_for_ciphers(bytes),
        decided => decided,
    }
}

fn begins_any_record(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [] | [CHANGE_CIPHER_SPEC..=HEARTBEAT] => None,
        [CHANGE_CIPHER_SPEC..=HEARTBEAT, 0..=MAX_MAJOR, ..] => Some(true),
        _ => Some(false),
    }
}

/// In the message that these records carry. What takes very many of them is taken for a hello, and refused where it is none: this is asked
/// at each place where one can begin.
fn has_room_for_ciphers(records: &[u8]) -> Option<bool> {
    const BEFORE_SESSION: usize = 4 + 2 + 32;
    const MOST_RECORDS: usize = 64;
    let mut message = Vec::new();
    let (mut rest, mut count) = (records, 0);
    loop {
        count += 1;
        if count > MOST_RECORDS {
            return Some(true);
        }
        if let [_, high, b, c, body @ ..] = &message[..] {
            let len = u32::from_be_bytes([0, *high, *b, *c]) as usize;
            if *high > MAX_LENGTH_HIGH {
                return Some(false);
            }
            let session = message.get(BEFORE_SESSION).map(|len| usize::from(*len));
            if let Some(session) = session
                && let Some([high, low]) = message.get(BEFORE_SESSION + 1 + session..BEFORE_SESSION + 3 + session)
            {
                let ciphers = usize::from(u16::from_be_bytes([*high, *low]));
                let before = BEFORE_SESSION - 4 + 1 + session + 2;
                return Some(ciphers > 0 && ciphers % 2 == 0 && before + ciphers < len);
            }
            if body.len() >= len {
                return Some(false);
            }
        }
        match begins_any_record(rest) {
            Some(true) => {}
            undecided => return undecided,
        }
        let [kind, _, _, high, low, after @ ..] = rest else { return None };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let (fragment, after) = after.split_at(len.min(after.len()));
        if *kind == HANDSHAKE {
            message.extend_from_slice(fragment);
        }
        rest = after;
    }
}

pub(crate) fn is_handshake(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE)
}

pub(crate) fn client_hello(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        if let Some(hello) = whole(&message, bytes.len() - rest.len()) {
            return hello;
        }
        match handshake_record(rest) {
            Ok(Some((fragment, after))) => {
                message.extend_from_slice(fragment);
                rest = after;
            }
            Ok(None) => return Hello::More,
            Err(Malformed) => return Hello::Malformed,
        }
    }
}

/// How many of these bytes of a client are whole records that a server skips while it waits for a second hello. `None` where
/// a record is of no known type.
pub(crate) fn skipped(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    loop {
        rest = match rest {
            [CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA, 3, _, high, low, after @ ..] => {
                let len = usize::from(u16::from_be_bytes([*high, *low]));
                match after.get(len..) {
                    Some(_) if len > RECORD + EXPANSION => return None,
                    Some(after) => after,
                    None => return Some(bytes.len() - rest.len()),
                }
            }
            [] | [CHANGE_CIPHER_SPEC..=APPLICATION_DATA] | [CHANGE_CIPHER_SPEC..=APPLICATION_DATA, 3, ..] => {
                return Some(bytes.len() - rest.len());
            }
            _ => return None,
        };
    }
}

/// What the first bytes of a server mean for the hello that it was sent, once they are enough. Alerts may come before.
pub(crate) fn answer(bytes: &[u8]) -> Option<Answer> {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        match message[..] {
            [SERVER_HELLO, _, _, _, _, _, ref random @ ..] if random.len() >= RETRY_RANDOM.len() => {
                return Some(if random.starts_with(&RETRY_RANDOM) { Answer::Retry } else { Answer::Final });
            }
            [] | [SERVER_HELLO, ..] => {}
            _ => return Some(Answer::NotTls),
        }
        rest = match rest {
            [kind @ (ALERT | HANDSHAKE), 3, _, high, low, after @ ..] => {
                let len = usize::from(u16::from_be_bytes([*high, *low]));
                let (fragment, after) = after.split_at(len.min(after.len()));
                if *kind == HANDSHAKE {
                    message.extend_from_slice(fragment);
                }
                after
            }
            [] | [ALERT | HANDSHAKE] | [ALERT | HANDSHAKE, 3, ..] => return None,
            _ => return Some(Answer::NotTls),
        };
    }
}

/// Leaves out what a server said before it spoke TLS.
pub(crate) fn skip_to_record(bytes: &mut Vec<u8>) {
    let is_one = |at: usize| matches!(bytes[at..], [ALERT | HANDSHAKE] | [ALERT | HANDSHAKE, 3, ..]);
    let start = (0..bytes.len()).find(|at| is_one(*at)).unwrap_or(bytes.len());
    bytes.drain(..start);
}

#[derive(Debug)]
struct Malformed;

/// The fragment that the next record carries, and what follows that record.
type Record<'a> = (&'a [u8], &'a [u8]);

fn handshake_record(bytes: &[u8]) -> Result<Option<Record<'_>>, Malformed> {
    let fits = |at: usize, good: &dyn Fn(u8) -> bool| bytes.get(at).is_none_or(|byte| good(*byte));
    if !fits(0, &|byte| byte == HANDSHAKE) || !fits(1, &|byte| byte == 3) {
        return Err(Malformed);
    }
    let [_, _, _, high, low, after @ ..] = bytes else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    if len == 0 || len > RECORD {
        return Err(Malformed);
    }
    Ok(after.split_at_checked(len))
}

/// The hello that the records up to `end` carry. It ends where a record does: in the rest of one could begin a second
/// hello, which a server may take for the answer to its retry.
fn whole(message: &[u8], end: usize) -> Option<Hello> {
    let [kind, a, b, c, body @ ..] = message else { return None };
    let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
    if *kind != CLIENT_HELLO || len > RECORD || body.len() > len {
        return Some(Hello::Malformed);
    }
    let body = body.get(..len)?;
    Some(read(&mut Reader(body)).map_or(Hello::Malformed, |hello| Hello::Whole(hello, end)))
}

fn read(hello: &mut Reader<'_>) -> Result<ClientHello, Malformed> {
    hello.take(2 + 32)?; // version, random
    let session = hello.vector8()?;
    let ciphers = hello.vector16()?;
    let compressions = hello.vector8()?;
    if session.len() > 32 || ciphers.is_empty() || ciphers.len() % 2 != 0 || compressions.is_empty() {
        return Err(Malformed);
    }
    let mut read = ClientHello { server_name: None, has_encrypted: false };
    if hello.0.is_empty() {
        return Ok(read);
    }
    let mut extensions = Reader(hello.vector16()?);
    hello.end()?;
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let body = extensions.vector16()?;
        // The first one or the last one? Servers differ, so two are malformed.
        if kind == SERVER_NAME && read.server_name.replace(host_name(body)?).is_some() {
            return Err(Malformed);
        }
        read.has_encrypted |= kind == ENCRYPTED_CLIENT_HELLO;
    }
    Ok(read)
}

fn host_name(extension: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut extension = Reader(extension);
    let mut list = Reader(extension.vector16()?);
    extension.end()?;
    let kind = list.take(1)?;
    let name = list.vector16()?;
    list.end()?; // one name: the standard knows no second
    if kind != [HOST_NAME] || name.is_empty() {
        return Err(Malformed);
    }
    Ok(name.to_vec())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn vector8(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.take(1)?[0];
        self.take(usize::from(len))
    }

    fn vector16(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.number16()?;
        self.take(usize::from(len))
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector16(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector16(body)].concat()
    }

    fn sni(name: &[u8]) -> Vec<u8> {
        extension(SERVER_NAME, &vector16(&[&[HOST_NAME][..], &vector16(name)].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(vector16(extensions));
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &len[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [&[HANDSHAKE, 3, 1][..], &vector16(part)].concat()).collect()
    }

    fn hello_with(extensions: &[u8]) -> Hello {
        client_hello(&records(&message(extensions), RECORD))
    }

    /// In so many bytes.
    fn whole(name: &[u8], len: usize) -> Hello {
        Hello::Whole(ClientHello { server_name: Some(name.to_vec()), has_encrypted: false }, len)
    }

    #[test]
    fn the_name_is_found_among_other_extensions() {
        let extensions = [extension(43, &[2, 3, 4]), sni(b"example.com"), extension(21, &[0; 40])].concat();
        let len = records(&message(&extensions), RECORD).len();
        assert_eq!(hello_with(&extensions), whole(b"example.com", len));
        let nameless = hello_with(&extension(43, &[2, 3, 4]));
        assert!(matches!(nameless, Hello::Whole(hello, _) if hello.server_name.is_none()));
    }

    #[test]
    fn an_encrypted_hello_is_seen_wherever_it_stands_and_whatever_is_in_it() {
        let has_encrypted = |extensions: &[Vec<u8>]| match hello_with(&extensions.concat()) {
            Hello::Whole(hello, _) => hello.has_encrypted,
            other => panic!("{other:?}"),
        };
        for inside in [&[][..], &[1], &[0; 300]] {
            let encrypted = extension(0xfe0d, inside);
            assert!(has_encrypted(std::slice::from_ref(&encrypted)));
            assert!(has_encrypted(&[encrypted.clone(), sni(b"example.com")]));
            assert!(has_encrypted(&[sni(b"example.com"), encrypted.clone(), encrypted, extension(43, &[2, 3, 4])]));
        }
        assert!(!has_encrypted(&[sni(b"example.com"), extension(43, &[0xfe, 0x0d, 0, 0])]));
    }

    #[test]
    fn two_names_of_either_kind_are_malformed() {
        assert_eq!(hello_with(&[sni(b"a.com"), sni(b"b.com")].concat()), Hello::Malformed);
        let pair = [&[HOST_NAME][..], &vector16(b"a.com"), &[HOST_NAME], &vector16(b"b.com")].concat();
        assert_eq!(hello_with(&extension(SERVER_NAME, &vector16(&pair))), Hello::Malformed);
        assert_eq!(hello_with(&sni(b"")), Hello::Malformed);
        assert_eq!(hello_with(&extension(SERVER_NAME, &[])), Hello::Malformed);
    }

    #[test]
    fn other_records_and_messages_are_malformed() {
        let hello = message(&sni(b"a.com"));
        let mut other = records(&hello, 50);
        other[55] = 23; // the second record is not of the handshake
        assert_eq!(client_hello(&other), Hello::Malformed);
        let after_alert = [&[21, 3, 1, 0, 2, 1, 0][..], &records(&hello, 9999)].concat();
        assert!(begins(&after_alert));
        assert_eq!(client_hello(&after_alert), Hello::Malformed);
        assert_eq!(client_hello(&[HANDSHAKE, 3, 1, 0, 0]), Hello::Malformed);
        assert_eq!(client_hello(&[HANDSHAKE, 3, 1, 0xff, 0xff]), Hello::Malformed);
        assert_eq!(client_hello(&records(&[2, 0, 0, 0], 9)), Hello::Malformed);
        assert_eq!(client_hello(&records(&[CLIENT_HELLO, 1, 0, 0], 9)), Hello::Malformed);
    }

    #[test]
    fn a_second_hello_in_the_record_of_the_first_is_malformed() {
        let hello = message(&sni(b"a.com"));
        let both = [&hello[..], &message(&sni(b"b.com"))].concat();
        assert_eq!(client_hello(&records(&both, RECORD)), Hello::Malformed);
        assert_eq!(client_hello(&records(&[&hello[..], &[1]].concat(), RECORD)), Hello::Malformed);
        let apart = [records(&hello, RECORD), records(&message(&sni(b"b.com")), RECORD)].concat();
        let first = records(&hello, RECORD).len();
        assert_eq!(client_hello(&apart), whole(b"a.com", first));
    }

    fn server_hello(random: &[u8; 32]) -> Vec<u8> {
        [&[SERVER_HELLO, 0, 0, 40, 3, 3][..], random, &[0, 0x13, 1, 0, 0, 0]].concat()
    }

    #[test]
    fn a_request_for_a_second_hello_is_known_in_any_pieces() {
        let alert = [ALERT, 3, 3, 0, 2, 1, 112];
        for (random, expected) in [(RETRY_RANDOM, Answer::Retry), ([7; 32], Answer::Final)] {
            for size in [1, 5, 37, RECORD] {
                let hello =
                    [&alert[..], &records(&server_hello(&random), size), &[CHANGE_CIPHER_SPEC, 3, 3, 0, 1, 1]].concat();
                assert_eq!(answer(&hello), Some(expected));
                let known = (0..hello.len()).find_map(|end| answer(&hello[..end]));
                assert_eq!(known, Some(expected), "a prefix says the same");
            }
        }
        for other in
            [&b"HTTP/1.1 400 Bad Request\r\n"[..], &[HANDSHAKE, 3, 3, 0, 4, 11, 0, 0, 0], &[CHANGE_CIPHER_SPEC]]
        {
            assert_eq!(answer(other), Some(Answer::NotTls));
        }
    }

    #[test]
    fn what_a_server_says_before_it_speaks_tls_is_left_out() {
        let hello = records(&server_hello(&RETRY_RANDOM), RECORD);
        for before in [&b""[..], b"S", b"220 go ahead\r\n", &[HANDSHAKE, b'x'], &[ALERT, ALERT]] {
            let mut bytes = [before, &hello].concat();
            skip_to_record(&mut bytes);
            assert_eq!(bytes, hello, "{before:?}");
        }
        let mut begun = [b'S', HANDSHAKE].to_vec();
        skip_to_record(&mut begun);
        assert_eq!(begun, [HANDSHAKE]);
    }

    #[test]
    fn only_whole_records_are_skipped_before_a_second_hello() {
        let change = [CHANGE_CIPHER_SPEC, 3, 3, 0, 1, 1];
        let data = [APPLICATION_DATA, 3, 3, 0, 2, 9, 9];
        let both = [&change[..], &data].concat();
        assert_eq!(skipped(&both), Some(13));
        assert_eq!(skipped(&[&both[..], &[HANDSHAKE, 3, 3, 0, 9]].concat()), Some(13));
        assert_eq!(skipped(&both[..12]), Some(6));
        assert_eq!(skipped(b"GET / HTTP/1.1"), None);
        assert_eq!(skipped(&[&change[..], &[99, 3]].concat()), None);
    }

    #[test]
    fn a_hello_is_known_by_its_first_bytes_and_nothing_else_is() {
        for size in [1, 2, 3, 4, 50, RECORD] {
            let hello = records(&message(&sni(b"a.com")), size);
            assert_eq!(begins_hello(&hello), Some(true), "records of {size}");
            let known = (0..=7).find_map(|end| begins_hello(&hello[..end]));
            assert_eq!(known, Some(true), "records of {size}");
        }
        for other in [&b"x"[..], &[HANDSHAKE, 16], &[HANDSHAKE, 3, 1, 0, 5, SERVER_HELLO], &[HANDSHAKE, 3, 1, 0, 0, 1]]
        {
            assert_eq!(begins_hello(other), Some(false), "{other:?}");
        }
        assert_eq!(begins_hello(&[HANDSHAKE, 3, 1, 0x41, 0, CLIENT_HELLO, 0]), Some(false), "no record is so long");
        assert_eq!(begins_hello(&[HANDSHAKE, 3, 1, 0, 90, CLIENT_HELLO, 9]), Some(false), "no hello is so long");
    }

    #[test]
    fn a_hello_is_framed_as_one_in_records_of_any_size_and_what_begins_so_by_chance_is_not() {
        for size in [1, 2, 3, 4, 5, 50, RECORD] {
            let hello = records(&message(&sni(b"a.com")), size);
            let told: Vec<_> = (6..=hello.len()).map(|end| is_framed_as_hello(&hello[..end])).collect();
            assert_eq!(told.last(), Some(&Some(true)), "records of {size}");
            assert!(!told.contains(&Some(false)), "records of {size}");
        }
        let with_another = [&[HANDSHAKE, 3, 1, 0, 200][..], &message(&sni(b"a.com")), &[16, 0, 0]].concat();
        assert_eq!(is_framed_as_hello(&with_another), Some(true));
        let parts = records(&message(&sni(b"a.com")), 4);
        let interrupted = [&parts[..9], &[ALERT, 3, 3, 0, 2, 1, 0], &parts[9..]].concat();
        assert_eq!(is_framed_as_hello(&interrupted), Some(true));
        assert_eq!(is_framed_as_hello(&[&parts[..18], b"STARTTLS\r\n"].concat()), Some(false), "it does not go on");
        let empty = [ALERT, 3, 3, 0, 0];
        let interrupted_often = [&parts[..9], &empty.repeat(100), &[0][..]].concat();
        assert_eq!(is_framed_as_hello(&interrupted_often), Some(true), "to follow all of them takes too long");
        let interrupted = [&parts[..9], &empty.repeat(10), &[0][..]].concat();
        assert_eq!(is_framed_as_hello(&interrupted), Some(false));
        let chance = [HANDSHAKE, 3, 1, 0, 4, CLIENT_HELLO, 0, 0, 90, 77];
        assert_eq!(is_framed_as_hello(&chance), Some(false));
        assert_eq!(is_framed_as_hello(&chance[..9]), None);
    }

    #[test]
    fn a_hello_is_known_by_what_some_server_reads_of_it() {
        let hello = message(&sni(b"a.com"));
        for major in 0..=MAX_MAJOR {
            let mut of_any_version = records(&hello, 20);
            of_any_version.chunks_mut(25).for_each(|record| record[1] = major);
            assert_eq!(begins_hello(&of_any_version), Some(true), "{major}");
            assert_eq!(is_framed_as_hello(&of_any_version), Some(true), "{major}");
            assert_eq!(client_hello(&of_any_version) == Hello::Malformed, major != 3, "refused, where it is found");
        }
        for session in [32_u8, 200] {
            let mut long = [&hello[..38], &[session], &vec![9; session.into()], &hello[39..]].concat();
            let len = u16::try_from(long.len() - 4).unwrap().to_be_bytes();
            long[2..4].copy_from_slice(&len);
            assert_eq!(is_framed_as_hello(&records(&long, RECORD)), Some(true), "a session of {session}");
        }
        let mut odd = hello.clone();
        odd[40] = 3;
        assert_eq!(is_framed_as_hello(&records(&odd, RECORD)), Some(false), "half a cipher");
        let mut many = hello;
        many[39] = 1;
        assert_eq!(is_framed_as_hello(&records(&many, RECORD)), Some(false), "ciphers without room");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            answer(&bytes);
            begins_hello(&bytes);
            is_framed_as_hello(&bytes);
            skipped(&bytes);
            client_hello(&bytes);
            client_hello(&[&[HANDSHAKE, 3, 1, 2, 0, CLIENT_HELLO, 0, 1, 0xfc, 3, 3][..], &bytes].concat());
        }

        #[test]
        fn a_hello_in_any_pieces_has_its_name_and_every_prefix_wants_more(size in 1_usize..300, cut in 0_usize..400) {
            let bytes = records(&message(&sni(b"www.example.com")), size);
            prop_assert_eq!(client_hello(&bytes), whole(b"www.example.com", bytes.len()));
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(client_hello(&bytes[..cut]), Hello::More);
        }

        #[test]
        fn a_flipped_byte_is_no_panic(at in 0_usize..90, value: u8) {
            let mut bytes = records(&message(&sni(b"www.example.com")), RECORD);
            let at = at % bytes.len();
            bytes[at] = value;
            client_hello(&bytes);
        }
    }
}
