//! Names of the files that a write fills before it shows them.
//!
//! The name says whether the write will replace something, so that a watcher, which never shows such a file, can tell
//! its arrival under the real name as a Write or as a Create.

use std::{
    ffi::CString,
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

const PREFIX: &[u8] = b".cabana-";
const DIGITS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    New,
    Replaces,
}

/// A fresh name that nobody inside can foresee: keyed hashes of a counter.
pub(crate) fn name(aim: Aim) -> CString {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let digits = KEYS.hash_one((COUNT.fetch_add(1, Ordering::Relaxed), std::process::id()));
    let letter = match aim {
        Aim::New => 'n',
        Aim::Replaces => 'r',
    };
    CString::new(format!(".cabana-{letter}{digits:016x}")).unwrap_or_default()
}

/// What a temporary file was made for; `None` for every other name.
pub(crate) fn aim(name: &[u8]) -> Option<Aim> {
    let (letter, digits) = name.strip_prefix(PREFIX)?.split_first()?;
    let ours = digits.len() == DIGITS && digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    match letter {
        b'n' if ours => Some(Aim::New),
        b'r' if ours => Some(Aim::Replaces),
        _ => None,
    }
}
