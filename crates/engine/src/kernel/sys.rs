//! Raw system calls.
//!
//! The child that init makes for a command shares init's memory until its exec, thread-local storage included, while init
//! goes on working. Whatever runs there may touch neither `errno` nor the heap, so these calls bypass libc altogether.
//! The spawner and init use the same calls: one way to talk to the kernel, and errors are values.
#![allow(unsafe_code)]

use std::{
    cmp::Ordering,
    ffi::CStr,
    fmt, io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from(*self))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        io::Error::from_raw_os_error(errno.0)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn syscall6(nr: i64, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel's calling convention of this architecture; the caller answers for the arguments.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn syscall6(nr: i64, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel's calling convention of this architecture; the caller answers for the arguments.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") nr,
            inlateout("x0") args[0] => ret,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    ret
}

fn check(ret: isize) -> Result<usize> {
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

/// # Safety
/// Each pointer among the arguments must be valid for what this call does with it.
#[inline(always)]
unsafe fn call(nr: i64, args: [usize; 6]) -> Result<usize> {
    // SAFETY: passed on to our caller.
    check(unsafe { syscall6(nr, args) })
}

macro_rules! sys {
    ($nr:ident $(, $arg:expr)*) => {{
        let list = [$(($arg) as usize),*];
        let mut args = [0usize; 6];
        args[..list.len()].copy_from_slice(&list);
        call(libc::$nr, args)
    }};
}

// ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// What clone3 is asked for. Stack empty: the child goes on where the parent is, in a copy of its memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct Clone {
    pub(crate) flags: u64,
    /// Where CLONE_INTO_CGROUP puts the child.
    pub(crate) cgroup: Option<RawFd>,
}

/// libc's constant of this name is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

impl Clone {
    fn args(&self) -> CloneArgs {
        let mut args = CloneArgs { flags: self.flags, exit_signal: libc::SIGCHLD as u64, ..CloneArgs::default() };
        if let Some(cgroup) = self.cgroup {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = cgroup as u64;
        }
        args
    }
}

pub(crate) enum Forked {
    Parent { pid: i32, pidfd: RawFd },
    Child,
}

/// A fork into new namespaces. Only for a single-threaded process: the child has its memory and none of its threads.
pub(crate) fn fork(how: Clone) -> Result<Forked> {
    let mut pidfd: RawFd = -1;
    let mut args = how.args();
    args.flags |= libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    // SAFETY: no CLONE_VM and no stack, so the child has a copy of everything and returns here like the parent.
    let pid = unsafe { sys!(SYS_clone3, &raw const args, size_of::<CloneArgs>()) }?;
    Ok(if pid == 0 { Forked::Child } else { Forked::Parent { pid: pid as i32, pidfd } })
}

/// A copy of this process. None in the child.
///
/// # Safety
/// Only for a process with one thread.
pub(crate) unsafe fn fork_self() -> Result<Option<i32>> {
    // SAFETY: no CLONE_VM and no stack, so the child has a copy of everything and returns here like the parent.
    let pid = unsafe { sys!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }?;
    Ok((pid != 0).then_some(pid as i32))
}

/// A stack for a child that shares our memory.
pub(crate) struct Stack {
    base: *mut libc::c_void,
}

impl Stack {
    const SIZE: usize = 64 * 1024;

    pub(crate) fn new() -> Result<Self> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { sys!(SYS_mmap, 0, Self::SIZE, prot, flags, usize::MAX, 0) }?;
        Ok(Self { base: base as *mut libc::c_void })
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever ran on it has execed or ended (see `spawn`).
        let _ = unsafe { sys!(SYS_munmap, self.base, Self::SIZE) };
    }
}

/// What init's filter wants to see in the upper half of the fifth register and in the sixth of some calls; zero where there is
/// no filter.
#[derive(Clone, Copy, Default)]
pub(crate) struct Secret(pub(crate) [u64; 2]);

impl Secret {
    /// The last two registers of a call whose fifth argument is this.
    fn with(self, fifth: u32) -> [usize; 2] {
        let [upper, sixth] = self.0;
        [(upper & !u64::from(u32::MAX) | u64::from(fifth)) as usize, sixth as usize]
    }
}

