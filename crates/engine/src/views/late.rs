//! The views of a sandbox that runs are changed from outside: a thread of ours enters its mount namespace, and ends there.
//!
//! Init could not do it: it lives behind the filter that guests have, and has no right to mount. What is mounted by then is read
//! from the kernel and never from memory, so that the same function changes, restores, and finishes what a sudden end left
//! undone. The commands stand still meanwhile, and see all of a change or nothing.
//!
//! A view that goes binds everybody: the kernel takes it off only when nothing has a hold on it any more, and makes it read-only
//! only when nothing is open for writing, for old descriptors too. Processes that have a hold are ended; if that does not free it,
//! all is put back and the change is refused. So nothing here may keep a descriptor of a view open while it is changed.
//!
//! A guest cannot mount, nor move a mount. But it can rename the directories around a view, and put links where one is to be. So a
//! view is known by what it shows and where the kernel says that it is now, and a new one is put onto the sandbox's own files or
//! another view, and nowhere else.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use cabana_sandbox::{Error, Result};
use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::{
    behind_link,
    holders::{self, BusyMount, Purpose},
    invalid,
    mount_table::{Device, MountEntry, MountKind, MountTable, is_below, kind, lies_on},
    watches,
};
use crate::{
    fault::{self, Point},
    kernel::{
        mounts::{self, Made},
        pidfd, sys,
        thread_identity::{ActingAs, Identity},
    },
    live::Live,
    plan::Mount,
    wire::Place,
};

/// How long the commands may stand still until nothing has a hold on what goes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kernel lets go of what is closed a little later, and so do threads of ours. Who is not found by then is not found at all.
const SETTLING: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(5);

const IN_USE: &str = "it is still in use, and what uses it was not found among the processes: a descriptor in a socket's queue, \
                      perhaps. Stop the sandbox, and change its mounts then";
const LOST: &str = "a mount was detached from outside, because the directory it lay on was removed or moved away, and processes may \
                    still be in it. Stop the sandbox, and change its mounts then";

/// What the views of a sandbox are to be.
pub(crate) struct Change {
    /// Detached, with their ids mapped; the outer ones first.
    pub(crate) views: Vec<Mount>,
    /// Where its overlays are: the root, and trees of the host.
    pub(crate) overlays: Vec<Vec<u8>>,
    /// Root inside, as the host knows it.
    pub(crate) root: Identity,
    /// How many views there must be before, if that is known.
    pub(crate) before: Option<usize>,
}

/// What became of a change.
pub(crate) enum Outcome {
    Done,
    /// All is as it was.
    Refused(Error),
    /// It could not be put back.
    HalfDone(Error),
}

/// Blocks. The commands of the sandbox stand still.
pub(crate) fn change(live: &Live, change: Change) -> Outcome {
    let failed = |error| Error::failed("changing the views", error);
    let opened = open_namespace(live.init().as_fd());
    let (namespace, table) = match opened {
        Ok(Some(opened)) => opened,
        Ok(None) => return Outcome::Refused(Error::Gone),
        Err(error) => return Outcome::Refused(failed(error)),
    };
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    thread::scope(|scope| {
        // It does not come back: one that did, half-way, would be a danger to what runs next.
        let inside = thread::Builder::new().name("views".into()).spawn_scoped(scope, move || {
            let outside = Outside { ask, answered, until: Instant::now() + PATIENCE };
            match Inside::enter(&namespace, table, outside) {
                Ok(mut inside) => inside.change(change),
                Err(error) => Outcome::Refused(failed(error)),
            }
        });
        let inside = match inside {
            Ok(inside) => inside,
            Err(error) => return Outcome::Refused(failed(error)),
        };
        // From in there neither processes nor cgroups can be seen.
        for question in asked {
            let done = match question {
                Question::Free { mount, until } => holders::free(live, &mount, until),
                Question::TakeOffWatches { view, device, until } => {
                    watches::take_off(live, view.as_fd(), device, until)
                }
                Question::HasCommands => !live.commands().is_empty(),
            };
            let _ = answer.send(done); // if nobody waits for it, the thread has ended
        }
        let panicked = || failed(io::Error::other("the thread ended early"));
        inside.join().unwrap_or_else(|_| Outcome::HalfDone(panicked()))
    })
}

/// None if init lives no more.
fn open_namespace(init: BorrowedFd<'_>) -> io::Result<Option<(File, MountTable)>> {
    let pid = pidfd::number(init)?;
    let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
    let table = MountTable::open(pid)?;
    // Else the number may be another's.
    Ok(pidfd::is_alive(init).then_some((namespace, table)))
}

