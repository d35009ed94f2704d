//! The messages of a stub resolver: its question, and what a server says to it.
//!
//! Names are compared as they stand in a message, in lower case: so they need not be ones that a host may have. Where one is
//! compressed, each pointer must lead to before the place that the one before it led to, and there are not many of them.
//!
//! There is no EDNS: an answer of 512 bytes has room for more addresses than are used, and some servers know none.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use rustix::rand::{GetRandomFlags, getrandom};

use super::{MAX_ADDRESSES, NotFound};
use crate::{
    dns::message::{A, AAAA, Code, HEADER, IN, LONGEST_NAME, wire_name},
    host::Name,
};

const CNAME: u16 = 5;
const SOA: u16 = 6;
/// In an answer's flags.
const IS_ANSWER: u8 = 0x80;
const OPCODE: u8 = 0x78;
const TRUNCATED: u8 = 0x02;
const NO_ERROR: u8 = Code::NoError as u8;
const NO_SUCH_NAME: u8 = Code::NoSuchName as u8;
/// Labels and pointers of one name.
const MAX_PIECES: usize = 256;
/// Names that lead to one another in one answer.
const MAX_ALIASES: usize = 16;

/// A name as it stands in a message: labels with their lengths, in lower case, not compressed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WireName(Vec<u8>);

impl WireName {
    pub(super) fn of(name: &Name) -> Self {
        Self(wire_name(name))
    }
}

pub(super) struct Query {
    id: [u8; 2],
    name: WireName,
    kind: u16,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Whole(Result<Answer, NotFound>),
    /// It has no room in a datagram.
    Truncated,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Addresses(Vec<IpAddr>),
    /// The name stands for this one, whose addresses are not in the answer.
    Alias(WireName),
}

impl Query {
    pub(super) fn new(name: &WireName, kind: u16) -> io::Result<Self> {
        let mut id = [0; 2];
        getrandom(&mut id, GetRandomFlags::empty())?;
        Ok(Self { id, name: name.clone(), kind })
    }

    pub(super) fn message(&self) -> Vec<u8> {
        let header = [self.id[0], self.id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]; // recursion is desired, one question
        [&header[..], &self.name.0, &self.kind.to_be_bytes(), &IN.to_be_bytes()].concat()
    }

    /// `None`: it is no reply to this question, or malformed.
    pub(super) fn read(&self, message: &[u8]) -> Option<Reply> {
        let [id0, id1, flags, code, 0, 1, answers0, answers1, authorities0, authorities1, _, _] =
            *message.first_chunk::<HEADER>()?
        else {
            return None; // there is not one question in it
        };
        let mut reader = Reader { message, at: HEADER };
        let question = (reader.name()?, reader.number16()?, reader.number16()?);
        let is_ours = [id0, id1] == self.id && question == (self.name.clone(), self.kind, IN);
        if !is_ours || flags & (IS_ANSWER | OPCODE) != IS_ANSWER {
            return None;
        }
        match code & 15 {
            NO_ERROR if flags & TRUNCATED != 0 => return Some(Reply::Truncated),
            NO_ERROR => {}
            NO_SUCH_NAME => return Some(Reply::Whole(Err(NotFound::NoName))),
            _ => return Some(Reply::Whole(Err(NotFound::Failed))),
        }
        let mut records = Records::default();
        for _ in 0..u16::from_be_bytes([answers0, answers1]) {
            records.add(reader.record()?, self.kind)?;
        }
        let mut is_whole = false;
        for _ in 0..u16::from_be_bytes([authorities0, authorities1]) {
            is_whole |= reader.record()?.kind == SOA;
        }
        Some(Reply::Whole(records.answer(&self.name, is_whole)))
    }
}

/// What an answer's records say, in whatever order they came.
#[derive(Default)]
struct Records {
    aliases: HashMap<WireName, WireName>,
    addresses: HashMap<WireName, Vec<IpAddr>>,
}

