//! Extended attributes: those of users, `user.*`, of which tags are named `user.e2b.*`; and the few others of a layer.

use std::{collections::BTreeMap, ffi::CString};

use rustix::{fs::XattrFlags, io::Errno};

/// Where programs inside that were written for E2B's agent look for them, and put them. One name for one thing: there is no other.
pub(crate) const TAG: &[u8] = b"user.e2b.";
/// What overlayfs notes for itself, and believes wherever it finds it in a layer.
const OVERLAY: &[u8] = b"user.overlay.";
/// Of a directory in a layer: nothing of the layers below is seen in it.
pub(crate) const OPAQUE: &[u8] = b"user.overlay.opaque";
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
pub(crate) const ACCESS_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// The kernel gives no list and no value longer than this.
const MOST: usize = 64 * 1024;
/// Of all attributes of one file, in an archive: some file systems let a guest attach hundreds of megabytes.
pub(crate) const MAX_ATTRIBUTES: usize = 512 * 1024;
/// Of the tags of one file. A file system in memory lets a guest attach megabytes, and whoever lists a directory holds them.
const MAX_TAGS: usize = 16 * 1024;

pub(crate) type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// Those with the prefix, of the file at a path that is not followed at its end. A file system that has none, and a file
/// whose attributes may not be seen, have none.
pub(crate) fn read_at(path: &[u8], prefix: &[u8]) -> Attributes {
    let get = |name: &CString, value: &mut [u8]| rustix::fs::lgetxattr(path, name, value);
    read(|name| name.starts_with(prefix), most(prefix), |list| rustix::fs::llistxattr(path, list), get).0
}

/// The same by a descriptor's `/proc` path, which must be followed.
pub(crate) fn read_through(path: &[u8], prefix: &[u8]) -> Attributes {
    through(path, |name| name.starts_with(prefix), most(prefix)).0
}

fn most(prefix: &[u8]) -> usize {
    if prefix == TAG { MAX_TAGS } else { usize::MAX }
}

fn through(path: &[u8], is_wanted: impl Fn(&[u8]) -> bool, most: usize) -> (Attributes, bool) {
    let get = |name: &CString, value: &mut [u8]| rustix::fs::getxattr(path, name, value);
    read(is_wanted, most, |list| rustix::fs::listxattr(path, list), get)
}

/// At most so many bytes of them, and whether these are all.
fn read(
    is_wanted: impl Fn(&[u8]) -> bool,
    most: usize,
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&CString, &mut [u8]) -> Result<usize, Errno>,
) -> (Attributes, bool) {
    let mut found = Attributes::new();
    // Nearly every file has none or few: the stack is enough for those.
    let mut small = [0; 256];
    let names = match list(&mut small) {
        Ok(0) => return (found, true),
        Ok(n) => small[..n].to_vec(),
        Err(Errno::RANGE) => {
            let mut large = vec![0; MOST];
            match list(&mut large) {
                Ok(n) => {
                    large.truncate(n);
                    large
                }
                Err(_) => return (found, false), // more names than the kernel gives
            }
        }
        Err(errno) => return (found, errno != Errno::IO),
    };
    let (mut length_of_all, mut whole) = (0, true);
    for name in names.split(|b| *b == 0).filter(|name| !name.is_empty() && is_wanted(name)) {
        let Ok(c_name) = CString::new(name) else { continue };
        let mut value = vec![0; 256];
        let mut length = get(&c_name, &mut value);
        if length == Err(Errno::RANGE) {
            value = vec![0; MOST];
            length = get(&c_name, &mut value);
        }
        match length {
            Ok(n) => {
                value.truncate(n);
                length_of_all += name.len() + n;
                if length_of_all > most {
                    return (found, false);
                }
                value.shrink_to_fit();
                found.insert(name.to_vec(), value);
            }
            // Gone since it was listed: then it has none of this name.
            Err(errno) => whole &= !matches!(errno, Errno::IO | Errno::RANGE | Errno::TOOBIG | Errno::NOMEM),
        }
    }
    (found, whole)
}

/// Everything that a layer keeps of a file behind a `/proc` path: what users set, rights of a program, and lists of access.
/// Of what overlayfs noted for itself only opaqueness stays: the rest speaks of the layers that were below when it was
/// written. Those with its prefix twice are a guest's own, which overlayfs has moved out of its way.
pub(crate) fn read_of_layer(path: &[u8]) -> Attributes {
    of_layer(path, usize::MAX).0
}

/// The same as far as an archive holds them, and whether these are all.
pub(crate) fn read_for_archive(path: &[u8]) -> (Attributes, bool) {
    of_layer(path, MAX_ATTRIBUTES)
}

fn of_layer(path: &[u8], most: usize) -> (Attributes, bool) {
    let (mut found, whole) = through(path, may_be_of_layer, most);
    found.retain(|name, value| is_of_layer(name, value));
    (found, whole)
}

fn may_be_of_layer(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == CAPABILITY || ACCESS_LISTS.contains(&name)
}

/// Whether a file that comes from elsewhere keeps an attribute: only those that users set. A capability or a label of
/// elsewhere has no business here (`security.*`, `trusted.*`, `system.*`), and a note to overlayfs could lead a directory of a
/// template to another one.
pub(crate) fn is_imported(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(OVERLAY) && !name.contains(&0)
}

pub(crate) fn is_of_layer(name: &[u8], value: &[u8]) -> bool {
    match name.strip_prefix(b"user.") {
        Some(rest) => match rest.strip_prefix(b"overlay.") {
            Some(b"opaque") => value == b"y",
            Some(rest) => rest.starts_with(b"overlay."),
            None => true,
        },
        None => name == CAPABILITY || ACCESS_LISTS.contains(&name),
    }
}

pub(crate) fn set(path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

pub(crate) fn remove(path: &[u8], name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::removexattr(path, name) {
        Err(Errno::NODATA) => Ok(()),
        result => result,
    }
}
