//! One thread acts as a user of a sandbox for the time of one file operation.
//!
//! The file-system ids, the groups and the capabilities of a Linux thread are its own. While an [`ActingAs`] lives, the
//! kernel judges every path and file as it would judge the sandbox's user, so no check of ours can be forgotten.
#![allow(unsafe_code)]

use std::{cell::Cell, marker::PhantomData};

use super::sys::{self, Capabilities};

/// As the kernel knows them outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// Whether it may override modes and owners inside, as root may there; nothing more.
    pub(crate) root: bool,
}

/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID: what root inside has over its own files.
const OVER_FILES: u64 = 0b1_1111;

/// Gives the thread its own identity back when dropped. Not `Send`: another thread has nothing to give back.
pub(crate) struct ActingAs {
    own: Option<Capabilities>,
    here: PhantomData<*const ()>,
}

thread_local! {
    /// Whether this thread is known to be in no group beside its own: then there is none to leave, nor to come back to.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

impl ActingAs {
    pub(crate) fn new(identity: &Identity) -> Self {
        let acting = Self { own: sys::capabilities().ok(), here: PhantomData };
        join(&identity.groups);
        sys::setfsgid(identity.gid);
        sys::setfsuid(identity.uid);
        // After the ids: going from 0 to another fsuid takes capabilities away, which root inside is to keep.
        if let Some(own) = &acting.own {
            let _ = sys::set_capabilities(&own.only(if identity.root { OVER_FILES } else { 0 }));
        }
        acting
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        sys::setfsuid(0);
        sys::setfsgid(0);
        // After the ids: coming back to 0 gives capabilities that the thread may not have had.
        if let Some(own) = &self.own {
            let _ = sys::set_capabilities(own);
        }
        join(&[]);
    }
}

/// Refused in a namespace with a single id, where there are no other groups either.
fn join(groups: &[u32]) {
    if !groups.is_empty() || !ALONE.get() {
        ALONE.set(sys::setgroups(groups).is_ok() && groups.is_empty());
    }
}