/// Starts `main(arg)` in a new process that shares our memory, on its own stack, and does not wait for its exec.
///
/// # Safety
/// `main` must only make raw system calls, must touch neither heap nor thread-local storage, and must end in exec or exit.
/// `arg` and `stack` must live until it has.
pub(crate) unsafe fn spawn(
    how: Clone,
    secret: Secret,
    stack: &Stack,
    main: extern "C" fn(usize) -> !,
    arg: usize,
) -> Result<i32> {
    let mut args = how.args();
    args.flags |= libc::CLONE_VM as u64;
    args.stack = stack.base as u64;
    args.stack_size = Stack::SIZE as u64;
    let ret: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the child begins on a stack of its own with both values in registers that the kernel copies, and never returns.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => ret,
            in("rdi") &raw const args, in("rsi") size_of::<CloneArgs>(),
            in("r8") secret.0[0], in("r9") secret.0[1],
            in("r12") arg, in("r13") main as usize,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") &raw const args as usize => ret,
            in("x1") size_of::<CloneArgs>(),
            in("x4") secret.0[0], in("x5") secret.0[1],
            in("x20") arg, in("x21") main as usize,
            lateout("x30") _,
        );
    }
    check(ret).map(|pid| pid as i32)
}

pub(crate) fn exit(code: i32) -> ! {
    loop {
        // SAFETY: ends this process; no pointers.
        let _ = unsafe { sys!(SYS_exit_group, code) };
    }
}

/// # Safety
/// `argv` and `envp` must be null-terminated arrays of NUL-terminated strings.
pub(crate) unsafe fn execve(
    path: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
) -> Errno {
    // SAFETY: promised by our caller.
    match unsafe { sys!(SYS_execve, path, argv, envp) } {
        Err(errno) => errno,
        Ok(_) => Errno(libc::EINVAL),
    }
}

pub(crate) struct Waited {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) cpu_us: u64,
    pub(crate) peak_kib: u64,
}

impl Waited {
    /// A child that asked to be traced is waited for whenever it stops, too: then it lives on.
    pub(crate) fn has_ended(&self) -> bool {
        libc::WIFEXITED(self.status) || self.was_killed()
    }

    pub(crate) fn was_killed(&self) -> bool {
        libc::WIFSIGNALED(self.status)
    }
}

/// One child that has ended or stopped, if any.
pub(crate) fn wait_any() -> Option<Waited> {
    wait(libc::WNOHANG)
}

/// The next child that ends or stops; `None` when there is none left.
pub(crate) fn wait_for_any() -> Option<Waited> {
    wait(0)
}

fn wait(options: i32) -> Option<Waited> {
    let mut status = 0i32;
    // SAFETY: rusage is plain numbers: all zero is a value of it.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: both point to locals that live through the call.
    let pid = unsafe { sys!(SYS_wait4, usize::MAX, &raw mut status, options | libc::__WALL, &raw mut usage) }.ok()?;
    let micros = |time: libc::timeval| (time.tv_sec as u64) * 1_000_000 + time.tv_usec as u64;
    (pid != 0).then(|| Waited {
        pid: pid as i32,
        status,
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
        peak_kib: usage.ru_maxrss as u64,
    })
}

/// Lets a process of the host's number come to its turn before others; not so what it starts.
pub(crate) fn favour(pid: u32) -> Result<()> {
    const RESET_ON_FORK: u64 = 1;
    /// The kernel's `sched_attr` of its first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        times: [u64; 3],
    }
    let size = size_of::<Attributes>() as u32;
    let policy = libc::SCHED_OTHER as u32;
    let attributes = Attributes { size, policy, flags: RESET_ON_FORK, nice: -15, priority: 0, times: [0; 3] };
    // SAFETY: reads a local that lives through the call.
    unsafe { sys!(SYS_sched_setattr, pid, &raw const attributes, 0) }.map(drop)
}

/// To every process of this pid namespace but process 1, who calls it: at once, so that none is missed by having just begun.
pub(crate) fn kill_all_others() {
    // SAFETY: no pointers.
    let _ = unsafe { sys!(SYS_kill, -1_i32, libc::SIGKILL) };
}

/// To one process: numbers up to zero mean many, and nobody here means those.
pub(crate) fn kill(pid: i32, signal: i32) -> Result<()> {
    if pid <= 0 {
        return Err(Errno(libc::ESRCH));
    }
    // SAFETY: no pointers.
    unsafe { sys!(SYS_kill, pid, signal) }.map(drop)
}

