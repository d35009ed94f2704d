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
/// Of the tags of one file. A file system in memory lets a guest attach megabytes, and whoever lists a directory holds them.
const MAX_TAGS: usize = 16 * 1024;

pub(crate) type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// Those with the prefix, of the file at a path that is not followed at its end. A file system that has none, and a file
/// whose attributes may not be seen, have none.
pub(crate) fn read_at(path: &[u8], prefix: &[u8]) -> Attributes {
    read(prefix, |list| rustix::fs::llistxattr(path, list), |name, value| rustix::fs::lgetxattr(path, name, value))
}

/// The same by a descriptor's `/proc` path, which must be followed.
pub(crate) fn read_through(path: &[u8], prefix: &[u8]) -> Attributes {
    read(prefix, |list| rustix::fs::listxattr(path, list), |name, value| rustix::fs::getxattr(path, name, value))
}

fn read(
    prefix: &[u8],
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&CString, &mut [u8]) -> Result<usize, Errno>,
) -> Attributes {
    let mut found = Attributes::new();
    // Nearly every file has none or few: the stack is enough for those.
    let mut small = [0; 256];
    let names = match list(&mut small) {
        Ok(0) => return found,
        Ok(n) => small[..n].to_vec(),
        Err(Errno::RANGE) => {
            let mut large = vec![0; MOST];
            match list(&mut large) {
                Ok(n) => {
                    large.truncate(n);
                    large
                }
                Err(_) => return found,
            }
        }
        Err(_) => return found,
    };
    let (mut length_of_all, most) = (0, if prefix == TAG { MAX_TAGS } else { usize::MAX });
    for name in names.split(|b| *b == 0).filter(|name| name.starts_with(prefix)) {
        let Ok(c_name) = CString::new(name) else { continue };
        let mut value = vec![0; 256];
        let mut length = get(&c_name, &mut value);
        if length == Err(Errno::RANGE) {
            value = vec![0; MOST];
            length = get(&c_name, &mut value);
        }
        // Gone since it was listed: then it has none of this name.
        if let Ok(n) = length {
            value.truncate(n);
            length_of_all += name.len() + n;
            if length_of_all > most {
                break;
            }
            value.shrink_to_fit();
            found.insert(name.to_vec(), value);
        }
    }
    found
}

/// Everything that a layer keeps of a file behind a `/proc` path: what users set, rights of a program, and lists of access.
/// Of what overlayfs noted for itself only opaqueness stays: the rest speaks of the layers that were below when it was
/// written. Those with its prefix twice are a guest's own, which overlayfs has moved out of its way.
pub(crate) fn read_of_layer(path: &[u8]) -> Attributes {
    let mut found = read_through(path, b"");
    found.retain(|name, value| is_of_layer(name, value));
    found
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
