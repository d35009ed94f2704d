//! The spawner's own side: it clones, writes id maps, and answers.
//!
//! Its mount namespace holds next to nothing, so a clone of it is cheap and shows nothing of the host. What a sandbox
//! needs comes to its init as descriptors of detached mounts; this process never opens a path of a user.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
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
    wire::{Failure, Ids, IdsShown, Spawned, Step, ToSpawner},
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
    forbid_core_dumps();
    give_up_privileges_of_time();
    // What the server was started with as ignored (by a shell, by nohup, two of its own by posix_spawn) is not for sandboxes.
    sys::ignore_no_signal();
    // Children are not waited for: the server holds a pidfd of each. Nor does a closed standard error end this.
    for signal in [libc::SIGCHLD, libc::SIGPIPE] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
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

/// The host's own setting says where a core goes: into a file, or to a program of the host that runs as its root, which the
/// kernel starts whatever the limit is, unless that is exactly one byte. The filter keeps it there.
fn forbid_core_dumps() {
    if sys::set_rlimit(libc::RLIMIT_CORE, 1, 1).is_err() {
        let _ = sys::set_rlimit(libc::RLIMIT_CORE, 0, 0); // it was less already, and only root raises it
    }
}

/// What the server may have been given so that it goes on when others have to wait or end is not for sandboxes: their
/// processes would have it from here. What cannot be given up was not there.
fn give_up_privileges_of_time() {
    for right in [libc::RLIMIT_RTPRIO, libc::RLIMIT_NICE] {
        let _ = sys::set_rlimit(right, 0, 0);
    }
    let usual = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads a local; touches this process alone.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        // SAFETY: as above.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) };
    }
    // SAFETY: plain numbers.
    if unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) } < 0 {
        // SAFETY: as above.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
    }
    const PROTECTED: &str = "/proc/self/oom_score_adj";
    if std::fs::read_to_string(PROTECTED).is_ok_and(|score| score.starts_with('-')) {
        let _ = std::fs::write(PROTECTED, "0");
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
    for dir in ["n", "u", "l", "p", "m", "dev", "proc"] {
        rustix::fs::mkdir(dir, 0o755.into())?;
    }
    for number in 0..MAX_LOWER {
        rustix::fs::mkdir(format!("l/{number}"), 0o755.into())?;
    }
    mounts::plain(c"/proc", c"proc", c"none", libc::MS_BIND | libc::MS_REC, c"").map_err(said("a bind of /proc"))?;
    make_devices().map_err(said("the devices"))?;
    mounts::pivot_here().map_err(said("a root of its own"))
}

fn is_dir(stat: &rustix::fs::Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
}

const DEVICES: [(&CStr, &CStr, u32, u32); 6] = [
    (c"null", c"/dev/null", 1, 3),
    (c"zero", c"/dev/zero", 1, 5),
    (c"full", c"/dev/full", 1, 7),
    (c"random", c"/dev/random", 1, 8),
    (c"urandom", c"/dev/urandom", 1, 9),
    (c"tty", c"/dev/tty", 5, 0),
];

/// `dev` below the working directory. Without the right to make devices it has the host's, and all sandboxes share them:
/// then one can see when another opens one.
fn make_devices() -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, open, openat};
    mounts::plain(c"cabana-dev", c"dev", c"tmpfs", libc::MS_NOSUID | libc::MS_NOEXEC, c"mode=0755,size=64k")?;
    let dev = open(c"dev", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for (name, host, major, minor) in DEVICES {
        if make_device(dev.as_fd(), name, major, minor).is_err() {
            openat(&dev, name, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, 0o666.into())?;
            let path = std::ffi::CString::new([b"dev/", name.to_bytes()].concat())?;
            mounts::plain(host, &path, c"none", libc::MS_BIND, c"")?;
        }
    }
    make_beside_devices(dev.as_fd())?;
    let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NOEXEC;
    mounts::plain(c"none", c"dev", c"none", flags, c"")
}