/// What the thread inside asks of the one that started it.
enum Question {
    Free { mount: BusyMount, until: Instant },
    TakeOffWatches { view: OwnedFd, device: Device, until: Instant },
    HasCommands,
}

struct Outside {
    ask: mpsc::Sender<Question>,
    answered: mpsc::Receiver<bool>,
    until: Instant,
}

impl Outside {
    fn ask(&self, question: Question) -> bool {
        self.ask.send(question).is_ok() && self.answered.recv().unwrap_or(false)
    }
}

struct Inside {
    root: OwnedFd,
    /// The host's own list of this thread's descriptors: inside there is no way to name what is open.
    descriptors: OwnedFd,
    table: MountTable,
    outside: Outside,
}

/// A view that is mounted. Not open: that would keep it in use.
#[derive(Clone)]
struct MountedView {
    entry: MountEntry,
    shows: (u64, u64),
    read_only: bool,
}

/// One that is wanted.
struct DesiredView {
    at: Vec<u8>,
    directory: bool,
    read_only: bool,
    fd: OwnedFd,
    id: u64,
    shows: (u64, u64),
}

/// What was done of a change, to be undone from the end to the beginning.
enum Step {
    Closed(MountEntry),
    Opened(MountEntry),
    /// With a clone of what was mounted there.
    Unmounted(MountEntry, OwnedFd),
    Made(Made),
    Attached(OwnedFd),
}

