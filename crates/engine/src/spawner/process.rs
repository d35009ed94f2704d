//! The spawner's own side: it prepares mounts, clones, writes id maps, and answers.
//!
//! Its mount namespace holds next to nothing, so a clone of it is cheap and shows nothing of the host. What a sandbox
//! needs comes as descriptors of detached mounts; this process never opens a path of a user.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use crate::{
    init,
    kernel::{
        fdpass, mounts,
        sys::{self, Errno},
    },
    walls,
    wire::{Failure, Place, Spawn, Spawned, Step},
};

/// As many layers as one sandbox may have in all: the directories for them are made once.
pub(crate) const MAX_LOWER: usize = 48;

const SOCKET: RawFd = 0;

/// Takes over a process that was started as the spawner. Ends when the server does.
pub(crate) fn main() -> ! {
    match prepare().and_then(|()| serve()) {
        Ok(()) => sys::exit(0),
        Err(error) => {
            eprintln!("cabana: the spawner cannot work: {error}");
            sys::exit(1)
        }
    }
}

fn prepare() -> io::Result<()> {
    sys::set_name(c"cabana-spawner");
    let _ = sys::setsid();
    sys::close_range(3, u32::MAX, 0)?;
    // Nobody may look into this process or its clones, guest root in a rootless sandbox least of all.
    sys::prctl(libc::PR_SET_DUMPABLE, 0)?;
    sys::umask(0);
    raise_open_files();
    // Children are not waited for: the server holds a pidfd of each.
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    walls::prepare();
    enter_own_root()
}

fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        let _ = sys::set_rlimit(libc::RLIMIT_NOFILE, limit.rlim_max, limit.rlim_max);
    }
}

/// A root of its own: a tmpfs with places for mounts, a complete /proc (without one the kernel lets no user namespace
/// mount another), and a /dev to be cloned into every sandbox.
fn enter_own_root() -> io::Result<()> {
    let said = |step: &'static str| move |error: io::Error| io::Error::new(error.kind(), format!("{step}: {error}"));
    sys::unshare(libc::CLONE_NEWNS).map_err(io::Error::from).map_err(said("a mount namespace of its own"))?;
    mounts::plain(c"none", c"/", c"none", libc::MS_REC | libc::MS_PRIVATE, c"").map_err(said("private mounts"))?;
    let place =
        [c"/tmp", c"/run", c"/mnt"].into_iter().find(|dir| rustix::fs::stat(*dir).is_ok_and(|stat| is_dir(&stat)));
    let place = place.ok_or_else(|| io::Error::other("there is no /tmp, /run or /mnt to mount on"))?;
    mounts::plain(c"cabana", place, c"tmpfs", libc::MS_NOSUID, c"mode=0755,size=1m").map_err(said("a tmpfs"))?;
    // The devices may have to be bound from the host's /dev, which is only there before the change of root.
    rustix::process::chdir(place)?;
    for dir in ["n", "u", "l", "e", "dev", "proc"] {
        rustix::fs::mkdir(dir, 0o755.into())?;
    }
    for number in 0..MAX_LOWER {
        rustix::fs::mkdir(format!("l/{number}"), 0o755.into())?;
    }
    // What is hidden inside is hidden behind this; nobody can write to it.
    mounts::plain(
        c"cabana-empty",
        c"e",
        c"tmpfs",
        libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_RDONLY,
        c"mode=0555,size=4k",
    )
    .map_err(said("an empty directory"))?;
    mounts::plain(c"/proc", c"proc", c"none", libc::MS_BIND | libc::MS_REC, c"").map_err(said("a bind of /proc"))?;
    make_devices().map_err(said("the devices"))?;
    mounts::pivot_here().map_err(said("a root of its own"))
}

fn is_dir(stat: &rustix::fs::Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
}

/// `dev` below the working directory, shared read-only by all sandboxes: one mount for each instead of eight.
fn make_devices() -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mkdir, mknodat, openat, symlink};
    mounts::plain(c"cabana-dev", c"dev", c"tmpfs", libc::MS_NOSUID | libc::MS_NOEXEC, c"mode=0755,size=64k")?;
    let devices = [
        (c"dev/null", c"/dev/null", 1, 3),
        (c"dev/zero", c"/dev/zero", 1, 5),
        (c"dev/full", c"/dev/full", 1, 7),
        (c"dev/random", c"/dev/random", 1, 8),
        (c"dev/urandom", c"/dev/urandom", 1, 9),
        (c"dev/tty", c"/dev/tty", 5, 0),
    ];
    for (path, host, major, minor) in devices {
        if mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor)).is_err() {
            openat(CWD, path, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, 0o666.into())?;
            mounts::plain(host, path, c"none", libc::MS_BIND, c"")?;
        }
    }
    for dir in ["dev/pts", "dev/shm"] {
        mkdir(dir, 0o755.into())?;
    }
    for (target, link) in [
        ("/proc/self/fd", "dev/fd"),
        ("/proc/self/fd/0", "dev/stdin"),
        ("/proc/self/fd/1", "dev/stdout"),
        ("/proc/self/fd/2", "dev/stderr"),
        ("pts/ptmx", "dev/ptmx"),
    ] {
        symlink(target, link)?;
    }
    let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NOEXEC;
    mounts::plain(c"none", c"dev", c"none", flags, c"")
}

