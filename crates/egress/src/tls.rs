//! The server name in a TLS ClientHello, read without a TLS library and without trust.
//!
//! A hello may come in many records and many segments. What is no well-formed hello is [`Hello::Malformed`] and never "no
//! name": a server that is more tolerant than this reader would find the name that this reader missed.

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// So far it can still become one.
    More,
    Malformed,
    /// The server name as it stands there, if it has one.
    Whole(Option<Vec<u8>>),
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const RECORD: usize = 16 * 1024;

/// Do these first bytes belong to TLS? One byte is enough to think so. Records of other types count: a server may skip an
/// alert that comes before the hello.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=24] | [20..=24, 3, ..])
}

pub(crate) fn client_hello(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        if let Some(hello) = whole(&message) {
            return hello;
        }
        match record(rest) {
            Ok(Some((fragment, after))) => {
                message.extend_from_slice(fragment);
                rest = after;
            }
            Ok(None) => return Hello::More,
            Err(Malformed) => return Hello::Malformed,
        }
    }
}

#[derive(Debug)]
struct Malformed;

/// The fragment that the next record carries, and what follows that record.
type Record<'a> = (&'a [u8], &'a [u8]);

fn record(bytes: &[u8]) -> Result<Option<Record<'_>>, Malformed> {
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

fn whole(message: &[u8]) -> Option<Hello> {
    let [kind, a, b, c, body @ ..] = message else { return None };
    let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
    if *kind != CLIENT_HELLO || len > RECORD {
        return Some(Hello::Malformed);
    }
    let body = body.get(..len)?;
    Some(server_name(&mut Reader(body)).map_or(Hello::Malformed, Hello::Whole))
}

fn server_name(hello: &mut Reader<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    hello.take(2 + 32)?; // version, random
    let session = hello.vector8()?;
    let ciphers = hello.vector16()?;
    let compressions = hello.vector8()?;
    if session.len() > 32 || ciphers.is_empty() || ciphers.len() % 2 != 0 || compressions.is_empty() {
        return Err(Malformed);
    }
    if hello.0.is_empty() {
        return Ok(None);
    }
    let mut extensions = Reader(hello.vector16()?);
    hello.end()?;
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let body = extensions.vector16()?;
        // The first one or the last one? Servers differ, so two are malformed.
        if kind == SERVER_NAME && name.replace(host_name(body)?).is_some() {
            return Err(Malformed);
        }
    }
    Ok(name)
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

    fn read(extensions: &[u8]) -> Hello {
        client_hello(&records(&message(extensions), RECORD))
    }

    #[test]
    fn the_name_is_found_among_other_extensions() {
        let extensions = [extension(43, &[2, 3, 4]), sni(b"example.com"), extension(0xfe0d, &[0; 40])].concat();
        assert_eq!(read(&extensions), Hello::Whole(Some(b"example.com".to_vec())));
        assert_eq!(read(&extension(43, &[2, 3, 4])), Hello::Whole(None));
    }

    #[test]
    fn two_names_of_either_kind_are_malformed() {
        assert_eq!(read(&[sni(b"a.com"), sni(b"b.com")].concat()), Hello::Malformed);
        let pair = [&[HOST_NAME][..], &vector16(b"a.com"), &[HOST_NAME], &vector16(b"b.com")].concat();
        assert_eq!(read(&extension(SERVER_NAME, &vector16(&pair))), Hello::Malformed);
        assert_eq!(read(&sni(b"")), Hello::Malformed);
        assert_eq!(read(&extension(SERVER_NAME, &[])), Hello::Malformed);
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

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            client_hello(&bytes);
            client_hello(&[&[HANDSHAKE, 3, 1, 2, 0, CLIENT_HELLO, 0, 1, 0xfc, 3, 3][..], &bytes].concat());
        }

        #[test]
        fn a_hello_in_any_pieces_has_its_name_and_every_prefix_wants_more(size in 1_usize..300, cut in 0_usize..400) {
            let bytes = records(&message(&sni(b"www.example.com")), size);
            prop_assert_eq!(client_hello(&bytes), Hello::Whole(Some(b"www.example.com".to_vec())));
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