/// To a process group, at once: none of it escapes by a fork. Never to those that a small number means instead.
pub(crate) fn kill_group(group: i32) {
    if group > 1 {
        // SAFETY: no pointers.
        let _ = unsafe { sys!(SYS_kill, -group, libc::SIGKILL) };
    }
}

pub(crate) fn pidfd_kill(pidfd: RawFd) -> Result<()> {
    // SAFETY: no pointers but a null siginfo, which is allowed.
    unsafe { sys!(SYS_pidfd_send_signal, pidfd, libc::SIGKILL, 0, 0) }.map(drop)
}

pub(crate) fn setsid() -> Result<()> {
    // SAFETY: no pointers.
    unsafe { sys!(SYS_setsid) }.map(drop)
}

pub(crate) fn unshare(flags: i32) -> Result<()> {
    // SAFETY: only called in single-threaded processes of ours; no pointers.
    unsafe { sys!(SYS_unshare, flags) }.map(drop)
}

pub(crate) fn prctl(option: i32, value: usize) -> Result<()> {
    // SAFETY: only called with options that take a number.
    unsafe { sys!(SYS_prctl, option, value, 0, 0, 0) }.map(drop)
}

/// The name shown by ps.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: a NUL-terminated string, of which the kernel reads 16 bytes at most.
    let _ = unsafe { sys!(SYS_prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// An ioctl that takes a number or nothing.
pub(crate) fn ioctl(fd: RawFd, request: u64, value: usize) -> Result<usize> {
    // SAFETY: only called with requests whose argument is a number.
    unsafe { sys!(SYS_ioctl, fd, request, value) }
}

/// # Safety
/// `value` must be what `request` reads or fills.
pub(crate) unsafe fn ioctl_with<T>(fd: RawFd, request: u64, value: &mut T) -> Result<usize> {
    // SAFETY: promised by our caller.
    unsafe { sys!(SYS_ioctl, fd, request, ptr::from_mut(value)) }
}

/// What threads may have in common.
#[derive(Clone, Copy)]
pub(crate) enum Common {
    Memory = 1,
    Files = 2,
    /// Working directory and root.
    Place = 3,
}

/// Whether two threads of this machine have it in common. False where the kernel does not say.
pub(crate) fn have_in_common(what: Common, one: u32, other: u32) -> bool {
    compare(what, one, other) == Some(Ordering::Equal)
}

/// In an order of the kernel's own, in which what threads have in common is equal. `None` where it does not say.
pub(crate) fn compare(what: Common, one: u32, other: u32) -> Option<Ordering> {
    // SAFETY: plain numbers.
    match unsafe { sys!(SYS_kcmp, one, other, what as u32, 0, 0) } {
        Ok(0) => Some(Ordering::Equal),
        Ok(1) => Some(Ordering::Less),
        Ok(2) => Some(Ordering::Greater),
        _ => None,
    }
}

/// The same of files that two descriptors are open for.
pub(crate) fn compare_files(one: (u32, i32), other: (u32, i32)) -> Option<Ordering> {
    const KCMP_FILE: u32 = 0;
    // SAFETY: plain numbers.
    match unsafe { sys!(SYS_kcmp, one.0, other.0, KCMP_FILE, one.1, other.1) } {
        Ok(0) => Some(Ordering::Equal),
        Ok(1) => Some(Ordering::Less),
        Ok(2) => Some(Ordering::Greater),
        _ => None,
    }
}

/// Processor time of this thread.
pub(crate) fn thread_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) fn set_rlimit(what: u32, soft: u64, hard: u64) -> Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: reads a local.
    unsafe { sys!(SYS_prlimit64, 0, what, &raw const limit, 0) }.map(drop)
}

// ── identity ─────────────────────────────────────────────────────────────────────────────────────────────────────────

pub(crate) const SAME: u32 = u32::MAX;

pub(crate) fn setresuid(real: u32, effective: u32, saved: u32) -> Result<()> {
    // SAFETY: no pointers. Affects the calling thread alone, which is what the callers want.
    unsafe { sys!(SYS_setresuid, real, effective, saved) }.map(drop)
}

pub(crate) fn setresgid(real: u32, effective: u32, saved: u32) -> Result<()> {
    // SAFETY: as above.
    unsafe { sys!(SYS_setresgid, real, effective, saved) }.map(drop)
}

