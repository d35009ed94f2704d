//! Views inside of others: the outer one first, and a place for the inner one in it.

use std::{
    ffi::CString,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path},
};

use cabana_sandbox::{Result, View};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::invalid;
use crate::{
    kernel::thread_identity::{ActingAs, Identity},
    plan::Mount,
    wire::Place,
};

/// A view that lies in another one comes after it, or it would be hidden.
pub(crate) fn in_order(views: &[View]) -> Vec<&View> {
    let mut views: Vec<_> = views.iter().collect();
    views.sort_by_key(|view| view.at.as_path().components().count());
    views
}

/// A view that lies in another one needs a directory there to be seen at. It is made from outside, in what is shown and as its
/// owner: root inside is nobody there. Links are not followed: whoever may write there could lead the next one anywhere.
pub(crate) fn make_places(views: &[Mount]) -> Result<()> {
    let at = |mount: &Mount| match &mount.place {
        Place::View { at, directory } => Some((at.clone(), *directory)),
        Place::Own | Place::Lower { .. } => None,
    };
    let all: Vec<_> = views.iter().filter_map(|mount| Some((at(mount)?, mount))).collect();
    for ((inner, directory), _) in &all {
        let above = |outer: &[u8]| inner.strip_prefix(outer).and_then(|rest| rest.strip_prefix(b"/"));
        let outer = all.iter().filter_map(|((outer, _), mount)| Some((above(outer)?, mount)));
        if let Some((below, outer)) = outer.min_by_key(|(below, _)| below.len()) {
            make_place(outer, below, *directory)
                .map_err(|why| invalid(format!("{}: {why}", String::from_utf8_lossy(inner))))?;
        }
    }
    Ok(())
}

fn make_place(outer: &Mount, below: &[u8], directory: bool) -> Result<(), String> {
    let odd = |errno: Errno| match errno {
        Errno::LOOP => "it lies behind a symbolic link of the view around it".to_owned(),
        Errno::NOTDIR => "it lies below a file of the view around it".to_owned(),
        errno => std::io::Error::from(errno).to_string(),
    };
    let mut here = outer.fd.try_clone().map_err(|error| error.to_string())?;
    let parts: Vec<_> = Path::new(std::ffi::OsStr::from_bytes(below)).components().collect();
    for (number, part) in parts.iter().enumerate() {
        let Component::Normal(name) = part else { return Err("it is no plain path".into()) };
        let name = CString::new(name.as_bytes()).map_err(|error| error.to_string())?;
        let is_file = number + 1 == parts.len() && !directory;
        here = match open(&here, &name) {
            Err(Errno::NOENT) if outer.read_only => {
                return Err("the view around it cannot be written to, and has no place for it".into());
            }
            Err(Errno::NOENT) => make(&here, &name, is_file).map_err(odd)?,
            opened => opened.map_err(odd)?,
        };
    }
    let stat = rustix::fs::fstat(&here).map_err(odd)?;
    match rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() == directory {
        true => Ok(()),
        false => {
            Err("what is there in the view around it is a file where a directory is needed, or the other way".into())
        }
    }
}

fn open(dir: &OwnedFd, name: &CString) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(dir, name.as_c_str(), flags, Mode::empty(), resolve)
}

/// As the owner of the directory around it would, and by that one's rights alone. What was made is not given away afterwards: by
/// then it may be something else.
fn make(dir: &OwnedFd, name: &CString, is_file: bool) -> rustix::io::Result<OwnedFd> {
    let around = rustix::fs::fstat(dir)?;
    let owner = Identity { uid: around.st_uid, gid: around.st_gid, groups: Vec::new(), root: false };
    let made = {
        let _acting = ActingAs::new(&owner);
        match is_file {
            true => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(dir, name.as_c_str(), flags, 0o644.into()).map(drop)
            }
            false => rustix::fs::mkdirat(dir, name.as_c_str(), 0o755.into()),
        }
    };
    match made {
        Err(errno) if errno != Errno::EXIST => Err(errno),
        _ => open(dir, name),
    }
}