/// Devices of one sandbox alone: who watches or locks them sees no neighbour.
fn own_devices() -> io::Result<OwnedFd> {
    let dev = mounts::tmpfs(&[(c"mode", c"0755"), (c"size", c"64k"), (c"source", c"cabana-dev")])?;
    for (name, _, major, minor) in DEVICES {
        make_device(dev.as_fd(), name, major, minor)?;
    }
    make_beside_devices(dev.as_fd())?;
    mounts::set_attributes(dev.as_fd(), mounts::RDONLY | mounts::NOSUID | mounts::NOEXEC, None)?;
    Ok(dev)
}

fn make_device(dev: BorrowedFd<'_>, name: &CStr, major: u32, minor: u32) -> io::Result<()> {
    use rustix::fs::{FileType, Mode, makedev, mknodat};
    Ok(mknodat(dev, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor))?)
}

fn make_beside_devices(dev: BorrowedFd<'_>) -> io::Result<()> {
    for dir in [c"pts", c"shm"] {
        rustix::fs::mkdirat(dev, dir, 0o755.into())?;
    }
    for (target, link) in [
        (c"/proc/self/fd", c"fd"),
        (c"/proc/self/fd/0", c"stdin"),
        (c"/proc/self/fd/1", c"stdout"),
        (c"/proc/self/fd/2", c"stderr"),
        (c"pts/ptmx", c"ptmx"),
    ] {
        rustix::fs::symlinkat(target, dev, link)?;
    }
    Ok(())
}

fn serve() -> io::Result<()> {
    // SAFETY: descriptor 0 is the socket that we were started with, and it stays open as long as this process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET) };
    answer_requests(socket, Request::act)
}