pub(crate) fn setfsuid(uid: u32) {
    // SAFETY: as above.
    let _ = unsafe { sys!(SYS_setfsuid, uid) };
}

pub(crate) fn setfsgid(gid: u32) {
    // SAFETY: as above.
    let _ = unsafe { sys!(SYS_setfsgid, gid) };
}

pub(crate) fn setgroups(groups: &[u32]) -> Result<()> {
    // SAFETY: reads the slice.
    unsafe { sys!(SYS_setgroups, groups.len(), groups.as_ptr()) }.map(drop)
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Those of a thread.
pub(crate) struct Capabilities([CapData; 2]);

impl Capabilities {
    /// These are permitted and in effect, and no others.
    pub(crate) fn exactly(mask: u64) -> Self {
        let half = |mask: u32| CapData { effective: mask, permitted: mask, inheritable: 0 };
        Self([half(mask as u32), half((mask >> 32) as u32)])
    }

    /// The same, but in effect only these, as far as they are permitted.
    pub(crate) fn only(&self, mask: u64) -> Self {
        let [mut low, mut high] = self.0;
        low.effective = mask as u32 & low.permitted;
        high.effective = (mask >> 32) as u32 & high.permitted;
        Self([low, high])
    }
}

const CAP_HEADER: CapHeader = CapHeader { version: 0x2008_0522, pid: 0 };

pub(crate) fn capabilities() -> Result<Capabilities> {
    let mut header = CAP_HEADER;
    let mut data = [CapData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: version 3 of the interface fills two elements.
    unsafe { sys!(SYS_capget, &raw mut header, data.as_mut_ptr()) }?;
    Ok(Capabilities(data))
}

pub(crate) fn set_capabilities(to: &Capabilities) -> Result<()> {
    let mut header = CAP_HEADER;
    // SAFETY: version 3 of the interface reads two elements.
    unsafe { sys!(SYS_capset, &raw mut header, to.0.as_ptr()) }.map(drop)
}

// ── descriptors ──────────────────────────────────────────────────────────────────────────────────────────────────────

pub(crate) fn dup3(from: RawFd, to: RawFd, flags: i32) -> Result<()> {
    // SAFETY: only called in a child of ours, on descriptors that it owns.
    unsafe { sys!(SYS_dup3, from, to, flags) }.map(drop)
}

pub(crate) fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    // SAFETY: the callers own every descriptor in the range.
    unsafe { sys!(SYS_close_range, first, last, flags) }.map(drop)
}

/// Closes every descriptor from 3 on but these, which must be in ascending order. Allocates nothing: for children that share
/// our memory, too.
pub(crate) fn close_all_but(kept: &[RawFd]) -> Result<()> {
    let mut first = 3;
    for keep in kept.iter().map(|fd| *fd as u32).filter(|fd| *fd >= 3) {
        if keep > first {
            close_range(first, keep - 1, 0)?;
        }
        first = keep + 1;
    }
    close_range(first, u32::MAX, 0)
}

pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    // SAFETY: reads the slice.
    unsafe { sys!(SYS_write, fd, bytes.as_ptr(), bytes.len()) }
}

pub(crate) fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: fills the slice at most.
    unsafe { sys!(SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) }
}

pub(crate) fn pread(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: fills the slice at most.
    unsafe { sys!(SYS_pread64, fd, buffer.as_mut_ptr(), buffer.len(), 0) }
}

pub(crate) fn open_at(dir: RawFd, path: &CStr, flags: i32) -> Result<RawFd> {
    // SAFETY: a NUL-terminated string.
    unsafe { sys!(SYS_openat, dir, path.as_ptr(), flags | libc::O_CLOEXEC, 0) }.map(|fd| fd as RawFd)
}