fn serve() -> io::Result<()> {
    // SAFETY: descriptor 0 is the socket that we were started with, and it stays open as long as this process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET) };
    let mut maps = Maps::default();
    let mut buffer = vec![0; fdpass::MAX_MESSAGE];
    loop {
        let mut ready = [libc::pollfd { fd: SOCKET, events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut ready, None)?;
        let (length, fds) = match fdpass::receive(socket, &mut buffer) {
            Ok((0, _)) => return Ok(()),
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let answer =
            Spawn::decode(&buffer[..length]).map_err(|_| (0, Failure { step: Step::Request, errno: libc::EINVAL }));
        let answer = answer.and_then(|spawn| launch(&spawn, fds, &mut maps).map_err(|failure| (spawn.tag, failure)));
        let (message, pidfd) = match answer {
            Ok((tag, pid, pidfd)) => (Spawned { tag, pid: pid as u32, failure: None }, Some(pidfd)),
            Err((tag, failure)) => (Spawned { tag, pid: 0, failure: Some(failure) }, None),
        };
        let pidfds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
        while let Err(error) = fdpass::send(socket, &message.encode(), &pidfds) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            sys::poll(&mut [libc::pollfd { fd: SOCKET, events: libc::POLLOUT, revents: 0 }], None)?;
        }
    }
}

fn at(step: Step) -> impl Fn(io::Error) -> Failure {
    move |error| Failure { step, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

fn err(step: Step) -> impl Fn(Errno) -> Failure {
    move |errno| Failure { step, errno: errno.0 }
}

fn launch(spawn: &Spawn, fds: Vec<OwnedFd>, maps: &mut Maps) -> Result<(u64, i32, OwnedFd), Failure> {
    let malformed = Failure { step: Step::Request, errno: libc::EINVAL };
    let mut fds = fds.into_iter();
    let control = fds.next().ok_or(malformed)?;
    let cgroup = if spawn.cgroup { Some(fds.next().ok_or(malformed)?) } else { None };
    let layers: Vec<OwnedFd> = fds.collect();
    if layers.len() != spawn.mounts.len() || layers.len() > MAX_LOWER {
        return Err(malformed);
    }
    for (plan, mount) in spawn.mounts.iter().zip(&layers) {
        let mut attributes = if plan.read_only { mounts::RDONLY } else { 0 };
        if let Place::View { .. } = plan.place {
            attributes |= mounts::NOSUID | mounts::NODEV;
        }
        let map = match plan.ids_count {
            0 => None,
            count => Some(maps.get(plan.ids_from, plan.ids_to, count)?),
        };
        mounts::set_attributes(mount.as_fd(), attributes, map).map_err(at(Step::MountIds))?;
    }
    let (go_read, go_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| at(Step::Clone)(e.into()))?;

    // A user namespace belongs to the effective uid that makes it, and what its processes use up (inotify, namespaces,
    // keys) is counted there: with an id of its own, a sandbox exhausts itself and neither a neighbour nor the host. The
    // file-system uid stays ours, since entering the cgroup is judged by it.
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    sys::setresuid(sys::SAME, spawn.ids_base, sys::SAME).map_err(err(Step::Clone))?;
    sys::setfsuid(0);
    let forked = sys::fork(sys::Clone { flags: flags as u64, cgroup: cgroup.as_ref().map(AsRawFd::as_raw_fd) });
    if let Ok(sys::Forked::Child) = forked {
        drop(go_write);
        init::main(spawn, &layers, control, cgroup, &go_read);
    }
    sys::setresuid(sys::SAME, 0, sys::SAME).map_err(err(Step::Clone))?;
    let sys::Forked::Parent { pid, pidfd } = forked.map_err(err(Step::Clone))? else {
        unreachable!("the child never returns")
    };
    // SAFETY: the kernel made it for us in clone3.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    if let Err(error) = write_id_maps(pid, 0, spawn.ids_base, spawn.ids_count) {
        let _ = sys::pidfd_kill(pidfd.as_raw_fd());
        return Err(at(Step::IdMap)(error));
    }
    let _ = sys::write(go_write.as_raw_fd(), b"g");
    Ok((spawn.tag, pid, pidfd))
}

fn write_id_maps(pid: i32, inside: u32, outside: u32, count: u32) -> io::Result<()> {
    let map = format!("{inside} {outside} {count}\n");
    for file in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{file}"), &map)?;
    }
    Ok(())
}

/// User namespaces that are nothing but an id map for mounts. The latest are kept: a range that is leased again, as it is
/// when sandboxes come and go, costs nothing.
#[derive(Default)]
struct Maps {
    kept: VecDeque<((u32, u32, u32), OwnedFd)>,
}

impl Maps {
    /// Every descriptor that is kept is copied by every clone.
    const KEEP: usize = 64;

    fn get(&mut self, from: u32, to: u32, count: u32) -> Result<BorrowedFd<'_>, Failure> {
        let key = (from, to, count);
        if let Some(place) = self.kept.iter().position(|(kept, _)| *kept == key) {
            self.kept.swap(0, place);
        } else {
            let map = make_map(from, to, count).map_err(at(Step::MountIds))?;
            self.kept.truncate(Self::KEEP - 1);
            self.kept.push_front((key, map));
        }
        Ok(self.kept[0].1.as_fd())
    }
}

fn make_map(from: u32, to: u32, count: u32) -> io::Result<OwnedFd> {
    extern "C" fn wait_for_the_end(_: usize) -> ! {
        loop {
            let _ = sys::poll(&mut [], None);
        }
    }
    let stack = sys::Stack::new()?;
    let how = sys::Clone { flags: libc::CLONE_NEWUSER as u64, cgroup: None };
    // SAFETY: the function only waits in the kernel, and never returns to its stack once it was killed.
    let pid = unsafe { sys::spawn(how, sys::Secret::default(), &stack, wait_for_the_end, 0) }?;
    let made = write_id_maps(pid, from, to, count).and_then(|()| {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        Ok(rustix::fs::open(format!("/proc/{pid}/ns/user"), flags, rustix::fs::Mode::empty())?)
    });
    let _ = sys::kill(pid, libc::SIGKILL);
    made
}