/// Until the server is gone.
pub(super) fn answer_requests(
    socket: BorrowedFd<'_>,
    act: impl Fn(Request) -> Result<OwnedFd, Failure>,
) -> io::Result<()> {
    let wait_for = |events| sys::poll(&mut [libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 }], None);
    let mut buffer = vec![0; fdpass::MAX_MESSAGE];
    loop {
        wait_for(libc::POLLIN)?;
        let (length, fds) = match fdpass::receive(socket, &mut buffer) {
            Ok((0, _)) => return Ok(()),
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let (tag, request) = Request::read(&buffer[..length], fds);
        let (failure, fd) = match request.and_then(&act) {
            Ok(fd) => (None, Some(fd)),
            Err(failure) => (Some(failure), None),
        };
        let (message, fds) = (Spawned { tag, failure }, fd.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        while let Err(error) = fdpass::send(socket, &message.encode(), &fds) {
            match error.kind() {
                io::ErrorKind::WouldBlock => {}
                _ if is_gone(&error) => return Ok(()),
                _ => return Err(error),
            }
            wait_for(libc::POLLOUT)?;
        }
    }
}

/// A server that was killed has not read all that was said to it.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn at(step: Step) -> impl Fn(io::Error) -> Failure {
    move |error| Failure { step, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

fn err(step: Step) -> impl Fn(Errno) -> Failure {
    move |errno| Failure { step, errno: errno.0 }
}

/// What the server asks for, with the descriptors that it takes. Further ones are closed.
pub(super) enum Request {
    Map(IdsShown),
    Clone { ids_base: u32, ids_count: u32, hostname: Vec<u8>, control: OwnedFd, cgroup: Option<OwnedFd> },
}

impl Request {
    /// With the tag of its answer.
    fn read(message: &[u8], fds: Vec<OwnedFd>) -> (u64, Result<Self, Failure>) {
        const MALFORMED: Failure = Failure { step: Step::Request, errno: libc::EINVAL };
        let Ok(asked) = ToSpawner::decode(message) else { return (0, Err(MALFORMED)) };
        (asked.tag(), Self::with_descriptors(asked, fds).ok_or(MALFORMED))
    }

    fn with_descriptors(asked: ToSpawner, fds: Vec<OwnedFd>) -> Option<Self> {
        match asked {
            ToSpawner::Map { ids, .. } => Some(Self::Map(ids)),
            ToSpawner::Clone { ids_base, ids_count, cgroup, hostname, .. } => {
                let mut fds = fds.into_iter();
                let control = fds.next()?;
                let cgroup = if cgroup { Some(fds.next()?) } else { None };
                Some(Self::Clone { ids_base, ids_count, hostname, control, cgroup })
            }
        }
    }

    fn act(self) -> Result<OwnedFd, Failure> {
        match self {
            Self::Map(ids) => make_map(ids).map_err(at(Step::MountIds)),
            Self::Clone { ids_base, ids_count, hostname, control, cgroup } => {
                clone_init(ids_base, ids_count, &hostname, control, cgroup)
            }
        }
    }
}

fn clone_init(
    ids_base: u32,
    ids_count: u32,
    hostname: &[u8],
    control: OwnedFd,
    cgroup: Option<OwnedFd>,
) -> Result<OwnedFd, Failure> {
    let devices = own_devices().ok(); // otherwise the shared ones
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
    sys::setresuid(sys::SAME, ids_base, sys::SAME).map_err(err(Step::Clone))?;
    sys::setfsuid(0);
    let forked = sys::fork(sys::Clone { flags: flags as u64, cgroup: cgroup.as_ref().map(AsRawFd::as_raw_fd) });
    if let Ok(sys::Forked::Child) = forked {
        drop(go_write);
        init::main(hostname, control, cgroup, devices, &go_read);
    }
    sys::setresuid(sys::SAME, 0, sys::SAME).map_err(err(Step::Clone))?;
    let sys::Forked::Parent { pid, pidfd } = forked.map_err(err(Step::Clone))? else {
        unreachable!("the child never returns")
    };
    // SAFETY: the kernel made it for us in clone3.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    if let Err(error) = write_id_maps(pid, IdsShown { from: Ids::both(0), to: Ids::both(ids_base), count: ids_count }) {
        let _ = sys::pidfd_kill(pidfd.as_raw_fd());
        return Err(at(Step::IdMap)(error));
    }
    let _ = sys::write(go_write.as_raw_fd(), b"g");
    Ok(pidfd)
}

fn write_id_maps(pid: i32, ids: IdsShown) -> io::Result<()> {
    let IdsShown { from, to, count } = ids;
    std::fs::write(format!("/proc/{pid}/uid_map"), format!("{} {} {count}\n", from.user, to.user))?;
    std::fs::write(format!("/proc/{pid}/gid_map"), format!("{} {} {count}\n", from.group, to.group))
}

/// A user namespace that is nothing but an id map: it lives as long as its descriptor.
fn make_map(ids: IdsShown) -> io::Result<OwnedFd> {
    extern "C" fn wait_for_the_end(spawner: usize) -> ! {
        // The spawner may be killed before it ends this process, which would wait for ever then.
        let _ = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize);
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as usize);
        if parent != spawner {
            sys::exit(0);
        }
        loop {
            let _ = sys::poll(&mut [], None);
        }
    }
    let stack = sys::Stack::new()?;
    let how = sys::Clone { flags: libc::CLONE_NEWUSER as u64, cgroup: None };
    // SAFETY: the function only waits in the kernel, and never returns to its stack once it was killed.
    let pid =
        unsafe { sys::spawn(how, sys::Secret::default(), &stack, wait_for_the_end, std::process::id() as usize) }?;
    let made = write_id_maps(pid, ids).and_then(|()| {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        Ok(rustix::fs::open(format!("/proc/{pid}/ns/user"), flags, rustix::fs::Mode::empty())?)
    });
    let _ = sys::kill(pid, libc::SIGKILL);
    made
}