/// How a path is opened that a guest chose, behind the guests' filter.
pub(crate) fn open_at2(secret: Secret, dir: RawFd, path: &CStr, flags: u64, resolve: u64) -> Result<OwnedFd> {
    #[repr(C)]
    struct How {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    let (how, [fifth, sixth]) = (How { flags, mode: 0, resolve }, secret.with(0));
    // SAFETY: a NUL-terminated string, and a local of the size that is given.
    let fd = unsafe { sys!(SYS_openat2, dir, path.as_ptr(), &raw const how, size_of::<How>(), fifth, sixth) }?;
    // SAFETY: opened just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// What another process has open, by its number there. `thread` may be any of its threads.
pub(crate) fn duplicate_of(thread: u32, number: i32) -> Result<OwnedFd> {
    // The libc crate calls it by another type.
    const PIDFD_THREAD: u32 = libc::O_EXCL as u32;
    // SAFETY: plain numbers.
    let process = match unsafe { sys!(SYS_pidfd_open, thread, PIDFD_THREAD) } {
        // Kernels before 6.9 know whole processes alone.
        // SAFETY: plain numbers.
        Err(Errno(libc::EINVAL)) => unsafe { sys!(SYS_pidfd_open, leader_of(thread)?, 0) },
        opened => opened,
    }?;
    // SAFETY: opened just now.
    let process = unsafe { OwnedFd::from_raw_fd(process as RawFd) };
    // SAFETY: plain numbers.
    let fd = unsafe { sys!(SYS_pidfd_getfd, process.as_raw_fd(), number, 0) }?;
    // SAFETY: made just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn leader_of(thread: u32) -> Result<u32> {
    let status = super::mounts::open_proc(format!("/proc/{thread}/status"), rustix::fs::OFlags::RDONLY);
    let status = status.map_err(io::Error::from).and_then(|file| io::read_to_string(std::fs::File::from(file)));
    let status = status.map_err(|_| Errno(libc::ESRCH))?;
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    leader.and_then(|leader| leader.trim().parse().ok()).ok_or(Errno(libc::ESRCH))
}

/// One that asks the kernel for addresses and routes.
pub(crate) fn socket(secret: Secret, family: i32, kind: i32, protocol: i32) -> Result<OwnedFd> {
    let [fifth, sixth] = secret.with(0);
    // SAFETY: plain numbers.
    let fd = unsafe { sys!(SYS_socket, family, kind, protocol, 0, fifth, sixth) }?;
    // SAFETY: opened just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

pub(crate) fn listen(secret: Secret, socket: BorrowedFd<'_>, backlog: u32) -> Result<()> {
    let [fifth, sixth] = secret.with(0);
    // SAFETY: plain numbers.
    unsafe { sys!(SYS_listen, socket.as_raw_fd(), backlog, 0, 0, fifth, sixth) }.map(drop)
}

pub(crate) fn bind(secret: Secret, socket: BorrowedFd<'_>, address: &[u8]) -> Result<()> {
    let [fifth, sixth] = secret.with(0);
    // SAFETY: the slice.
    unsafe { sys!(SYS_bind, socket.as_raw_fd(), address.as_ptr(), address.len(), 0, fifth, sixth) }.map(drop)
}

pub(crate) fn set_receive_buffer(secret: Secret, socket: BorrowedFd<'_>, bytes: u32) -> Result<()> {
    let [fifth, sixth] = secret.with(size_of::<u32>() as u32);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUF);
    // SAFETY: a local of the size that is given.
    unsafe { sys!(SYS_setsockopt, socket.as_raw_fd(), level, name, &raw const bytes, fifth, sixth) }.map(drop)
}

/// Whether what is not sent when it is closed is thrown away, and the other side told so. Nobody waits in either case.
pub(crate) fn set_linger(secret: Secret, socket: BorrowedFd<'_>, breaks_off: bool) -> Result<()> {
    let linger = libc::linger { l_onoff: i32::from(breaks_off), l_linger: 0 };
    let [fifth, sixth] = secret.with(size_of_val(&linger) as u32);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: a local of the size that is given.
    unsafe { sys!(SYS_setsockopt, socket.as_raw_fd(), level, name, &raw const linger, fifth, sixth) }.map(drop)
}

/// As it lies in memory.
pub(crate) fn lock_from(bytes: &[u8]) -> Option<libc::flock64> {
    // SAFETY: any bits are numbers, and there are as many as it has.
    (bytes.len() == size_of::<libc::flock64>()).then(|| unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// Takes, or lets go of, a lock that belongs to the open file. It does not wait.
pub(crate) fn lock_file(secret: Secret, file: BorrowedFd<'_>, lock: &libc::flock64) -> Result<()> {
    let [fifth, sixth] = secret.with(0);
    // SAFETY: reads a structure of the size that the command has.
    unsafe { sys!(SYS_fcntl, file.as_raw_fd(), libc::F_OFD_SETLK, ptr::from_ref(lock), 0, fifth, sixth) }.map(drop)
}

/// Of another process, at this address of it. Gives how many bytes there were.
pub(crate) fn read_memory(process: u32, at: u64, into: &mut [u8]) -> Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: fills the slice at most. The other address is the other process's.
    unsafe { sys!(SYS_process_vm_readv, process, &raw const local, 1, &raw const remote, 1, 0) }
}

/// Bits that guests may not set by themselves included.
pub(crate) fn chmod(secret: Secret, path: &CStr, mode: u32) -> Result<()> {
    let [fifth, sixth] = secret.with(0);
    // SAFETY: a NUL-terminated string.
    unsafe { sys!(SYS_fchmodat, libc::AT_FDCWD, path.as_ptr(), mode, 0, fifth, sixth) }.map(drop)
}

/// Those that guests may not set by themselves included.
pub(crate) fn set_attribute(secret: Secret, path: &CStr, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
    let [fifth, sixth] = secret.with(flags);
    // SAFETY: NUL-terminated strings, and the slice.
    unsafe { sys!(SYS_setxattr, path.as_ptr(), name.as_ptr(), value.as_ptr(), value.len(), fifth, sixth) }.map(drop)
}

pub(crate) fn chdir(path: *const libc::c_char) -> Result<()> {
    // SAFETY: the callers pass NUL-terminated strings.
    unsafe { sys!(SYS_chdir, path) }.map(drop)
}

/// Refuses a working directory that the root does not lead to, or that lies in a `/proc`: a path that went through a
/// descriptor or a process ends in such a place. The kernel answers, not the text of a path.
pub(crate) fn check_workdir() -> Result<()> {
    let mut path = [0u8; libc::PATH_MAX as usize];
    // SAFETY: fills the buffer at most.
    unsafe { sys!(SYS_getcwd, path.as_mut_ptr(), path.len()) }?;
    // SAFETY: plain numbers: all zero is a value of it.
    let mut of: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: a NUL-terminated string; fills a local.
    unsafe { sys!(SYS_statfs, c".".as_ptr(), &raw mut of) }?;
    // An unreachable one is told with words in brackets before it.
    match path[0] == b'/' && of.f_type != libc::PROC_SUPER_MAGIC {
        true => Ok(()),
        false => Err(Errno(libc::EXDEV)),
    }
}

pub(crate) fn umask(mask: u32) {
    // SAFETY: no pointers.
    let _ = unsafe { sys!(SYS_umask, mask) };
}

/// Signals that this program ignores or handles, back to how a program expects them.
pub(crate) fn default_signals() {
    default_actions([libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]);
}

/// No signal is ignored, also none of those that the C library keeps for itself.
pub(crate) fn ignore_no_signal() {
    default_actions(1..=64);
}

/// SIGKILL and SIGSTOP refuse, as they must.
fn default_actions(signals: impl IntoIterator<Item = i32>) {
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: usize,
        restorer: usize,
        mask: u64,
    }
    let default = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    for signal in signals {
        // SAFETY: reads a local of the kernel's layout.
        let _ = unsafe { sys!(SYS_rt_sigaction, signal, &raw const default, 0, 8) };
    }
}

pub(crate) fn set_blocked_signals(mask: u64) {
    // SAFETY: reads a local of eight bytes.
    let _ = unsafe { sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

pub(crate) fn signalfd(signals: u64) -> Result<RawFd> {
    // SAFETY: reads a local of eight bytes.
    unsafe { sys!(SYS_signalfd4, usize::MAX, &raw const signals, 8, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }
        .map(|fd| fd as RawFd)
}

/// Waits until something is ready or the time is up.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout_ns: Option<u64>) -> Result<usize> {
    poll_many(Secret::default(), fds, timeout_ns)
}

/// The same for more descriptors than init's filter lets anybody else wait for.
pub(crate) fn poll_many(secret: Secret, fds: &mut [libc::pollfd], timeout_ns: Option<u64>) -> Result<usize> {
    let time = timeout_ns
        .map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let time_ptr = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let [fifth, sixth] = secret.with(8);
    // SAFETY: fills the slice; reads a local.
    match unsafe { sys!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), time_ptr, 0, fifth, sixth) } {
        Err(Errno(libc::EINTR)) => Ok(0),
        other => other,
    }
}

pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a local.
    let _ = unsafe { sys!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