impl Records {
    /// `None`: it is malformed. Those of other kinds are passed over.
    fn add(&mut self, record: Record<'_>, kind: u16) -> Option<()> {
        let address: IpAddr = match (record.kind, record.class) {
            (CNAME, IN) => {
                let mut data = record.data;
                let of = data.name().filter(|_| data.bytes().is_empty())?;
                self.aliases.insert(record.name, of);
                return Some(());
            }
            (A, IN) if kind == A => Ipv4Addr::from(<[u8; 4]>::try_from(record.data.bytes()).ok()?).into(),
            (AAAA, IN) if kind == AAAA => Ipv6Addr::from(<[u8; 16]>::try_from(record.data.bytes()).ok()?).into(),
            _ => return Some(()),
        };
        let known = self.addresses.entry(record.name).or_default();
        if known.len() < MAX_ADDRESSES {
            known.push(address);
        }
        Some(())
    }

    /// `is_whole`: the server knows that there is nothing more (RFC 2308).
    fn answer(mut self, asked: &WireName, is_whole: bool) -> Result<Answer, NotFound> {
        let mut name = asked.clone();
        for _ in 0..MAX_ALIASES {
            if let Some(addresses) = self.addresses.remove(&name) {
                return Ok(Answer::Addresses(addresses));
            }
            match self.aliases.remove(&name) {
                Some(of) => name = of,
                None => break,
            }
        }
        if is_whole || name == *asked { Err(NotFound::NoData) } else { Ok(Answer::Alias(name)) }
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

struct Record<'a> {
    name: WireName,
    kind: u16,
    class: u16,
    /// It ends where they do.
    data: Reader<'a>,
}

impl<'a> Reader<'a> {
    /// What is left.
    fn bytes(&self) -> &'a [u8] {
        &self.message[self.at..]
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.message.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn number16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn record(&mut self) -> Option<Record<'a>> {
        let name = self.name()?;
        let (kind, class) = (self.number16()?, self.number16()?);
        self.take(4)?; // how long it may be remembered
        let len = usize::from(self.number16()?);
        let at = self.at;
        self.take(len)?;
        Some(Record { name, kind, class, data: Reader { message: &self.message[..self.at], at } })
    }

