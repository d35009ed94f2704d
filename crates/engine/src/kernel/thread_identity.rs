//! One thread acts as a user of a sandbox for the time of one file operation.
//!
//! The file-system ids, the groups and the capabilities of a Linux thread are its own. While an [`ActingAs`] lives, the
//! kernel judges every path and file as it would judge the sandbox's user, so no check of ours can be forgotten.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::sys;

/// As the kernel knows them outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// Root inside may override modes and owners inside, as it may there; nothing more.
    pub(crate) root: bool,
}

/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID: what root inside has over its own files.
const OVER_FILES: u64 = 0b1_1111;

/// Gives the thread its own identity back when dropped. Not `Send`: another thread has nothing to give back.
pub(crate) struct ActingAs(PhantomData<*const ()>);

impl ActingAs {
    pub(crate) fn new(identity: &Identity) -> Self {
        let acting = Self(PhantomData);
        // Refused in a namespace with a single id, where there are no other groups either.
        let _ = sys::setgroups(&identity.groups);
        sys::setfsgid(identity.gid);
        sys::setfsuid(identity.uid);
        // After the ids: going from 0 to another fsuid takes capabilities away, which root inside is to keep.
        let _ = sys::set_effective(if identity.root { OVER_FILES } else { 0 });
        acting
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        let _ = sys::set_effective(u64::MAX);
        sys::setfsuid(0);
        sys::setfsgid(0);
        let _ = sys::setgroups(&[]);
    }
}
