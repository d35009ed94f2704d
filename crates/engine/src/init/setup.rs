//! From a bare clone to a sandbox: mounts, names, walls. Every step that fails says which it was.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{
    Ready,
    notifications::{Notifications, OwnMounts},
    oom_score::OomScore,
    sockets::TCP_QUEUE,
    tree::Forest,
};
use crate::{
    kernel::{
        mounts,
        notify::Listener,
        sys::{self, Errno},
    },
    walls,
    wire::{Failure, Place, SetupPlan, Step},
};

type Done<T = ()> = Result<T, Failure>;

fn io_at(step: Step) -> impl Fn(io::Error) -> Failure {
    move |error| Failure { step, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

fn rx_at(step: Step) -> impl Fn(rustix::io::Errno) -> Failure {
    move |errno| Failure { step, errno: errno.raw_os_error() }
}

fn sys_at(step: Step) -> impl Fn(Errno) -> Failure {
    move |errno| Failure { step, errno: errno.0 }
}

/// What every init has before it knows what it is to be.
pub(super) struct Prepared {
    null: OwnedFd,
    signals: OwnedFd,
    forest: Forest,
    single_id: bool,
    terminals: u64,
    /// The setting of how much memory System V may share, for writing: all settings are read-only by now.
    shared_pages: Option<OwnedFd>,
    oom_score: Option<OomScore>,
}

impl Prepared {
    /// The clone has whatever the spawner had open. Nothing of it stays.
    pub(super) fn close_all_others(&self, control: &OwnedFd) -> Done {
        let oom_score = self.oom_score.as_ref().map(AsRef::as_ref);
        let kept = [Some(control), Some(&self.null), Some(&self.signals), self.shared_pages.as_ref(), oom_score];
        let kept = kept.into_iter().flatten().map(AsRawFd::as_raw_fd);
        let mut kept: Vec<RawFd> = kept.chain(self.forest.descriptors()).collect();
        kept.sort_unstable();
        sys::close_all_but(&kept).map_err(sys_at(Step::Descriptors)) // the standard ones are /dev/null by now
    }
}

/// All that can be done ahead, while nobody waits for it.
pub(super) fn prepare(hostname: &[u8], cgroup: Option<OwnedFd>, devices: Option<OwnedFd>) -> Done<Prepared> {
    let single_id = become_root()?;
    bring_loopback_up()?;
    rustix::system::sethostname(hostname).map_err(rx_at(Step::Hostname))?;
    // Now, and not in the clone: only from here on is the sandbox's own cgroup the root of what it sees. One without a group sees
    // its server's as the root, and not where on the host that lies; a kernel without cgroups has nothing to be seen.
    let unshared = sys::unshare(libc::CLONE_NEWCGROUP);
    let forest = match cgroup {
        Some(cgroup) => {
            unshared.map_err(sys_at(Step::Cgroup))?;
            Forest::in_cgroup(&cgroup).map_err(sys_at(Step::Cgroup))?
        }
        None => Forest::without_cgroup(),
    };
    if let Some(devices) = devices {
        mounts::attach(devices.as_fd(), c"/dev").map_err(io_at(Step::Dev))?;
    }
    let null = sys::open_at(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR).map_err(sys_at(Step::Dev))?;
    // SAFETY: opened just now.
    let null = unsafe { OwnedFd::from_raw_fd(null) };
    for standard in 0..3 {
        sys::dup3(null.as_raw_fd(), standard, 0).map_err(sys_at(Step::Descriptors))?;
    }
    let signals = sys::signalfd(1 << (libc::SIGCHLD - 1)).map_err(sys_at(Step::Walls))?;
    // SAFETY: opened just now.
    let signals = unsafe { OwnedFd::from_raw_fd(signals) };
    let (shared_pages, oom_score) = mount_proc()?;
    walls::drop_bounding().map_err(io_at(Step::Walls))?;
    Ok(Prepared { null, signals, forest, single_id, terminals: terminals_allowed(), shared_pages, oom_score })
}

/// From here to the end somebody waits.
pub(super) fn finish(prepared: Prepared, plan: &SetupPlan, mounts: &[OwnedFd]) -> Done<Ready> {
    attach_layers(plan, mounts)?;
    mount_overlays(plan)?;
    let new_root = open_dir(c"/n", Step::Overlay)?;
    let mut own_mounts = overlays(plan, &new_root)?;
    own_mounts.extend(keep_writable(plan, new_root.as_fd())?);
    let Prepared { null, signals, forest, single_id, terminals, shared_pages, oom_score } = prepared;
    let terminals = mount_dev(single_id, terminals, plan.shared_memory, new_root.as_fd())?;
    own_mounts.push(open_dir(c"/n/dev/shm", Step::Dev)?);
    let without_views = copy_own_mounts(plan, &new_root)?;
    mount_views(plan, mounts, new_root.as_fd())?;
    bound_shared_memory(shared_pages, plan.shared_memory);
    move_proc(new_root.as_fd())?;
    if plan.writable.is_some() {
        set_root_read_only(plan, &new_root, libc::MS_RDONLY)?;
    }
    rustix::process::fchdir(&new_root).map_err(rx_at(Step::Pivot))?;
    mounts::pivot_here().map_err(io_at(Step::Pivot))?;
    let root = open_dir(c"/", Step::Pivot)?;
    let (secret, listener) = raise_walls(plan.sudo)?;
    let own_mounts = OwnMounts::new(own_mounts, without_views).map_err(rx_at(Step::Overlay))?;
    let notifications = Notifications::new(listener.map(Listener::new), own_mounts, 2 * plan.shared_memory, secret);
    Ok(Ready { null, signals, forest, root, terminals, secret, notifications, oom_score })
}

/// Whether there is no id but root's: then groups are refused, and there is none to be rid of.
fn become_root() -> Done<bool> {
    let single_id = sys::setgroups(&[]).is_err();
    sys::setresgid(0, 0, 0).map_err(sys_at(Step::BecomeRoot))?;
    sys::setresuid(0, 0, 0).map_err(sys_at(Step::BecomeRoot))?;
    sys::umask(0o022);
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(sys_at(Step::BecomeRoot))?;
    Ok(single_id)
}

fn open_dir(path: &CStr, step: Step) -> Done<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(rx_at(step))
}

/// A directory in the new root that must not be a link: a template could point it anywhere.
fn open_mount_point(root: BorrowedFd<'_>, name: &CStr, step: Step) -> Done<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(root, name, flags, Mode::empty()).map_err(rx_at(step))
}

fn path_of(fd: &OwnedFd) -> CString {
    // Digits and slashes only: there is no NUL in it.
    CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default()
}

fn lower_place(number: usize) -> CString {
    CString::new(format!("/l/{number}")).unwrap_or_default()
}

fn attach_layers(plan: &SetupPlan, layers: &[OwnedFd]) -> Done {
    for (number, (place, mount)) in plan.mounts.iter().zip(layers).enumerate() {
        match place {
            Place::Own => mounts::attach(mount.as_fd(), c"/u").map_err(io_at(Step::Attach))?,
            Place::Lower { .. } => mounts::attach(mount.as_fd(), &lower_place(number)).map_err(io_at(Step::Attach))?,
            Place::View { .. } => {}
        }
    }
    Ok(())
}

/// The places have names that mean nothing, since every process inside can read them in its mountinfo.
fn mount_overlays(plan: &SetupPlan) -> Done {
    for (number, target) in plan.overlays.iter().enumerate() {
        let lower: Vec<String> = plan
            .mounts
            .iter()
            .enumerate()
            .filter(|(_, place)| **place == Place::Lower { overlay: number as u32 })
            .map(|(at, _)| format!("/l/{at}"))
            .collect();
        let volatile = if plan.volatile { ",volatile" } else { "" };
        // An attribute of a file in a layer leads no directory elsewhere, whatever the kernel's defaults become.
        let options = format!(
            "userxattr,redirect_dir=nofollow,metacopy=off,lowerdir={},upperdir=/u/upper{number},\
             workdir=/u/work{number}{volatile}",
            lower.join(":")
        );
        let options = CString::new(options).map_err(|_| Failure { step: Step::Overlay, errno: libc::EINVAL })?;
        let suid = if plan.sudo { 0 } else { libc::MS_NOSUID };
        let point = match number {
            0 => open_dir(c"/n", Step::Overlay)?,
            _ => {
                let root = open_dir(c"/n", Step::Overlay)?;
                let name =
                    CString::new(&target[1..]).map_err(|_| Failure { step: Step::Overlay, errno: libc::EINVAL })?;
                open_mount_point(root.as_fd(), &name, Step::Overlay)?
            }
        };
        mounts::plain(c"cabana", &path_of(&point), c"overlay", libc::MS_NODEV | suid, &options)
            .map_err(io_at(Step::Overlay))?;
    }
    Ok(())
}

/// The numbers of the overlays' mounts, before a view hides one of them.
fn overlays(plan: &SetupPlan, root: &OwnedFd) -> Done<Vec<OwnedFd>> {
    let mut mounts = vec![root.try_clone().map_err(io_at(Step::Overlay))?];
    for target in plan.overlays.iter().skip(1) {
        let name = CString::new(&target[1..]).map_err(|_| Failure { step: Step::Overlay, errno: libc::EINVAL })?;
        mounts.push(open_mount_point(root.as_fd(), &name, Step::Overlay)?);
    }
    Ok(mounts)
}

fn mount_views(plan: &SetupPlan, layers: &[OwnedFd], root: BorrowedFd<'_>) -> Done {
    for (place, mount) in plan.mounts.iter().zip(layers) {
        if let Place::View { at, directory } = place {
            let point = mounts::make_mount_point(root, at, *directory, &mut Vec::new()).map_err(rx_at(Step::View))?;
            mounts::attach_onto(mount.as_fd(), point.as_fd()).map_err(io_at(Step::View))?;
        }
    }
    Ok(())
}

/// A mount of its own for each directory that can be written where the root cannot: so it keeps what it may. Views come onto
/// them. What is not there, or is reached by a link, can only be read: a link may lead to the root itself. Gives the mounts'
/// numbers.
fn keep_writable(plan: &SetupPlan, root: BorrowedFd<'_>) -> Done<Vec<OwnedFd>> {
    let mut kept = Vec::new();
    for path in plan.writable.iter().flatten() {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let Ok(point) = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) else { continue };
        let same = mounts::detach_open(point.as_fd()).map_err(io_at(Step::ReadOnly))?;
        mounts::attach_onto(same.as_fd(), point.as_fd()).map_err(io_at(Step::ReadOnly))?;
        kept.push(same);
    }
    Ok(kept)
}

