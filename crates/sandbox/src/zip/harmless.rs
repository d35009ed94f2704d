//! Names and links that mean the same below the directory where an archive is unpacked as they do in the sandbox, and nothing elsewhere.
//!
//! A guest chooses both. Programs that unpack take `\` for a separator on some systems and `C:` for a drive, and most make links as
//! they are: through one of them the next file, or a server of what was unpacked, is led out.

/// The name in an archive. What an unpacker could take for another place, or a terminal for more than a name, is `_`.
pub(super) fn name(bytes: &[u8]) -> Vec<u8> {
    let parts = bytes.split(|byte| *byte == b'/').map(part);
    parts.collect::<Vec<_>>().join(&b'/')
}

fn part(bytes: &[u8]) -> Vec<u8> {
    let mut part: Vec<u8> = bytes
        .utf8_chunks()
        .flat_map(|chunk| {
            let valid = chunk.valid().chars().map(|letter| if is_harmless(letter) { letter } else { '_' });
            valid.collect::<String>().into_bytes().into_iter().chain(chunk.invalid().iter().copied())
        })
        .collect();
    if let [b'a'..=b'z' | b'A'..=b'Z', colon @ b':', ..] = &mut part[..] {
        *colon = b'_';
    }
    part
}

/// Not those that turn the direction of what follows, by which `exe.txt` is read as another ending.
fn is_harmless(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, '\\' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a link leads to something below the directory that is packed, wherever that is unpacked. It may go up first, as far as
/// that, and then down: what goes up behind a name could do so from wherever that name, as a link, has led.
pub(super) fn stays_below(name: &[u8], text: &[u8]) -> bool {
    let above = name.iter().filter(|byte| **byte == b'/').count();
    let parts: Vec<&[u8]> = text.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    let up = parts.iter().take_while(|part| **part == b"..").count();
    let is_relative = !matches!(text, [] | [b'/' | b'\\', ..] | [_, b':', ..]);
    is_relative && up <= above && !parts[up..].contains(&&b".."[..]) && !text.contains(&b'\\')
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
            (b"..\\..\\up", b".._.._up"),
            (b"C:\\Windows/x", b"C__Windows/x"),
            (b"d/c:file", b"d/c_file"),
            (b"12:30", b"12:30"),
            (b"a\n\x1b[2Jb\x7f", b"a__[2Jb_"),
            ("invoice\u{202e}txt.exe".as_bytes(), b"invoice_txt.exe"),
            (b"caf\xe9\\", b"caf\xe9_"),
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

    proptest! {
        #[test]
        fn a_name_has_as_many_parts_as_before_and_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let written = name(&bytes);
            let parts = |name: &[u8]| name.iter().filter(|byte| **byte == b'/').count();
            prop_assert_eq!(parts(&written), parts(&bytes));
            prop_assert!(!written.contains(&b'\\') && !written.iter().any(u8::is_ascii_control));
            prop_assert!(written.len() <= bytes.len());
            prop_assert_eq!(name(&written), written);
        }
    }
}