    fn name(&mut self) -> Option<WireName> {
        let mut wire = Vec::new();
        // A copy of the reader follows the pointers.
        let (mut reader, mut end) = (*self, None);
        let mut earliest = self.at;
        for _ in 0..MAX_PIECES {
            match usize::from(reader.take(1)?[0]) {
                0 => {
                    wire.push(0);
                    self.at = end.unwrap_or(reader.at);
                    return Some(WireName(wire)).filter(|name| name.0.len() <= LONGEST_NAME);
                }
                len @ 1..64 => {
                    wire.push(len as u8);
                    wire.extend(reader.take(len)?.iter().map(u8::to_ascii_lowercase));
                }
                high @ 0xc0.. => {
                    let to = (high & 0x3f) << 8 | usize::from(reader.take(1)?[0]);
                    end.get_or_insert(reader.at);
                    if to >= earliest {
                        return None;
                    }
                    (reader.at, earliest) = (to, to);
                }
                _ => return None, // kinds of labels that never came to be
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V4: [u8; 4] = [93, 184, 216, 34];

    fn query(name: &str, kind: u16) -> Query {
        Query { id: [0xab, 0xcd], name: name_of(name), kind }
    }

    fn name_of(name: &str) -> WireName {
        let Ok(crate::Host::Name(name)) = crate::Host::parse(name) else { panic!("{name} is no name") };
        WireName::of(&name)
    }

    /// `owner` as it stands there: it may be compressed.
    fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
        let len = u16::try_from(data.len()).unwrap().to_be_bytes();
        [owner, &kind.to_be_bytes(), &[0, 1, 0, 0, 0, 9], &len, data].concat()
    }

    fn alias(owner: &str, of: &str) -> Vec<u8> {
        record(&name_of(owner).0, CNAME, &name_of(of).0)
    }

    fn message(query: &Query, answers: &[Vec<u8>], authorities: &[Vec<u8>]) -> Vec<u8> {
        let mut message = query.message();
        (message[2], message[3]) = (0x81, 0x80);
        message[7] = u8::try_from(answers.len()).unwrap();
        message[9] = u8::try_from(authorities.len()).unwrap();
        [&message[..], &answers.concat(), &authorities.concat()].concat()
    }

    fn read(query: &Query, answers: &[Vec<u8>], authorities: &[Vec<u8>]) -> Option<Reply> {
        query.read(&message(query, answers, authorities))
    }

    fn addresses(of: &[[u8; 4]]) -> Option<Reply> {
        let addresses = of.iter().map(|octets| IpAddr::from(*octets)).collect();
        Some(Reply::Whole(Ok(Answer::Addresses(addresses))))
    }

    #[test]
    fn addresses_of_the_name_and_of_what_it_stands_for_are_found_in_any_order() {
        let asked = query("www.example", A);
        let own = record(&[0xc0, 12], A, &V4);
        assert_eq!(read(&asked, &[own.clone(), own], &[]), addresses(&[V4, V4]));
        let mut chain = vec![alias("www.example", "a.example"), alias("a.example", "b.example")];
        chain.push(record(b"\x01B\x07eXample\0", A, &V4));
        assert_eq!(read(&asked, &chain, &[]), addresses(&[V4]));
        chain.reverse();
        assert_eq!(read(&asked, &chain, &[]), addresses(&[V4]));
    }

    #[test]
    fn a_compressed_alias_is_unwrapped() {
        let asked = query("www.example", A);
        // `cdn` and then the last label of the question, which begins behind its first: 12 + 4.
        let aliased = record(&[0xc0, 12], CNAME, &[3, b'c', b'd', b'n', 0xc0, 16]);
        assert_eq!(read(&asked, &[aliased], &[]), Some(Reply::Whole(Ok(Answer::Alias(name_of("cdn.example"))))));
    }

    #[test]
    fn records_of_other_names_kinds_and_classes_are_none_of_ours() {
        let asked = query("www.example", A);
        let mut of_chaos = record(&[0xc0, 12], A, &V4);
        of_chaos[5] = 3;
        let strangers = [record(&name_of("evil.example").0, A, &V4), record(&[0xc0, 12], AAAA, &[1; 16]), of_chaos];
        assert_eq!(read(&asked, &strangers, &[]), Some(Reply::Whole(Err(NotFound::NoData))));
    }

    #[test]
    fn an_alias_without_addresses_is_followed_unless_the_server_says_that_there_are_none() {
        let asked = query("www.example", AAAA);
        let aliases = [alias("www.example", "cdn.other")];
        assert_eq!(read(&asked, &aliases, &[]), Some(Reply::Whole(Ok(Answer::Alias(name_of("cdn.other"))))));
        let nothing_more = record(&name_of("other").0, SOA, &[0; 22]);
        assert_eq!(read(&asked, &aliases, &[nothing_more]), Some(Reply::Whole(Err(NotFound::NoData))));
    }

    #[test]
    fn aliases_that_lead_in_a_circle_or_on_and_on_have_an_end() {
        let asked = query("n0.example", A);
        let circle = [alias("n0.example", "n1.example"), alias("n1.example", "n0.example")];
        assert_eq!(read(&asked, &circle, &[]), Some(Reply::Whole(Err(NotFound::NoData))));
        let long: Vec<_> = (0..99).map(|n| alias(&format!("n{n}.example"), &format!("n{}.example", n + 1))).collect();
        let last = Answer::Alias(name_of(&format!("n{MAX_ALIASES}.example")));
        assert_eq!(read(&asked, &long, &[]), Some(Reply::Whole(Ok(last))));
    }

    #[test]
    fn codes_are_told_apart() {
        let asked = query("www.example", A);
        let with = |at: usize, value: u8| {
            let mut message = message(&asked, &[], &[]);
            message[at] = value;
            asked.read(&message)
        };
        assert_eq!(with(3, 0x83), Some(Reply::Whole(Err(NotFound::NoName))));
        for code in [1, 2, 4, 5, 9, 15] {
            assert_eq!(with(3, 0x80 | code), Some(Reply::Whole(Err(NotFound::Failed))), "{code}");
        }
        assert_eq!(with(2, 0x83), Some(Reply::Truncated));
    }

    #[test]
    fn what_answers_something_else_is_no_reply() {
        let asked = query("www.example", A);
        let good = message(&asked, &[record(&[0xc0, 12], A, &V4)], &[]);
        assert_eq!(asked.read(&good), addresses(&[V4]), "the control");
        let with = |at: usize, value: u8| {
            let mut message = good.clone();
            message[at] = value;
            asked.read(&message)
        };
        assert_eq!(with(0, 0), None, "another id");
        assert_eq!(with(2, 0x01), None, "a question");
        assert_eq!(with(2, 0x89), None, "to another kind of question");
        assert_eq!(with(5, 2), None, "two questions");
        assert_eq!(with(13, b'W'), addresses(&[V4]), "the case of a letter does not matter");
        assert_eq!(with(13, b'v'), None, "another name");
        assert_eq!(with(26, 28), None, "another type");
        assert_eq!(with(28, 3), None, "another class");
        assert_eq!(with(7, 2), None, "fewer records than it says");
        assert!((0..good.len()).all(|end| asked.read(&good[..end]).is_none()), "cut off");
    }

    #[test]
    fn a_pointer_that_leads_on_or_in_a_circle_is_malformed() {
        let asked = query("www.example", A);
        let at = u8::try_from(asked.message().len()).unwrap();
        for owner in [[0xc0, at], [0xc0, at + 2], [0xff, 0xff], [0x80, 12], [0x40, 0]] {
            assert_eq!(read(&asked, &[record(&owner, A, &V4)], &[]), None, "{owner:?}");
        }
        // The data of the first record point to its own name, which points to them.
        let circle = [&[1, b'a', 0xc0, at + 14][..], &[0, 5, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, at]].concat();
        assert_eq!(read(&asked, &[circle], &[]), None);
    }

    #[test]
    fn a_name_is_no_longer_than_a_name_can_be() {
        let asked = query("a.example", A);
        let labels = |count: usize| [[1, b'a'].repeat(count), vec![0]].concat();
        assert!(read(&asked, &[record(&labels(127), A, &V4)], &[]).is_some());
        assert_eq!(read(&asked, &[record(&labels(128), A, &V4)], &[]), None);
    }

    #[test]
    fn of_very_many_addresses_some_are_used() {
        let asked = query("a.example", A);
        let many = vec![record(&[0xc0, 12], A, &V4); 200];
        assert_eq!(read(&asked, &many, &[]), addresses(&[V4; MAX_ADDRESSES]));
    }

    #[test]
    fn ids_are_drawn() {
        let name = name_of("a.example");
        let ids: Vec<[u8; 2]> = (0..100).map(|_| Query::new(&name, A).unwrap().id).collect();
        assert!(ids.iter().any(|id| *id != ids[0]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let asked = query("a.example", AAAA);
            asked.read(&bytes);
            let head = message(&asked, &[], &[]);
            for counts in [[0, 1, 0, 0], [0, 9, 0, 9], [0xff; 4]] {
                let mut message = [&head[..], &bytes].concat();
                message[6..10].copy_from_slice(&counts);
                if let Some(Reply::Whole(Ok(Answer::Addresses(found)))) = asked.read(&message) {
                    prop_assert!(found.len() <= MAX_ADDRESSES && found.iter().all(IpAddr::is_ipv6));
                }
            }
        }

        #[test]
        fn a_changed_reply_is_read_without_panic(at: prop::sample::Index, value: u8, more: prop::sample::Index) {
            let asked = query("www.example", A);
            let aliases = [record(&[0xc0, 12], CNAME, &[1, b'a', 0xc0, 16]), record(&[0xc0, 41], A, &V4)];
            let mut changed = message(&asked, &aliases, &[record(&[0xc0, 16], SOA, &[0; 22])]);
            prop_assert_eq!(asked.read(&changed), addresses(&[V4]));
            let (at, more) = (at.index(changed.len()), more.index(changed.len()));
            (changed[at], changed[more]) = (value, value.rotate_left(3));
            asked.read(&changed);
        }

        #[test]
        fn a_chain_of_aliases_leads_to_its_addresses(
            labels in prop::collection::hash_set("[a-z]{1,9}", 2..10), shuffled in any::<prop::sample::Index>(),
        ) {
            let names: Vec<String> = labels.iter().map(|label| format!("{label}.example")).collect();
            let mut records: Vec<Vec<u8>> = names.windows(2).map(|pair| alias(&pair[0], &pair[1])).collect();
            records.push(record(&name_of(&names[names.len() - 1]).0, A, &V4));
            let by = shuffled.index(records.len());
            records.rotate_left(by);
            prop_assert_eq!(read(&query(&names[0], A), &records, &[]), addresses(&[V4]));
        }
    }
}