/// The mounts of its own as they are before a view is put onto them, and read-only where they are to be. Before there is a `/proc`,
/// whose links lead to what is open, and from there to views.
fn copy_own_mounts(plan: &SetupPlan, root: &OwnedFd) -> Done<OwnedFd> {
    let copy = || mounts::detach_tree(root.as_fd()).map_err(io_at(Step::Overlay));
    if plan.writable.is_none() {
        return copy();
    }
    set_root_read_only(plan, root, libc::MS_RDONLY)?;
    let copied = copy()?;
    set_root_read_only(plan, root, 0)?;
    Ok(copied)
}

/// For good after all that is made in it: the filter forbids to open it again.
fn set_root_read_only(plan: &SetupPlan, root: &OwnedFd, read_only: u64) -> Done {
    let suid = if plan.sudo { 0 } else { libc::MS_NOSUID };
    let flags = libc::MS_REMOUNT | libc::MS_BIND | read_only | libc::MS_NODEV | suid;
    let close =
        |point: &OwnedFd| mounts::plain(c"none", &path_of(point), c"none", flags, c"").map_err(io_at(Step::ReadOnly));
    for target in plan.overlays.iter().skip(1) {
        let name = CString::new(&target[1..]).map_err(|_| Failure { step: Step::ReadOnly, errno: libc::EINVAL })?;
        close(&open_mount_point(root.as_fd(), &name, Step::ReadOnly)?)?;
    }
    close(root)
}

