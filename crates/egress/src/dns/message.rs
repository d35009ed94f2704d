//! DNS messages: the one question that a stub resolver asks, and the short answers that it gets.
//!
//! The reader follows no pointer and calls nothing recursively: a question needs no compression, so one that has it is
//! malformed. An answer repeats the question's bytes as they came (resolvers check their case) and always fits into 512.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::host::Name;

pub(crate) const A: u16 = 1;
pub(crate) const PTR: u16 = 12;
pub(crate) const AAAA: u16 = 28;
pub(crate) const IN: u16 = 1;
pub(crate) const HEADER: usize = 12;
pub(crate) const LONGEST_NAME: usize = 255;
/// Seconds. Short, since a new policy should be felt.
const TTL: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    NoError = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    id: [u8; 2],
    recursion_desired: bool,
    /// The question section as it came.
    raw: Vec<u8>,
    /// The labels joined by dots; `None` if a label holds what no host name does.
    pub name: Option<String>,
    pub kind: u16,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoQuestion {
    /// No answer: it is no query, and an answer to an answer would never end.
    Silence,
    Answer(Vec<u8>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Ptr(Name),
}

pub(crate) fn parse(message: &[u8]) -> Result<Question, NoQuestion> {
    let Some((header, body)) = message.split_first_chunk::<HEADER>() else { return Err(NoQuestion::Silence) };
    let [id0, id1, flags, ..] = *header;
    if flags & 0x80 != 0 {
        return Err(NoQuestion::Silence);
    }
    let mut question =
        Question { id: [id0, id1], recursion_desired: flags & 1 != 0, raw: Vec::new(), name: None, kind: 0 };
    if flags & 0x78 != 0 {
        return Err(NoQuestion::Answer(question.answer(Code::NotImplemented, &[])));
    }
    let one_question = header[4..6] == [0, 1] && header[6..10] == [0; 4];
    let Some((name, len)) = read_name(body).filter(|_| one_question) else {
        return Err(NoQuestion::Answer(question.answer(Code::Malformed, &[])));
    };
    let Some([kind0, kind1, class0, class1]) = body.get(len..len + 4) else {
        return Err(NoQuestion::Answer(question.answer(Code::Malformed, &[])));
    };
    question.raw = body[..len + 4].to_vec();
    question.name = name;
    question.kind = u16::from_be_bytes([*kind0, *kind1]);
    if u16::from_be_bytes([*class0, *class1]) != IN {
        return Err(NoQuestion::Answer(question.answer(Code::Refused, &[])));
    }
    Ok(question)
}

/// The name and its length on the wire.
fn read_name(body: &[u8]) -> Option<(Option<String>, usize)> {
    let mut labels = Vec::new();
    let mut at = 0;
    loop {
        let len = usize::from(*body.get(at)?);
        at += 1;
        if len == 0 {
            break;
        }
        // 64 and more are pointers and what never came to be.
        let label = body.get(at..at + len).filter(|_| len < 64)?;
        at += len;
        if at >= LONGEST_NAME {
            return None;
        }
        labels.push(label);
    }
    // A dot within a label would move the border between two: `a.b` as one label is no host name.
    let plain = |label: &&[u8]| label.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'.');
    let name = labels.iter().all(plain).then(|| {
        let labels: Vec<String> = labels.iter().map(|label| String::from_utf8_lossy(label).into_owned()).collect();
        labels.join(".")
    });
    Some((name, at))
}

impl Question {
    pub(crate) fn answer(&self, code: Code, records: &[Record]) -> Vec<u8> {
        let count = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes();
        let mut out = Vec::with_capacity(HEADER + self.raw.len() + 64);
        out.extend(self.id);
        // An answer, authoritative; recursion available.
        out.extend([0x84 | u8::from(self.recursion_desired), 0x80 | code as u8]);
        out.extend(count(usize::from(!self.raw.is_empty())));
        out.extend(count(records.len()));
        out.extend([0; 4]);
        out.extend(&self.raw);
        for record in records {
            let (kind, data) = match record {
                Record::A(v4) => (A, v4.octets().to_vec()),
                Record::Aaaa(v6) => (AAAA, v6.octets().to_vec()),
                Record::Ptr(name) => (PTR, wire_name(name)),
            };
            out.extend([0xc0, HEADER as u8]); // the question's name
            out.extend(kind.to_be_bytes());
            out.extend(IN.to_be_bytes());
            out.extend(TTL.to_be_bytes());
            out.extend(count(data.len()));
            out.extend(data);
        }
        out
    }

    /// The address that a question for a PTR record means.
    pub(crate) fn reversed(&self) -> Option<IpAddr> {
        let name = self.name.as_deref()?.to_ascii_lowercase();
        if let Some(front) = name.strip_suffix(".in-addr.arpa") {
            let octets: Vec<u8> = front.split('.').rev().map(|part| part.parse().ok()).collect::<Option<_>>()?;
            return Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?));
        }
        let nibbles = name.strip_suffix(".ip6.arpa")?.split('.').rev();
        let nibbles: Vec<u128> = nibbles
            .map(|nibble| u128::from_str_radix(nibble, 16).ok().filter(|_| nibble.len() == 1))
            .collect::<Option<_>>()?;
        let bits = nibbles.iter().try_fold(0_u128, |bits, nibble| Some((bits << 4) | nibble))?;
        (nibbles.len() == 32).then(|| Ipv6Addr::from_bits(bits).into())
    }
}

