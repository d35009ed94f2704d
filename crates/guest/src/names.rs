//! The names of directories in order, a part at a time: a guest puts any number of long ones into one directory.
//!
//! All that a walk holds of them is bounded. A directory with more is listed again for each part, and a name is in one part alone,
//! whatever comes and goes meanwhile.

use std::{
    cell::Cell,
    ffi::{CStr, CString},
    os::fd::BorrowedFd,
    rc::Rc,
};

use rustix::io::Errno;

use crate::dir::each_entry;

/// Of one walk, in all the directories that it is in.
const MAX_NAMES: usize = 16 * 1024 * 1024;
/// Of one more directory, however full the ones above it are.
const MIN_PART: usize = 8 * 1024;

/// What a walk may hold of names.
pub(crate) struct Names {
    held: Rc<Cell<usize>>,
    most: usize,
}

/// Some of the names in a directory.
pub(crate) struct Part {
    pub(crate) names: Vec<CString>,
    /// Where the next part begins, if there is one.
    pub(crate) rest: Option<CString>,
}

/// The subdirectories among them that a walk has still to enter.
pub(crate) struct Below {
    /// The next one last.
    names: Vec<CString>,
    rest: Option<CString>,
    bytes: usize,
    held: Rc<Cell<usize>>,
}

/// What a walk does next in a directory.
pub(crate) enum Next {
    Enter(CString),
    /// The part behind this name.
    Part(CString),
    Leave,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self::up_to(MAX_NAMES)
    }

    pub(crate) fn up_to(most: usize) -> Self {
        Self { held: Rc::default(), most }
    }

    /// The first names behind `after`. Those of directories are handed to [`Names::below`].
    pub(crate) fn part(&self, dir: BorrowedFd<'_>, after: Option<&CStr>) -> Result<Part, Errno> {
        let left = self.most.saturating_sub(self.held.get());
        part(dir, after, (left / 8).max(MIN_PART.min(self.most)))
    }

    /// Of a part, in order.
    pub(crate) fn below(&self, mut names: Vec<CString>, rest: Option<CString>) -> Below {
        names.reverse();
        let bytes = names.iter().map(|name| size(name)).sum();
        self.held.set(self.held.get() + bytes);
        Below { names, rest, bytes, held: self.held.clone() }
    }
}

impl Below {
    pub(crate) fn next(&mut self) -> Next {
        match (self.names.pop(), self.rest.take()) {
            (Some(name), rest) => {
                self.rest = rest;
                Next::Enter(name)
            }
            (None, Some(rest)) => Next::Part(rest),
            (None, None) => Next::Leave,
        }
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        self.held.set(self.held.get() - self.bytes);
    }
}

/// What it takes in memory.
fn size(name: &CStr) -> usize {
    name.to_bytes_with_nul().len() + size_of::<CString>() + 16
}

fn part(dir: BorrowedFd<'_>, after: Option<&CStr>, most: usize) -> Result<Part, Errno> {
    let (mut names, mut bytes): (Vec<CString>, usize) = (Vec::new(), 0);
    let mut last: Option<CString> = None;
    each_entry(dir, |name, _| {
        if after.is_none_or(|after| name > after) && last.as_deref().is_none_or(|last| name <= last) {
            names.push(name.to_owned());
            bytes += size(name);
        }
        if bytes > 2 * most {
            (bytes, last) = cut(&mut names, most, last.take());
        }
        Ok::<_, Errno>(true)
    })?;
    let (_, rest) = cut(&mut names, most, last);
    Ok(Part { names, rest })
}

/// Keeps the first ones, each once: the kernel lists a name twice that was made anew meanwhile. Tells what they take, and the
/// last one if others were cut off, now or before.
fn cut(names: &mut Vec<CString>, most: usize, before: Option<CString>) -> (usize, Option<CString>) {
    names.sort_unstable();
    names.dedup();
    let mut bytes = 0;
    let fit = names.iter().take_while(|name| {
        bytes += size(name);
        bytes <= most
    });
    let fit = fit.count().max(1);
    let last = if fit < names.len() { names.get(fit - 1).cloned() } else { before };
    names.truncate(fit);
    (bytes.min(most), last)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn parts_of_a_directory_hold_each_name_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut made: Vec<_> = (0..500).map(|n: usize| format!("{:x<30}", n * 7919 % 500)).collect();
        made.iter().for_each(|name| std::fs::write(dir.path().join(name), "").unwrap());
        made.sort();
        let open = std::fs::File::open(dir.path()).unwrap();
        for most in [1, 100, 1000, 5000, 1 << 20] {
            let (names, mut seen, mut after) = (Names::up_to(most), Vec::new(), None::<CString>);
            loop {
                let part = names.part(open.as_fd(), after.as_deref()).unwrap();
                assert!(part.names.len() == 1 || part.names.iter().map(|name| size(name)).sum::<usize>() <= most);
                seen.extend(part.names.iter().map(|name| name.to_str().unwrap().to_owned()));
                let Some(rest) = part.rest else { break };
                assert_eq!(Some(&rest), part.names.last());
                after = Some(rest);
            }
            assert_eq!(seen, made, "{most}");
        }
    }

    #[test]
    fn what_a_walk_holds_leaves_less_to_the_directories_below() {
        let dir = tempfile::tempdir().unwrap();
        (0..1000).for_each(|n| std::fs::write(dir.path().join(format!("{n:x<100}")), "").unwrap());
        let open = std::fs::File::open(dir.path()).unwrap();
        let names = Names::up_to(256 * 1024);
        let first = names.part(open.as_fd(), None).unwrap();
        let length = first.names.len();
        let below = names.below(first.names, first.rest);
        let second = names.part(open.as_fd(), None).unwrap();
        assert!(second.names.len() < length && second.rest.is_some());
        drop(below);
        assert_eq!(names.held.get(), 0);
    }
}