/// Whoever unshares a user namespace has all capabilities in it again, whatever was taken away before: so there are none.
fn forbid_user_namespaces() -> Done {
    std::fs::write("/p/sys/user/max_user_namespaces", "0").map_err(io_at(Step::Walls))
}

/// Instances of inotify count for whoever owns the user namespace as well, who has 128: without ids of its own a sandbox takes those of
/// the server. A program needs one.
fn bound_watchers() {
    let _ = std::fs::write("/p/sys/user/max_inotify_instances", "32");
}

/// Segments of System V stay without any process, as files in `/dev/shm` do: so they have the same bound. A kernel whose
/// settings of a namespace are the host's to make refuses it, and counts them as memory all the same.
fn bound_shared_memory(setting: Option<OwnedFd>, bytes: u64) {
    let pages = bytes / rustix::param::page_size() as u64;
    if let Some(setting) = setting {
        let _ = rustix::io::write(setting, pages.max(1).to_string().as_bytes());
    }
}

/// One call looks at all that wait at a set of semaphores, for each that it wakes, with all they ask for, and nothing else runs on that processor
/// meanwhile. As small a set as kernels of old had, which databases are content with. As to who may set it, see above.
fn bound_semaphores() {
    let _ = std::fs::write("/p/sys/kernel/sem", "250 32000 32 128");
}