impl Inside {
    fn enter(namespace: &File, table: MountTable, outside: Outside) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/thread-self/fd", flags, Mode::empty())?;
        // A root and a working directory of its own, or the whole process would go along.
        sys::unshare(libc::CLONE_FS)?;
        sys::umask(0o022);
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, descriptors, table, outside })
    }

    fn change(&mut self, change: Change) -> Outcome {
        let mut done = Vec::new();
        let root = change.root.clone();
        match self.apply(change, &mut done) {
            Ok(()) => Outcome::Done,
            Err(error) => match self.undo(done, &root) {
                Ok(()) => Outcome::Refused(error),
                Err(_) => Outcome::HalfDone(error),
            },
        }
    }

    /// First what can be refused because somebody is in the way; last what gives more than there was.
    fn apply(&mut self, change: Change, done: &mut Vec<Step>) -> Result<()> {
        let Change { views, overlays, root, before } = change;
        let desired = views.into_iter().filter_map(DesiredView::of).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let mounted = self.mounted(&overlays).map_err(failed)?;
        if before.is_some_and(|before| mounted.len() < before) && self.outside.ask(Question::HasCommands) {
            return Err(Error::MountBusy { at: "mounts".into(), why: LOST });
        }
        let kept = kept(&desired, &mounted);
        let (stay, mut go): (Vec<_>, Vec<_>) = mounted.into_iter().partition(|view| kept.contains(&view.entry.id));
        let (changed, new): (Vec<_>, Vec<_>) =
            desired.into_iter().partition(|desired| stay.iter().any(|view| desired.is(view)));
        for view in &new {
            // Before anybody is ended for a change that cannot be made. Of what lies in a mount nothing is known yet: it may go.
            self.refuse_links(view, ResolveFlags::NO_XDEV)?;
        }
        let read_only = |view: &MountedView| changed.iter().find(|desired| desired.is(view)).map(|view| view.read_only);
        for view in stay.iter().filter(|view| !view.read_only && read_only(view) == Some(true)) {
            self.until_free(&view.entry, Purpose::ReadOnly, |inside| inside.set_read_only(&view.entry, true))?;
            done.push(Step::Closed(view.entry.clone()));
        }
        go.sort_by_key(|view| std::cmp::Reverse(depth(&view.entry.at)));
        for view in go {
            self.take_away(view.entry, done)?;
        }
        fault::at(Point::ViewsTaken);
        self.attach(new, &overlays, &root, done)?;
        for view in stay.iter().filter(|view| view.read_only && read_only(view) == Some(false)) {
            self.set_read_only(&view.entry, false).map_err(failed)?;
            done.push(Step::Opened(view.entry.clone()));
        }
        Ok(())
    }

    fn take_away(&self, view: MountEntry, done: &mut Vec<Step>) -> Result<()> {
        let clone = self.clone_of(&view).map_err(failed)?;
        self.until_free(&view, Purpose::Unmount, |inside| inside.unmount(&view))?;
        let shown = clone.try_clone().map_err(failed);
        let (device, until, at) = (view.device, self.outside.until, shown_path(&view.at));
        done.push(Step::Unmounted(view, clone));
        match self.outside.ask(Question::TakeOffWatches { view: shown?, device, until }) {
            true => Ok(()),
            false => Err(Error::MountBusy { at, why: IN_USE }),
        }
    }

    /// Tries until the kernel lets it happen, as long as somebody is found who can be ended for it.
    fn until_free(&self, mount: &MountEntry, purpose: Purpose, act: impl Fn(&Self) -> io::Result<()>) -> Result<()> {
        let busy = BusyMount { id: mount.id, device: mount.device, at: mount.at.clone(), purpose };
        let mut since = Instant::now();
        loop {
            match act(self) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                done => return done.map_err(failed),
            }
            let (now, until) = (Instant::now(), self.outside.until);
            if self.outside.ask(Question::Free { mount: busy.clone(), until }) {
                since = Instant::now();
            }
            if since.elapsed() > SETTLING || now > until {
                return Err(Error::MountBusy { at: shown_path(&mount.at), why: IN_USE });
            }
            thread::sleep(RETRY_DELAY);
        }
    }

    fn refuse_links(&self, view: &DesiredView, seen: ResolveFlags) -> Result<()> {
        match mounts::first_link(self.root.as_fd(), &view.at, seen) {
            Some(link) => Err(behind_link(&view.at, &link)),
            None => Ok(()),
        }
    }

    fn attach(
        &mut self,
        new: Vec<DesiredView>,
        overlays: &[Vec<u8>],
        root: &Identity,
        done: &mut Vec<Step>,
    ) -> Result<()> {
        let ids: Vec<u64> = new.iter().map(|view| view.id).collect();
        for view in new {
            self.refuse_links(&view, ResolveFlags::empty())?;
            let shown = shown_path(&view.at);
            let point = self.make_mount_point(&view, root, done);
            let point =
                point.map_err(|errno| invalid(format!("{shown}: no place for it: {}", io::Error::from(errno))))?;
            let (on, _) = identity(point.as_fd()).map_err(failed)?;
            let all = self.table.read().map_err(failed)?;
            let is_free = |entry: &MountEntry| entry.id == on && kind(&all, entry, overlays) != MountKind::Kernel;
            if !all.iter().any(is_free) {
                let why = "it would be over what every sandbox has of its own (/proc, /sys, /dev)";
                return Err(invalid(format!("{shown}: {why}")));
            }
            mounts::attach_onto(view.fd.as_fd(), point.as_fd()).map_err(failed)?;
            done.push(Step::Attached(view.fd));
        }
        // Directories that were renamed can bring a view over another one that is not its own.
        let all = self.table.read().map_err(failed)?;
        for view in all.iter().filter(|entry| ids.contains(&entry.id)) {
            let hidden = |other: &&MountEntry| is_below(&other.at, &view.at) && !lies_on(&all, other, view.id);
            if let Some(other) = all.iter().find(hidden) {
                let [view, other] = [&view.at, &other.at].map(|at| shown_path(at));
                return Err(invalid(format!("a view at {view} would hide what is mounted at {other}")));
            }
        }
        Ok(())
    }

    fn make_mount_point(
        &self,
        view: &DesiredView,
        root: &Identity,
        done: &mut Vec<Step>,
    ) -> rustix::io::Result<OwnedFd> {
        let _acting = ActingAs::new(root);
        let mut made = Vec::new();
        let point = mounts::make_mount_point(self.root.as_fd(), &view.at, view.directory, &mut made);
        done.extend(made.into_iter().map(Step::Made));
        point
    }

    fn undo(&self, done: Vec<Step>, root: &Identity) -> io::Result<()> {
        for step in done.into_iter().rev() {
            match step {
                Step::Closed(entry) => self.set_read_only(&entry, false)?,
                Step::Opened(entry) => self.set_read_only(&entry, true)?,
                Step::Unmounted(entry, clone) => mounts::attach_onto(clone.as_fd(), self.find(&entry.at)?.as_fd())?,
                Step::Made(made) => {
                    let _acting = ActingAs::new(root);
                    made.unmake();
                }
                // Nothing of the sandbox has run while it was there.
                Step::Attached(view) => self.detach_lazily(view.as_fd())?,
            }
        }
        Ok(())
    }

    /// The views of the sandbox.
    fn mounted(&mut self, overlays: &[Vec<u8>]) -> io::Result<Vec<MountedView>> {
        let all = self.table.read()?;
        let views = all.iter().filter(|entry| kind(&all, entry, overlays) == MountKind::View);
        views.map(|entry| self.look_at(entry)).collect()
    }

    fn look_at(&self, entry: &MountEntry) -> io::Result<MountedView> {
        let fd = self.open(entry)?;
        let (_, shows) = identity(fd.as_fd())?;
        Ok(MountedView { entry: entry.clone(), shows, read_only: is_read_only(fd.as_fd())? })
    }

    fn open(&self, entry: &MountEntry) -> io::Result<OwnedFd> {
        let fd = self.find(&entry.at)?;
        match identity(fd.as_fd())?.0 == entry.id {
            true => Ok(fd),
            false => Err(io::Error::other("a view is not where it is said to be")),
        }
    }

    /// Part by part: a guest may have moved it to where no path is short enough.
    fn find(&self, at: &[u8]) -> io::Result<OwnedFd> {
        let mut fd = self.root.try_clone()?;
        for part in at.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            fd = rustix::fs::openat(&fd, part, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        }
        Ok(fd)
    }

    /// The directory that a view lies in, and its name there. Looked up each time: an open directory of another view would keep
    /// that one in use.
    fn parent(&self, entry: &MountEntry) -> io::Result<(OwnedFd, CString)> {
        let cut = entry.at.iter().rposition(|byte| *byte == b'/').ok_or(io::ErrorKind::InvalidData)?;
        let (parent, name) = (self.find(&entry.at[..cut])?, CString::new(&entry.at[cut + 1..])?);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let there = rustix::fs::statx(&parent, &name, flags, StatxFlags::MNT_ID)?;
        match there.stx_mnt_id == entry.id {
            true => Ok((parent, name)),
            false => Err(io::Error::other("a view is not where it is said to be")),
        }
    }

    fn clone_of(&self, entry: &MountEntry) -> io::Result<OwnedFd> {
        let (parent, name) = self.parent(entry)?;
        mounts::clone_of(parent.as_fd(), &name)
    }

    fn set_read_only(&self, entry: &MountEntry, read_only: bool) -> io::Result<()> {
        mounts::set_read_only(self.open(entry)?.as_fd(), read_only)
    }

    /// By its name in the directory around it, since a descriptor of it would keep it in use. Nobody can give the name to something
    /// else meanwhile: the commands stand still, and the gate of the file interface is closed.
    fn unmount(&self, entry: &MountEntry) -> io::Result<()> {
        let (parent, name) = self.parent(entry)?;
        rustix::process::fchdir(&parent)?;
        let unmounted = mounts::unmount(&name);
        rustix::process::fchdir(&self.root)?; // the parent may be the next to go
        unmounted
    }

    /// By its descriptor.
    fn detach_lazily(&self, view: BorrowedFd<'_>) -> io::Result<()> {
        rustix::process::fchdir(&self.descriptors)?;
        mounts::detach_lazily(&CString::new(view.as_raw_fd().to_string())?)
    }
}