pub(crate) fn wire_name(name: &Name) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.as_str().len() + 2);
    for label in name.as_str().split('.') {
        out.push(u8::try_from(label.len()).unwrap_or(63));
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::Host;

    fn query(labels: &[&[u8]], kind: u16) -> Vec<u8> {
        let mut out = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            out.push(u8::try_from(label.len()).unwrap());
            out.extend(*label);
        }
        out.push(0);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out
    }

    fn code(error: Result<Question, NoQuestion>) -> u8 {
        match error {
            Err(NoQuestion::Answer(answer)) => answer[3] & 15,
            other => panic!("{other:?} is no refusal"),
        }
    }

    #[test]
    fn a_question_is_answered_in_its_own_bytes() {
        let asked = query(&[b"wWw", b"Example", b"com"], A);
        let question = parse(&asked).unwrap();
        assert_eq!((question.name.as_deref(), question.kind), (Some("wWw.Example.com"), A));
        let answer = question.answer(Code::NoError, &[Record::A(Ipv4Addr::new(198, 18, 1, 0))]);
        assert_eq!(&answer[..2], [0xab, 0xcd]);
        assert_eq!(answer[12..asked.len()], asked[12..]);
        assert_eq!(answer[asked.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 10, 0, 4, 198, 18, 1, 0]);
    }

    #[test]
    fn what_is_no_question_is_refused_or_not_answered() {
        let good = query(&[b"a", b"com"], A);
        let with = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            parse(&bad)
        };
        assert_eq!(parse(&good[..11]), Err(NoQuestion::Silence));
        assert_eq!(with(2, 0x81), Err(NoQuestion::Silence), "an answer");
        assert_eq!(code(with(2, 0x28)), 4, "an update");
        assert_eq!(code(with(5, 2)), 1, "two questions");
        assert_eq!(code(with(5, 0)), 1, "no question");
        assert_eq!(code(with(7, 1)), 1, "an answer section");
        assert_eq!(code(with(12, 0xc0)), 1, "a pointer");
        assert_eq!(code(with(12, 0x40)), 1, "a label of a kind that never came to be");
        assert_eq!(code(with(12, 60)), 1, "a label past the end");
        assert_eq!(code(parse(&good[..good.len() - 1])), 1, "cut off");
        let last = good.len() - 1;
        assert_eq!(code(with(last, 3)), 5, "the class of Chaosnet");
        assert_eq!(code(parse(&query(&[&[b'a'; 63][..]; 4], A))), 1, "longer than a name can be");
    }

    #[test]
    fn a_label_with_a_dot_or_a_control_byte_is_no_name() {
        assert_eq!(parse(&query(&[b"evil.com", b"x"], A)).unwrap().name, None);
        assert_eq!(parse(&query(&[b"a\0", b"com"], A)).unwrap().name, None);
        assert_eq!(parse(&query(&[b"\xff", b"com"], A)).unwrap().name, None);
        assert_eq!(parse(&query(&[], A)).unwrap().name.as_deref(), Some(""));
    }

    #[test]
    fn reversed_names_are_addresses() {
        let reversed = |name: &str| {
            let labels: Vec<&[u8]> = name.split('.').map(str::as_bytes).collect();
            parse(&query(&labels, PTR)).unwrap().reversed().map(|address| address.to_string())
        };
        assert_eq!(reversed("4.1.18.198.in-addr.arpa").as_deref(), Some("198.18.1.4"));
        let zeros = "0.".repeat(31);
        assert_eq!(reversed(&format!("1.{zeros}IP6.arpa")).as_deref(), Some("::1"));
        for bad in [
            "1.2.3.in-addr.arpa",
            "1.2.3.4.5.in-addr.arpa",
            "256.1.1.1.in-addr.arpa",
            "1.ip6.arpa",
            "a.com",
            "00.ip6.arpa",
        ] {
            assert_eq!(reversed(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes);
            let head = [0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            if let Ok(question) = parse(&[&head[..], &bytes].concat()) {
                let _ = question.reversed();
                let long = Host::parse(&["abcdefghi"; 25].join(".")).unwrap().name().unwrap().clone();
                let answer = question.answer(Code::NoError, &[Record::Ptr(long)]);
                prop_assert!(answer.len() <= 12 + 259 + 12 + 255);
            }
        }

        #[test]
        fn addresses_are_always_answered_within_512_bytes(labels in prop::collection::vec("[a-z]{1,63}", 1..5)) {
            let labels: Vec<&[u8]> = labels.iter().map(String::as_bytes).collect();
            if let Ok(question) = parse(&query(&labels, AAAA)) {
                let answer = question.answer(Code::NoError, &[Record::Aaaa(Ipv6Addr::LOCALHOST)]);
                prop_assert!(answer.len() <= 512);
                prop_assert_eq!(answer[3] & 15, 0);
            }
        }
    }
}