/// Queues of TCP connections that nobody accepts count for no limit, nor do options of sockets: both are short here. So is what the server
/// has sent to a guest that does not read: it is the server's, and the kernel counts it for the whole machine.
fn bound_queues() -> Done {
    for (setting, usual) in [("tcp_rmem", TCP_QUEUE), ("tcp_wmem", 16 << 10)] {
        let lengths = format!("4096 {usual} {TCP_QUEUE}");
        std::fs::write(format!("/p/sys/net/ipv4/{setting}"), lengths).map_err(io_at(Step::Network))?;
    }
    // The setting is the host's alone on older kernels. Options, and what is sent beside bytes, are some hundred bytes long.
    let _ = std::fs::write("/p/sys/net/core/optmem_max", "8192");
    // Nor do notices of when something was sent, which have it with them: a message asks for one, and needs no option of its socket.
    let _ = std::fs::write("/p/sys/net/core/tstamp_allow_data", "0");
    // Connections that were closed with something left to send stay for minutes where nobody reads it, and the kernel counts them for
    // the whole machine. All of these end on this machine, where who has not answered by then will not.
    // What is left of those that were closed in order is nobody's memory either, and lies among the connections of the whole machine.
    for (setting, value) in [("tcp_orphan_retries", "1"), ("tcp_fin_timeout", "5"), ("tcp_max_tw_buckets", "2048")] {
        std::fs::write(format!("/p/sys/net/ipv4/{setting}"), value).map_err(io_at(Step::Network))?;
    }
    // Nor is what the kernel remembers of those that it tracks. There are none where the machine tracks none.
    for (setting, secs) in [("tcp_timeout_time_wait", "10"), ("udp_timeout_stream", "30")] {
        let _ = std::fs::write(format!("/p/sys/net/netfilter/nf_conntrack_{setting}"), secs);
    }
    Ok(())
}

/// What /proc tells of the host beyond what the kernel keeps to itself, and what could be written by mistake of a kernel.
const HIDDEN: &[&CStr] = &[
    c"/p/acpi",
    c"/p/asound",
    c"/p/bus",
    c"/p/cmdline",
    c"/p/diskstats",
    c"/p/fs",
    c"/p/interrupts",
    c"/p/iomem",
    c"/p/ioports",
    c"/p/irq",
    c"/p/kcore",
    c"/p/key-users",
    c"/p/keys",
    c"/p/latency_stats",
    c"/p/locks",
    c"/p/mtrr",
    c"/p/partitions",
    c"/p/pressure",
    c"/p/scsi",
    c"/p/sysrq-trigger",
    c"/p/timer_list",
];

/// Where it is made, ahead: most of what a sandbox has mounted hides something in it.
const PROC: &CStr = c"/p";

/// The settings of its namespaces are written through its own. In a `/proc` that all share, the kernel would look through
/// those of every live sandbox for them. Gives one that is written later, and what init writes of its own.
fn mount_proc() -> Done<(Option<OwnedFd>, Option<OomScore>)> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mounts::plain(c"proc", PROC, c"proc", flags, c"").map_err(io_at(Step::Proc))?;
    forbid_user_namespaces()?;
    bound_watchers();
    bound_semaphores();
    bound_queues()?;
    let shared_pages = rustix::fs::open(c"/p/sys/kernel/shmall", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok();
    let oom_score = OomScore::open(c"/p/1/oom_score_adj");
    // The files of process 1 belong to root inside, who could have the kernel end it first when memory runs out.
    for path in [c"/p/sys", c"/p/1"] {
        mounts::plain(path, path, c"none", libc::MS_BIND, c"").map_err(io_at(Step::Mask))?;
        let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | flags;
        mounts::plain(c"none", path, c"none", read_only, c"").map_err(io_at(Step::Mask))?;
    }
    mounts::plain(c"cabana-masks", c"/m", c"tmpfs", flags, c"mode=0755,size=4k,nr_inodes=8")
        .map_err(io_at(Step::Mask))?;
    hide_files_of_proc()?;
    mount_boot_id()?;
    mounts::detach_lazily(c"/m").map_err(io_at(Step::Mask))?;
    Ok((shared_pages, oom_score))
}

fn move_proc(root: BorrowedFd<'_>) -> Done {
    let point = open_mount_point(root, c"proc", Step::Proc)?;
    mounts::plain(PROC, &path_of(&point), c"none", libc::MS_MOVE, c"").map_err(io_at(Step::Proc))
}