impl DesiredView {
    fn of(mount: Mount) -> Option<io::Result<Self>> {
        let Mount { fd, place: Place::View { at, directory }, .. } = mount else { return None };
        let known = || {
            let (id, shows) = identity(fd.as_fd())?;
            // Not what was asked for: a directory of the host may lie where nothing can be written.
            Ok((id, shows, is_read_only(fd.as_fd())?))
        };
        Some(known().map(|(id, shows, read_only)| Self { at, directory, read_only, fd, id, shows }))
    }

    /// Whether a view that is there shows the same, at the same place.
    fn is(&self, view: &MountedView) -> bool {
        self.at == view.entry.at && self.shows == view.shows
    }
}

/// The views that stay: what they show and where is as wanted, and nothing around them changes.
fn kept(desired: &[DesiredView], mounted: &[MountedView]) -> Vec<u64> {
    let stays = |view: &&MountedView| desired.iter().any(|desired| desired.is(view));
    let mut kept: Vec<&MountedView> = mounted.iter().filter(stays).collect();
    loop {
        let is_kept = |view: &MountedView| kept.iter().any(|kept| kept.entry == view.entry);
        let going = mounted.iter().filter(|view| !is_kept(view)).map(|view| &view.entry.at);
        let new = desired.iter().filter(|desired| !kept.iter().any(|view| desired.is(view))).map(|view| &view.at);
        let changed: Vec<&Vec<u8>> = going.chain(new).collect();
        let is_still = |view: &&MountedView| !changed.iter().any(|changed| is_below(&view.entry.at, changed));
        let still: Vec<&MountedView> = kept.iter().copied().filter(is_still).collect();
        if still.len() == kept.len() {
            return kept.iter().map(|view| view.entry.id).collect();
        }
        kept = still;
    }
}

fn shown_path(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn failed(error: io::Error) -> Error {
    Error::failed("changing the views", error)
}

fn depth(path: &[u8]) -> usize {
    path.iter().filter(|byte| **byte == b'/').count()
}

/// The number of the mount, and what it shows there.
fn identity(fd: BorrowedFd<'_>) -> io::Result<(u64, (u64, u64))> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID | StatxFlags::INO)?;
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    Ok((stat.stx_mnt_id, (device, stat.stx_ino)))
}

fn is_read_only(mount: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fstatvfs(mount)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}
