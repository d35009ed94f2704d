//! The names of directories in order, a part at a time: a guest puts any number of long ones into one directory.
//!
//! All that a walk holds of them is bounded. A directory with more is listed again for each part, and a name is in one part alone,
//! whatever comes and goes meanwhile. However full the directories above are, a part is as large: where there is no room, those
//! furthest up forget the subdirectories that they have still to enter, and are asked for these again on the way back.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{fs::FileType, io::Errno};

use crate::dir::each_entry;

/// Of one walk, in all the directories that it is in.
const MAX_NAMES: usize = 14 * 1024 * 1024;
/// Of one part, and twice while it is listed.
const MAX_PART: usize = 1024 * 1024;

/// What a walk may hold of names.
pub(crate) struct Names {
    held: Shared,
    most: usize,
    part: usize,
}

type Shared = Arc<Mutex<Held>>;

#[derive(Default)]
struct Held {
    bytes: usize,
    made: u64,
    /// Those made before it have nothing to forget.
    full_from: u64,
    levels: BTreeMap<u64, Level>,
}

struct Level {
    /// The next one last.
    names: Vec<CString>,
    bytes: usize,
    place: Place,
    /// Whether they are all that a part has, and not directories alone.
    are_all: bool,
}

/// Where a walk is in a directory.
#[derive(Default)]
pub(crate) struct Place {
    /// Everything up to it is done.
    after: Option<CString>,
    /// Directories behind the one and up to the other: they were in a part before.
    again: Option<(Option<CString>, CString)>,
    /// Behind it nothing was in a part yet.
    rest: Option<CString>,
}

/// Some of the names in a directory.
pub(crate) struct Part {
    pub(crate) names: Vec<CString>,
    /// Whether they were in a part before: then directories alone count.
    pub(crate) again: bool,
    pub(crate) place: Place,
}

/// What of it a walk has still to enter: the subdirectories, or all.
pub(crate) struct Below {
    made: u64,
    held: Shared,
}

/// What a walk does next in a directory.
pub(crate) enum Next {
    Enter(CString),
    /// The part at this place.
    Part(Place),
    Leave,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self::up_to(MAX_NAMES, MAX_PART)
    }

    pub(crate) fn up_to(most: usize, part: usize) -> Self {
        Self { held: Shared::default(), most, part }
    }

    /// The first names of a directory, or those at a place. Those of directories are handed to [`Names::below`], or all of them to
    /// [`Names::all`].
    pub(crate) fn part(&self, dir: BorrowedFd<'_>, at: Option<Place>) -> Result<Part, Errno> {
        let (after, to, rest) = match at {
            None => (None, None, None),
            Some(Place { again: Some((after, to)), rest, .. }) => (after, Some(to), rest),
            Some(Place { rest, .. }) => (rest, None, None),
        };
        let (names, last) = part(dir, after.as_deref(), to.as_deref(), self.part)?;
        let (again, place) = match to {
            Some(to) => (true, Place { after, again: last.map(|last| (Some(last), to)), rest }),
            None => (false, Place { after, again: None, rest: last }),
        };
        Ok(Part { names, again, place })
    }

    /// Of a part the directories, in order: what else is in it has been looked at.
    pub(crate) fn below(&self, names: Vec<CString>, place: Place) -> Below {
        self.hold(names, place, false)
    }

    /// All of a part: none of it has been looked at. One that is forgotten comes again as it would have.
    pub(crate) fn all(&self, part: Part) -> Below {
        self.hold(part.names, part.place, true)
    }

    fn hold(&self, mut names: Vec<CString>, place: Place, are_all: bool) -> Below {
        names.reverse();
        let bytes = names.iter().map(|name| size(name)).sum();
        let mut held = lock(&self.held);
        held.make_room(self.most.saturating_sub(bytes));
        let made = held.made;
        held.made += 1;
        held.bytes += bytes;
        held.levels.insert(made, Level { names, bytes, place, are_all });
        Below { made, held: self.held.clone() }
    }
}

fn lock(held: &Shared) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Held {
    fn make_room(&mut self, most: usize) {
        while self.bytes > most
            && let Some((made, level)) = self.levels.range_mut(self.full_from..).next()
        {
            self.full_from = made + 1;
            self.bytes -= level.forget();
        }
    }
}

impl Level {
    /// How much that gives.
    fn forget(&mut self) -> usize {
        let names = std::mem::take(&mut self.names);
        if names.is_empty() {
            return std::mem::take(&mut self.bytes);
        }
        if self.are_all {
            // A walk is below the last that it was given, so there is one.
            self.place.rest = self.place.after.clone();
        } else if let Some(last) = names.into_iter().next() {
            let to = self.place.again.take().map_or(last, |(_, to)| to);
            self.place.again = Some((self.place.after.clone(), to));
        }
        std::mem::take(&mut self.bytes)
    }
}