/// Behind devices and a directory of the sandbox's own: who locks or watches them sees no neighbour. The directory has no name any
/// more: nothing can be put into it. Nor can files without a name, its mounts are read-only.
fn hide_files_of_proc() -> Done {
    const EMPTY: &CStr = c"/m/empty";
    rustix::fs::mkdir(EMPTY, 0o555.into()).map_err(rx_at(Step::Mask))?;
    for path in HIDDEN {
        let Ok(stat) = rustix::fs::stat(*path) else { continue };
        let over = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => EMPTY,
            _ => c"/dev/null",
        };
        mounts::plain(over, path, c"none", libc::MS_BIND, c"").map_err(io_at(Step::Mask))?;
        if over == EMPTY {
            let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            let read_only = libc::MS_REMOUNT | libc::MS_BIND | flags;
            mounts::plain(c"none", path, c"none", read_only, c"").map_err(io_at(Step::Mask))?;
        }
    }
    rustix::fs::rmdir(EMPTY).map_err(rx_at(Step::Mask))
}

/// The shared devices, terminals of its own, and memory to share. Gives the directory of the terminals.
fn mount_dev(single_id: bool, terminals: u64, shared_memory: u64, root: BorrowedFd<'_>) -> Done<OwnedFd> {
    let point = open_mount_point(root, c"dev", Step::Dev)?;
    mounts::plain(c"/dev", &path_of(&point), c"none", libc::MS_BIND | libc::MS_REC, c"").map_err(io_at(Step::Dev))?;
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
    // Group 5 is `tty` wherever there is such a group; with a single id there is no other group.
    let group = if single_id { "" } else { ",gid=5" };
    let options = format!("newinstance,ptmxmode=0666,mode=0620,max={terminals}{group}");
    let options = CString::new(options).unwrap_or_default();
    mounts::plain(c"devpts", c"/n/dev/pts", c"devpts", flags, &options).map_err(io_at(Step::Dev))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let options = CString::new(format!("mode=1777,size={shared_memory},nr_inodes=65536")).unwrap_or_default();
    mounts::plain(c"shm", c"/n/dev/shm", c"tmpfs", flags, &options).map_err(io_at(Step::Dev))?;
    open_dir(c"/n/dev/pts", Step::Dev)
}

/// The machine has some thousand terminals for all sandboxes: none of these takes more than its part of them.
fn terminals_allowed() -> u64 {
    const SANDBOXES: u64 = 64;
    let setting = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/pty/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let all = setting("max").zip(setting("reserve")).map_or(0, |(max, reserve)| max.saturating_sub(reserve));
    (all / SANDBOXES).clamp(16, 256)
}

/// Another one at each start, as a machine of its own would have: the host's would tell sandboxes which of them are neighbours, and
/// would tell nobody that everything in memory is gone. The file is on the memory to share, and has a mount and no name there.
fn mount_boot_id() -> Done {
    const MADE: &CStr = c"/m/boot_id";
    const SEEN: &CStr = c"/p/sys/kernel/random/boot_id";
    let id = make_secret()?.0.map(|half| format!("{half:016x}")).concat();
    // Chance in the form of a UUID: of the fourth version, and of the usual variant.
    let id = format!("{}-{}-4{}-a{}-{}\n", &id[..8], &id[8..12], &id[13..16], &id[17..20], &id[20..]);
    std::fs::write("/m/boot_id", id).map_err(io_at(Step::Mask))?;
    mounts::plain(MADE, SEEN, c"none", libc::MS_BIND, c"").map_err(io_at(Step::Mask))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | flags;
    mounts::plain(c"none", SEEN, c"none", read_only, c"").map_err(io_at(Step::Mask))?;
    std::fs::remove_file("/m/boot_id").map_err(io_at(Step::Mask))
}

fn bring_loopback_up() -> Done {
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: i16,
        rest: [u8; 22],
    }
    let socket = super::socket(false).map_err(io_at(Step::Network))?;
    let mut request = Request { name: [0; 16], flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: an ifreq of 40 bytes, as this request reads it.
    unsafe { sys::ioctl_with(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &mut request) }
        .map(drop)
        .map_err(sys_at(Step::Network))
}

/// The last step: from here on, nothing that init starts can get back what is taken away.
fn raise_walls(sudo: bool) -> Done<(sys::Secret, Option<OwnedFd>)> {
    if !sudo {
        walls::no_new_privs().map_err(io_at(Step::Walls))?;
    }
    let secret = make_secret()?;
    let listener = walls::install_seccomp(&walls::programs(secret.0)).map_err(io_at(Step::Walls))?;
    Ok((secret, listener))
}

fn make_secret() -> Done<sys::Secret> {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let got = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += got.map_err(rx_at(Step::Walls))?;
    }
    let half = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Ok(sys::Secret([half(&bytes[..8]), half(&bytes[8..])]))
}
