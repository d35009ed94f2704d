//! A mode as text, in the way of Go: `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`, `dtrwxrwxrwx`.
//!
//! It is not what `ls` shows. A link is a capital `L`, and setuid, setgid and sticky stand before the nine letters, where `ls`
//! puts them among these.

const KIND: u32 = 0o170_000;
const SOCKET: u32 = 0o140_000;
pub(crate) const LINK: u32 = 0o120_000;
pub(crate) const FILE: u32 = 0o100_000;
const BLOCK: u32 = 0o060_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const PIPE: u32 = 0o010_000;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// The bits that say what it is.
pub(crate) fn kind(mode: u32) -> u32 {
    mode & KIND
}

/// `mode` is what stat(2) says: kind, special bits and permissions.
pub fn permissions(mode: u32) -> String {
    let is = |wanted: u32| kind(mode) == wanted;
    let has = |bit: u32| mode & bit != 0;
    let marks = [
        ('d', is(DIRECTORY)),
        ('L', is(LINK)),
        ('D', is(BLOCK) || is(CHARACTER)),
        ('p', is(PIPE)),
        ('S', is(SOCKET)),
        ('u', has(SETUID)),
        ('g', has(SETGID)),
        ('c', is(CHARACTER)),
        ('t', has(STICKY)),
    ];
    let mut text: String = marks.iter().filter(|(_, set)| *set).map(|(mark, _)| *mark).collect();
    if text.is_empty() {
        text.push('-');
    }
    let letters = "rwxrwxrwx".chars().zip((0..9).rev());
    text.extend(letters.map(|(letter, bit)| if has(1 << bit) { letter } else { '-' }));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_mark() {
        for (mode, text) in [
            (0o100_644, "-rw-r--r--"),
            (0o100_000, "----------"),
            (0o040_755, "drwxr-xr-x"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o010_600, "prw-------"),
            (0o140_755, "Srwxr-xr-x"),
            (0o060_660, "Drw-rw----"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o644, "-rw-r--r--"),
        ] {
            assert_eq!(permissions(mode), text, "{mode:o}");
        }
    }

    #[test]
    fn special_bits_stand_in_front_and_take_no_letter_away() {
        for (mode, text) in [
            (0o104_755, "urwxr-xr-x"),
            (0o102_755, "grwxr-xr-x"),
            (0o106_711, "ugrwx--x--x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o042_775, "dgrwxrwxr-x"),
            (0o047_777, "dugtrwxrwxrwx"),
            (0o107_000, "ugt---------"),
        ] {
            assert_eq!(permissions(mode), text, "{mode:o}");
        }
    }

    #[test]
    fn each_bit_has_its_place() {
        for bit in 0..9 {
            let text = permissions(0o100_000 | 1 << bit);
            assert_eq!(text.rfind(|letter| letter != '-'), Some(9 - bit));
        }
    }
}