impl Below {
    pub(crate) fn next(&mut self) -> Next {
        let mut held = lock(&self.held);
        let Some(level) = held.levels.get_mut(&self.made) else { return Next::Leave };
        if let Some(name) = level.names.pop() {
            level.place.after = Some(name.clone());
            return Next::Enter(name);
        }
        match std::mem::take(&mut level.place) {
            Place { again: None, rest: None, .. } => Next::Leave,
            place => Next::Part(place),
        }
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(level) = held.levels.remove(&self.made) {
            held.bytes -= level.bytes;
        }
    }
}

/// What it takes in memory.
fn size(name: &CStr) -> usize {
    name.to_bytes_with_nul().len() + size_of::<CString>() + 16
}

/// And the last one, if others were cut off.
fn part(
    dir: BorrowedFd<'_>,
    after: Option<&CStr>,
    to: Option<&CStr>,
    most: usize,
) -> Result<(Vec<CString>, Option<CString>), Errno> {
    let (mut names, mut bytes): (Vec<CString>, usize) = (Vec::new(), 0);
    let mut last: Option<CString> = None;
    each_entry(dir, |name, kind| {
        let asked = to.is_none_or(|to| name <= to && matches!(kind, FileType::Directory | FileType::Unknown));
        if asked && after.is_none_or(|after| name > after) && last.as_deref().is_none_or(|last| name <= last) {
            names.push(name.to_owned());
            bytes += size(name);
        }
        if bytes > 2 * most {
            (bytes, last) = cut(&mut names, most, last.take());
        }
        Ok::<_, Errno>(true)
    })?;
    let (_, last) = cut(&mut names, most, last);
    Ok((names, last))
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
            let (names, mut seen, mut at) = (Names::up_to(most, most), Vec::new(), None);
            loop {
                let part = names.part(open.as_fd(), at.take()).unwrap();
                assert!(part.names.len() == 1 || part.names.iter().map(|name| size(name)).sum::<usize>() <= most);
                seen.extend(part.names.iter().map(|name| name.to_str().unwrap().to_owned()));
                match names.below(Vec::new(), part.place).next() {
                    Next::Part(place) => at = Some(place),
                    _ => break,
                }
            }
            assert_eq!(seen, made, "{most}");
        }
    }

    #[test]
    fn directories_that_were_forgotten_come_again_each_once() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: usize| format!("{n:03}{:x<100}", "");
        (0..300).for_each(|n| std::fs::create_dir(dir.path().join(name(n))).unwrap());
        let open = std::fs::File::open(dir.path()).unwrap();
        for every in [1, 7, 50] {
            let names = Names::up_to(10_000, 5_000);
            let part = names.part(open.as_fd(), None).unwrap();
            let length = part.names.len();
            let (mut below, mut entered) = (names.below(part.names, part.place), Vec::new());
            loop {
                match below.next() {
                    Next::Enter(name) => entered.push(name.into_string().unwrap()),
                    Next::Part(place) => {
                        let part = names.part(open.as_fd(), Some(place)).unwrap();
                        below = names.below(part.names, part.place);
                        continue;
                    }
                    Next::Leave => break,
                }
                if entered.len().is_multiple_of(every) {
                    // Full directories below: their parts are as large as any.
                    let full = [0; 3].map(|_| {
                        let part = names.part(open.as_fd(), None).unwrap();
                        assert_eq!(part.names.len(), length);
                        names.below(part.names, part.place)
                    });
                    assert!(lock(&names.held).bytes <= 10_000);
                    drop(full);
                }
            }
            assert_eq!(entered, (0..300).map(name).collect::<Vec<_>>(), "{every}");
            drop(below);
            assert_eq!(lock(&names.held).bytes, 0);
        }
    }

    /// Of all names, files too, none was looked at before it is given.
    #[test]
    fn names_that_were_forgotten_come_as_they_would_have() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: usize| format!("{n:03}{:x<100}", "");
        (0..300).for_each(|n| std::fs::write(dir.path().join(name(n)), "").unwrap());
        let open = std::fs::File::open(dir.path()).unwrap();
        for every in [1, 7, 50] {
            let names = Names::up_to(10_000, 5_000);
            let part = |at| names.all(names.part(open.as_fd(), at).unwrap());
            let (mut all, mut seen) = (part(None), Vec::new());
            loop {
                match all.next() {
                    Next::Enter(name) => seen.push(name.into_string().unwrap()),
                    Next::Part(place) => {
                        all = part(Some(place));
                        continue;
                    }
                    Next::Leave => break,
                }
                if seen.len().is_multiple_of(every) {
                    let full = [0; 3].map(|_| part(None));
                    assert!(lock(&names.held).bytes <= 10_000);
                    drop(full);
                }
            }
            assert_eq!(seen, (0..300).map(name).collect::<Vec<_>>(), "{every}");
            drop(all);
            assert_eq!(lock(&names.held).bytes, 0);
        }
    }
}
