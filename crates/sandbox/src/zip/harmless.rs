//! Names and links that mean the same below the directory where an archive is unpacked as they do in the sandbox, and nothing elsewhere.
//!
//! A guest chooses both. Programs that unpack take `\` for a separator on some systems and `C:` for a drive, and most make links as
//! they are: through one of them the next file, or a server of what was unpacked, is led out.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

/// The name in an archive. What an unpacker could take for another place, or a terminal for more than a name, is written as in a URL, and so
/// is a `%` that would read as such: two names stay two.
pub(super) fn name(bytes: &[u8]) -> Vec<u8> {
    let parts = bytes.split(|byte| *byte == b'/').map(part);
    parts.collect::<Vec<_>>().join(&b'/')
}

fn part(bytes: &[u8]) -> Vec<u8> {
    let mut part = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for (at, letter) in chunk.valid().char_indices() {
            let is_drive = letter == ':' && matches!(part[..], [b'a'..=b'z' | b'A'..=b'Z']);
            if is_drive || !is_harmless(letter) || is_escape(&chunk.valid().as_bytes()[at..]) {
                escape(letter, &mut part);
            } else {
                part.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        part.extend_from_slice(chunk.invalid());
    }
    part
}

fn is_escape(text: &[u8]) -> bool {
    matches!(text, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

fn escape(letter: char, into: &mut Vec<u8>) {
    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
        into.extend_from_slice(format!("%{byte:02X}").as_bytes());
    }
}

/// Not those that turn the direction of what follows, by which `exe.txt` is read as another ending.
fn is_harmless(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, '\\' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The links of an archive so far.
#[derive(Default)]
pub(super) struct Links {
    /// Of their folded names: a guest may have very many, and does not know the hasher.
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Links {
    /// Whether one more leads to nothing above the directory, wherever that is unpacked. Then it is one of them. Names are as they are written.
    pub(super) fn admit(&mut self, name: &[u8], text: &[u8]) -> bool {
        let folded = fold(name);
        let is_admitted = stays_below(name, text) && !(goes_up(text) && self.lies_behind_one(&folded));
        if is_admitted {
            self.hashes.insert(self.hasher.hash_one(&folded));
        }
        is_admitted
    }

    /// Whether a directory above it has the name of a link where names are compared less strictly: what is made in it is made behind that link.
    fn lies_behind_one(&self, folded: &[u8]) -> bool {
        let mut ends = folded.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        ends.any(|(end, _)| self.hashes.contains(&self.hasher.hash_one(&folded[..end])))
    }
}

/// A name as systems compare it that make no difference between cases, forms of Unicode, or with and without dots at the end. All parts that
/// are not ASCII by then are one: more is taken for the same than any system does.
fn fold(name: &[u8]) -> Vec<u8> {
    let parts = name.split(|byte| *byte == b'/').map(|part| {
        let letters = String::from_utf8_lossy(part).into_owned();
        let seen = letters.chars().filter(|letter| !is_ignored(*letter));
        let folded: String = seen.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
        let folded = folded.trim_end_matches(['.', ' ']);
        if folded.is_ascii() { folded.as_bytes().to_vec() } else { vec![0] }
    });
    parts.collect::<Vec<_>>().join(&b'/')
}

/// By file systems of Apple, in names.
fn is_ignored(letter: char) -> bool {
    matches!(letter, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}

/// Whether a link leads to something below the directory that is packed, if all directories above it are that. It may go up first, as far as
/// that, and then down: what goes up behind a name could do so from wherever that name, as a link, has led.
fn stays_below(name: &[u8], text: &[u8]) -> bool {
    let above = name.iter().filter(|byte| **byte == b'/').count();
    let parts: Vec<&[u8]> = parts(text).collect();
    let up = parts.iter().take_while(|part| **part == b"..").count();
    let is_relative = !matches!(text, [] | [b'/' | b'\\', ..] | [_, b':', ..]);
    is_relative && up <= above && !parts[up..].contains(&&b".."[..]) && !text.contains(&b'\\')
}

fn goes_up(text: &[u8]) -> bool {
    parts(text).any(|part| part == b"..")
}

fn parts(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_mean_other_places_elsewhere_are_written_otherwise() {
        for (inside, written) in [
            (&b"a/b.txt"[..], &b"a/b.txt"[..]),
            ("größe/\u{1f600}".as_bytes(), "größe/\u{1f600}".as_bytes()),
            (b"..\\..\\up", b"..%5C..%5Cup"),
            (b"C:\\Windows/x", b"C%3A%5CWindows/x"),
            (b"d/c:file", b"d/c%3Afile"),
            (b"12:30", b"12:30"),
            (b"100%/50%-off", b"100%/50%-off"),
            (b"a%09b", b"a%2509b"),
            (b"a\n\x1b[2Jb\x7f", b"a%0A%1B[2Jb%7F"),
            ("invoice\u{202e}txt.exe".as_bytes(), b"invoice%E2%80%AEtxt.exe"),
            (b"caf\xe9\\", b"caf\xe9%5C"),
        ] {
            assert_eq!(name(inside), written, "{:?}", String::from_utf8_lossy(inside));
        }
    }

    #[test]
    fn only_links_that_stay_below_are_links() {
        for (name, text) in [
            (&b"link"[..], &b"one"[..]),
            (b"link", b"./a/b"),
            (b"a/b/link", b"../../c"),
            (b"a/link", b".././c"),
            (b"a/link", b".."),
            (b"link", b"..hidden"),
        ] {
            assert!(stays_below(name, text), "{}", String::from_utf8_lossy(text));
        }
        for (name, text) in [
            (&b"link"[..], &b"/etc/passwd"[..]),
            (b"link", b".."),
            (b"link", b"../x"),
            (b"a/link", b"../../x"),
            (b"a/link", b"./.././../x"),
            (b"a/b/link", b"../other/../x"),
            (b"a/link", b"b/.."),
            (b"link", b"\\\\server\\share"),
            (b"link", b"C:/x"),
            (b"link", b"a\\..\\..\\x"),
            (b"link", b""),
        ] {
            assert!(!stays_below(name, text), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_link_that_goes_up_does_not_lie_behind_another_where_names_are_compared_less_strictly() {
        for (link, above) in [
            ("A", "a"),
            ("gr\u{f6}\u{df}e", "GRO\u{308}SSE"),
            ("\u{212a}", "k"),
            ("a. ", "a"),
            ("a", "a\u{200d}"),
            ("one/TWO", "One/two/three"),
        ] {
            let below = format!("{above}/link");
            let mut links = Links::default();
            assert!(links.admit(below.as_bytes(), b".."), "{below}: there is no other");
            assert!(links.admit(link.as_bytes(), b"."), "{link}");
            assert!(!links.admit(below.as_bytes(), b".."), "{below} lies behind {link}");
            assert!(links.admit(below.as_bytes(), b"down"), "{below} does not go up");
            assert!(links.admit(b"other/link", b"../x"), "nothing of the name is a link");
        }
    }

    /// As the part of a URL.
    fn unescape(mut written: &[u8]) -> Vec<u8> {
        let mut name = Vec::new();
        while let [first, rest @ ..] = written {
            let (byte, rest) = match is_escape(written) {
                true => (u8::from_str_radix(std::str::from_utf8(&rest[..2]).unwrap(), 16).unwrap(), &rest[2..]),
                false => (*first, rest),
            };
            name.push(byte);
            written = rest;
        }
        name
    }

    proptest! {
        #[test]
        fn a_name_has_as_many_parts_as_before_is_harmless_and_no_others(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                "[%0-9A-Fa:\\\\\t/\u{202e}]{0,12}".prop_map(String::into_bytes),
            ],
        ) {
            let written = name(&bytes);
            let parts = |name: &[u8]| name.iter().filter(|byte| **byte == b'/').count();
            prop_assert_eq!(parts(&written), parts(&bytes));
            prop_assert!(!written.contains(&b'\\') && !written.iter().any(u8::is_ascii_control));
            prop_assert_eq!(unescape(&written), bytes);
        }
    }
}
