//! A broker makes one call for a process of the sandbox, with the rights of that process and no others.
//!
//! Set-uid and set-gid bits and capabilities on files are for a sandbox's own files alone: in a directory of the host they
//! would be the host's. Which file a call means lies in the caller's memory, where a filter cannot look. So the filter asks
//! init, and a broker of init's reads it there, becomes the caller, opens that file itself, looks on which mount lies what it
//! has opened, and makes the call on that very descriptor. Sockets whose queues no limit counts are bounded in the same way
//! (see `sockets`). Of these calls the kernel is never told to go on with the caller's own: a
//! guest could mean another file by then.
//!
//! The order is the wall. First everything of init's is closed. Then what the caller asked for is read, and after that it is
//! made sure that the caller still waits, so that it was the caller's. Then the broker has the caller's root and identity
//! for good, and only then is a path looked up.

use std::{
    ffi::CString,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use super::notifications::OwnMounts;
use super::{
    binding::{BindCall, BindRequest},
    caller::{Caller, Credentials, File},
    filters::FilterCall,
    locks::{LockCall, LockRequest},
    sockets::{SocketCall, SocketRequest},
};
use crate::kernel::{
    mounts,
    notify::{Listener, Notification},
    sys::{self, Errno, Result, Secret},
};

/// Set-uid and set-gid.
const PRIVILEGED: u32 = libc::S_ISUID | libc::S_ISGID;

/// No attribute is longer (XATTR_SIZE_MAX).
const MAX_ATTRIBUTE: usize = 64 * 1024;

/// The longest list of access: some thirty users and groups. Of a file that lies in memory no limit counts it.
const MAX_ACCESS_LIST: usize = 255;

/// What a file that a broker opens may be opened with. The kernel ignores what it does not know, and so does this.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_TRUNC
    | libc::O_NONBLOCK
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_DIRECT
    | libc::O_NOATIME;

pub(super) struct Broker<'i> {
    pub(super) listener: &'i Listener,
    pub(super) notification: Notification,
    /// The mounts that are the sandbox's own.
    pub(super) own_mounts: &'i OwnMounts,
    /// Whether nobody inside stands behind a wall that this broker does not have around itself.
    pub(super) may_open: bool,
    /// What the sandbox may have of it.
    pub(super) memory: u64,
    /// Makes its own calls pass the filter that asked.
    pub(super) secret: Secret,
}

/// What a caller may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    SetMode { file: File, mode: u32 },
    Create { dir: i32, path: u64, flags: i32, mode: u32 },
    SetAttribute { file: File, name: u64, value: u64, size: u64, flags: u32 },
    Bind(BindCall),
    Socket(SocketCall),
    Lock(LockCall),
}

/// The same, with what lay in the caller's memory and among its descriptors.
enum Read {
    SetMode { target: Target, mode: u32 },
    Create { dir: Option<OwnedFd>, path: CString, flags: i32, mode: u32 },
    SetAttribute { target: Target, name: CString, value: Vec<u8>, flags: u32 },
    Bind(BindRequest),
    Socket(SocketRequest),
    Lock(LockRequest),
}

/// What is to be changed.
enum Target {
    /// What the caller has open.
    Held(OwnedFd),
    /// From this directory on; without one it is an absolute path.
    Path { dir: Option<OwnedFd>, path: CString, follow: bool },
}

impl Broker<'_> {
    /// The child of init begins here.
    pub(super) fn run(self) -> ! {
        sys::set_name(c"cabana-broker");
        let id = self.notification.id;
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.make()));
        if let Err(errno) = made.unwrap_or(Err(Errno(libc::EPERM))) {
            self.listener.answer(id, Err(errno));
        }
        sys::exit(0)
    }

    fn make(&self) -> Result<()> {
        // The control socket, the commands' pipes and groups. Nothing of it is a caller's to name.
        let mut kept = [self.listener.as_fd(), self.own_mounts.without_views.as_fd()].map(|fd| fd.as_raw_fd());
        kept.sort_unstable();
        sys::close_all_but(&kept)?;
        if let Some(call) = FilterCall::of(self.notification.number, &self.notification.args) {
            call.judge(self.notification.thread as i32)?;
            // The kernel's own look at what lies in memory is the only one.
            self.listener.let_it_be_made(self.notification.id);
            return Ok(());
        }
        let call = Call::of(self.notification.number, &self.notification.args)?;
        let caller = Caller::open(self.notification.thread)?;
        let (credentials, root) = (caller.credentials()?, caller.root()?);
        let read = self.read(&caller, call)?;
        // What was read is the caller's: its number cannot have become another's while it waits.
        if !self.listener.still_waits(self.notification.id) {
            return Err(Errno(libc::ESRCH));
        }
        self.become_caller(&credentials, root.as_fd(), read.needs_beside())?;
        match read {
            Read::Bind(request) => self.bind(request, &credentials),
            Read::SetMode { target, mode } => self.set_mode(target, mode),
            Read::Create { dir, path, flags, mode } => {
                sys::umask(credentials.umask);
                self.create(dir.as_ref(), &path, flags, mode)
            }
            Read::SetAttribute { target, name, value, flags } => self.set_attribute(target, &name, &value, flags),
            Read::Socket(request) => request.make(self.secret, self.listener, self.notification.id),
            Read::Lock(request) => request.make(self.secret, self.listener, self.notification.id),
        }
    }

    fn read(&self, caller: &Caller, call: Call) -> Result<Read> {
        let memory = caller.memory();
        match call {
            Call::SetMode { file, mode } => Ok(Read::SetMode { target: target(caller, file)?, mode }),
            Call::Create { dir, path, flags, mode } => {
                let path = memory.path(path)?;
                let dir = if is_absolute(&path) { None } else { Some(caller.directory(dir)?) };
                Ok(Read::Create { dir, path, flags, mode })
            }
            Call::SetAttribute { file, name, value, size, flags } => {
                let target = target(caller, file)?;
                let name = memory.attribute_name(name)?;
                // As the kernel does, before there is room for it.
                let size =
                    usize::try_from(size).ok().filter(|size| *size <= MAX_ATTRIBUTE).ok_or(Errno(libc::E2BIG))?;
                let value = memory.bytes(value, size)?;
                Ok(Read::SetAttribute { target, name, value, flags })
            }
            Call::Bind(call) => call.read(self.secret, caller, self.own_mounts).map(Read::Bind),
            Call::Socket(call) => call.read(caller, self.memory).map(Read::Socket),
            Call::Lock(call) => call.read(caller).map(Read::Lock),
        }
    }

    /// Its root, its ids and what it may override: from here on, what the kernel refuses to the caller it refuses here.
    fn become_caller(&self, credentials: &Credentials, root: BorrowedFd<'_>, others: u64) -> Result<()> {
        // Before the root: there may be no /proc in the caller's.
        let links = mounts::open_proc(c"/proc/self/fd", OFlags::RDONLY | OFlags::DIRECTORY).map_err(errno)?;
        rustix::process::fchdir(root).map_err(errno)?;
        rustix::process::chroot(c".").map_err(errno)?;
        rustix::process::fchdir(links).map_err(errno)?;
        credentials.assume_with(others)
    }

    fn set_mode(&self, target: Target, mode: u32) -> Result<()> {
        let file = self.find(target)?;
        if !self.is_own(file.as_fd())? && !keeps_group_of_directory(file.as_fd(), mode)? {
            return Err(Errno(libc::EPERM));
        }
        sys::chmod(self.secret, &link(&file), mode)?;
        self.listener.answer(self.notification.id, Ok(()));
        Ok(())
    }

    fn set_attribute(&self, target: Target, name: &CString, value: &[u8], flags: u32) -> Result<()> {
        if name.as_bytes().starts_with(b"system.posix_acl_") && value.len() > MAX_ACCESS_LIST {
            return Err(Errno(libc::ENOSPC)); // what a file system says that has room for shorter ones only
        }
        let file = self.find(target)?;
        if name.as_bytes().starts_with(b"security.") && !self.is_own(file.as_fd())? {
            return Err(Errno(libc::EPERM));
        }
        sys::set_attribute(self.secret, &link(&file), name, value, flags)?;
        self.listener.answer(self.notification.id, Ok(()));
        Ok(())
    }

    /// Only a regular file on a mount of the sandbox's own is handed out: nothing else that this process could open is the
    /// caller's to have.
    fn create(&self, dir: Option<&OwnedFd>, path: &CString, flags: i32, mode: u32) -> Result<()> {
        if !self.may_open {
            return Err(Errno(libc::EPERM));
        }
        let (above, name) = split(path.as_bytes())?;
        let dir = self.open(dir, &above, OFlags::PATH | OFlags::DIRECTORY)?;
        if !self.is_own(dir.as_fd())? {
            return Err(Errno(libc::EPERM));
        }
        let with = OFlags::from_bits_retain((flags & OPEN_FLAGS) as u32) | OFlags::CLOEXEC | OFlags::NOCTTY;
        let new = with | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(&dir, &name, new, Mode::from_raw_mode(mode & 0o777)) {
            Ok(file) => {
                self.add_bits(&file, mode)?;
                file
            }
            Err(rustix::io::Errno::EXIST) if flags & libc::O_EXCL == 0 => {
                let nofollow = OFlags::from_bits_retain((flags & libc::O_NOFOLLOW) as u32);
                self.open_existing(&dir, &name, with, nofollow)?
            }
            Err(error) => return Err(errno(error)),
        };
        self.listener.answer_with(self.notification.id, file.as_fd(), flags & libc::O_CLOEXEC != 0)
    }

    /// Of a file that it has made. The umask, or a list of access of the directory, had its say in the rest.
    fn add_bits(&self, file: &OwnedFd, mode: u32) -> Result<()> {
        let made = rustix::fs::fstat(file).map_err(errno)?.st_mode & 0o777;
        sys::chmod(self.secret, &link(file), made | mode & 0o7000)
    }

    /// Of a file that is there the mode stays as it is.
    fn open_existing(&self, dir: &OwnedFd, name: &CString, with: OFlags, nofollow: OFlags) -> Result<OwnedFd> {
        let found = self.open(Some(dir), name, OFlags::PATH | nofollow)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&found).map_err(errno)?.st_mode);
        match kind {
            FileType::RegularFile if self.is_own(found.as_fd())? => {
                rustix::fs::open(link(&found), with, Mode::empty()).map_err(errno)
            }
            FileType::Directory => Err(Errno(libc::EISDIR)),
            FileType::Symlink => Err(Errno(libc::ELOOP)),
            _ => Err(Errno(libc::EPERM)),
        }
    }

    fn find(&self, target: Target) -> Result<OwnedFd> {
        match target {
            Target::Held(file) => Ok(file),
            Target::Path { dir, path, follow } => {
                let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
                self.open(dir.as_ref(), &path, OFlags::PATH | nofollow)
            }
        }
    }

    /// As the caller. Not through links of /proc to what a process has open: here they would be this process's.
    pub(super) fn open(&self, dir: Option<&OwnedFd>, path: &CString, flags: OFlags) -> Result<OwnedFd> {
        let dir = dir.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
        let flags = flags | OFlags::CLOEXEC;
        sys::open_at2(self.secret, dir, path, flags.bits().into(), ResolveFlags::NO_MAGICLINKS.bits())
    }

    fn is_own(&self, file: BorrowedFd<'_>) -> Result<bool> {
        self.own_mounts.has(file).map_err(errno)
    }
}

impl Read {
    /// Capabilities that looking at a path takes beside the caller's.
    fn needs_beside(&self) -> u64 {
        match self {
            Self::Bind(request) => request.needs_beside(),
            _ => 0,
        }
    }
}

impl Call {
    /// The calls for which the policy says `notify`.
    fn of(number: i64, args: &[u64; 6]) -> Result<Self> {
        let [first, second, third, fourth, fifth, _] = *args;
        let at = |path, follow| File::Path { dir: libc::AT_FDCWD, path, follow, may_be_empty: false };
        let set = |file, value| Self::SetAttribute { file, name: second, value, size: fourth, flags: fifth as u32 };
        Ok(match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod => Self::SetMode { file: at(first, true), mode: second as u32 },
            libc::SYS_fchmod => Self::SetMode { file: File::Open(first as i32), mode: second as u32 },
            libc::SYS_fchmodat => {
                let file = File::Path { dir: first as i32, path: second, follow: true, may_be_empty: false };
                Self::SetMode { file, mode: third as u32 }
            }
            SYS_FCHMODAT2 => {
                let flags = fourth as i32;
                let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
                let file = File::Path {
                    dir: first as i32,
                    path: second,
                    follow: flags & libc::AT_SYMLINK_NOFOLLOW == 0,
                    may_be_empty: flags & libc::AT_EMPTY_PATH != 0,
                };
                if flags & !known != 0 {
                    return Err(Errno(libc::EINVAL));
                }
                Self::SetMode { file, mode: third as u32 }
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => {
                Self::Create { dir: libc::AT_FDCWD, path: first, flags: second as i32, mode: third as u32 }
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                Self::Create { dir: libc::AT_FDCWD, path: first, flags, mode: second as u32 }
            }
            libc::SYS_openat => {
                Self::Create { dir: first as i32, path: second, flags: third as i32, mode: fourth as u32 }
            }
            libc::SYS_setxattr => set(at(first, true), third),
            libc::SYS_lsetxattr => set(at(first, false), third),
            libc::SYS_fsetxattr => set(File::Open(first as i32), third),
            libc::SYS_bind => Self::Bind(BindCall { socket: first as i32, address: second, length: third as i32 }),
            libc::SYS_fcntl => Self::Lock(LockCall::of(args)),
            number => return SocketCall::of(number, args).map(Self::Socket).ok_or(Errno(libc::ENOSYS)),
        })
    }
}

/// The same on every architecture; the libc crate has it for some.
const SYS_FCHMODAT2: i64 = 452;

fn target(caller: &Caller, file: File) -> Result<Target> {
    let (dir, path, follow, may_be_empty) = match file {
        File::Open(number) => return caller.descriptor(number).map(Target::Held),
        File::Path { dir, path, follow, may_be_empty } => (dir, path, follow, may_be_empty),
    };
    let path = caller.memory().path_or_empty(path)?;
    if path.is_empty() {
        return if may_be_empty { caller.directory(dir).map(Target::Held) } else { Err(Errno(libc::ENOENT)) };
    }
    // The way of C libraries to a file that they have opened as a path alone.
    if let Some(number) = descriptor_of_self(path.as_bytes())
        && !caller.is_in_chroot()?
    {
        let none = |errno| if errno == Errno(libc::EBADF) { Errno(libc::ENOENT) } else { errno };
        return caller.descriptor(number).map(Target::Held).map_err(none);
    }
    let dir = if is_absolute(&path) { None } else { Some(caller.directory(dir)?) };
    Ok(Target::Path { dir, path, follow })
}

pub(super) fn descriptor_of_self(path: &[u8]) -> Option<i32> {
    let number = path.strip_prefix(b"/proc/self/fd/").or_else(|| path.strip_prefix(b"/proc/thread-self/fd/"))?;
    let plain = number.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(number).ok().filter(|_| plain)?.parse().ok()
}

pub(super) fn is_absolute(path: &CString) -> bool {
    path.as_bytes().first() == Some(&b'/')
}

/// The directory, and the name in it.
pub(super) fn split(path: &[u8]) -> Result<(CString, CString)> {
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(cut) => path.split_at(cut + 1),
        None => (&b"."[..], path),
    };
    if matches!(name, b"" | b"." | b"..") {
        return Err(Errno(if path.is_empty() { libc::ENOENT } else { libc::EISDIR }));
    }
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno(libc::EINVAL));
    Ok((text(above)?, text(name)?))
}

/// A directory that hands its group on may go on doing so: tools that set a mode set what was there again.
fn keeps_group_of_directory(file: BorrowedFd<'_>, mode: u32) -> Result<bool> {
    let stat = rustix::fs::fstat(file).map_err(errno)?;
    let hands_on = FileType::from_raw_mode(stat.st_mode).is_dir() && stat.st_mode & libc::S_ISGID != 0;
    Ok(hands_on && mode & PRIVILEGED == libc::S_ISGID)
}

/// The name of a descriptor among this process's own, which are its working directory.
fn link(file: &OwnedFd) -> CString {
    // Digits alone: there is no NUL in it.
    CString::new(file.as_raw_fd().to_string()).unwrap_or_default()
}

pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// Of these init knows whether they may be made, or a broker does, and the kernel makes them itself.
#[cfg(any(fuzzing, test))]
const MADE_BY_THE_KERNEL: [&str; 4] = ["landlock_restrict_self", "ptrace", "seccomp", "prctl"];

/// Registers of any call: one that nobody asks about is never made.
#[cfg(fuzzing)]
pub(super) fn check_call(number: i64, args: [u64; 6]) {
    let mut asked = crate::walls::notified().into_iter().filter(|(_, name)| !MADE_BY_THE_KERNEL.contains(name));
    let known = asked.any(|(notified, _)| i64::from(notified) == number);
    match Call::of(number, &args) {
        Ok(_) => assert!(known, "call {number} is made though no filter asks about it"),
        Err(errno) => assert!(!known || errno == Errno(libc::EINVAL), "call {number} is asked about, and not known"),
    }
}

/// A name in a directory is one part of a path, and never a way up.
#[cfg(fuzzing)]
pub(super) fn check_path(path: &[u8]) {
    if let Ok((above, name)) = split(path) {
        let (above, name) = (above.as_bytes(), name.as_bytes());
        assert!(!name.contains(&b'/') && !matches!(name, b"" | b"." | b".."));
        assert!([above, name].concat() == path || (above == b"." && name == path));
    }
    if let Some(number) = descriptor_of_self(path) {
        let text = String::from_utf8_lossy(path);
        let digits = text.rsplit('/').next().unwrap_or_default();
        assert_eq!(digits.parse(), Ok(number));
        assert!(number >= 0 && text.starts_with("/proc/") && text.matches('/').count() == 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walls;

    /// What a verdict of `notify` is for, a broker knows to make.
    #[test]
    fn every_call_that_is_asked_about_is_known() {
        let asked = walls::notified();
        assert!(asked.len() > 9, "{asked:?}");
        assert!(MADE_BY_THE_KERNEL.iter().all(|made| asked.iter().any(|(_, name)| name == made)), "{asked:?}");
        for (number, name) in asked.into_iter().filter(|(_, name)| !MADE_BY_THE_KERNEL.contains(name)) {
            assert!(Call::of(number.into(), &[0; 6]).is_ok(), "{name}");
        }
        assert_eq!(Call::of(libc::SYS_mount, &[0; 6]), Err(Errno(libc::ENOSYS)));
    }

    #[test]
    fn registers_are_read_as_the_kernel_reads_them() {
        let high = 0xdead_beef << 32;
        let at = |dir, path, follow| File::Path { dir, path, follow, may_be_empty: false };
        let open = Call::of(libc::SYS_openat, &[high | 0xffff_ff9c, 7, high | 0o101, high | 0o4755, 1, 2]);
        assert_eq!(open, Ok(Call::Create { dir: libc::AT_FDCWD, path: 7, flags: 0o101, mode: 0o4755 }));
        let chmod = Call::of(libc::SYS_fchmodat, &[high | 5, 7, high | 0o2755, 0x100, 1, 2]);
        assert_eq!(chmod, Ok(Call::SetMode { file: at(5, 7, true), mode: 0o2755 }), "it has no flags");
        let held = Call::of(libc::SYS_fchmod, &[high | 0xffff_ffff, 0o4755, 0, 0, 0, 0]);
        assert_eq!(held, Ok(Call::SetMode { file: File::Open(-1), mode: 0o4755 }));
        let nofollow = libc::AT_SYMLINK_NOFOLLOW as u64;
        let link = Call::of(SYS_FCHMODAT2, &[5, 7, 0o4755, high | nofollow, 0, 0]);
        assert_eq!(link, Ok(Call::SetMode { file: at(5, 7, false), mode: 0o4755 }));
        assert_eq!(Call::of(SYS_FCHMODAT2, &[5, 7, 0o4755, 1, 0, 0]), Err(Errno(libc::EINVAL)));
        let set = Call::of(libc::SYS_lsetxattr, &[7, 8, 9, 20, high | 1, 2]);
        let file = at(libc::AT_FDCWD, 7, false);
        assert_eq!(set, Ok(Call::SetAttribute { file, name: 8, value: 9, size: 20, flags: 1 }));
    }

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        let parts = |path: &str| {
            split(path.as_bytes()).map(|(above, name)| [above, name].map(|part| part.into_string().unwrap()))
        };
        for (path, above, name) in [
            ("a", ".", "a"),
            ("./a", "./", "a"),
            ("/a", "/", "a"),
            ("a//b", "a//", "b"),
            ("../..a", "../", "..a"),
            ("/a/b/.c", "/a/b/", ".c"),
        ] {
            assert_eq!(parts(path).unwrap(), [above, name], "{path}");
        }
        for directory in ["/", "a/", ".", "..", "a/.", "a/..", "//"] {
            assert_eq!(parts(directory), Err(Errno(libc::EISDIR)), "{directory}");
        }
        assert_eq!(parts(""), Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn only_a_plain_number_is_a_descriptor() {
        for (path, number) in
            [("/proc/self/fd/7", Some(7)), ("/proc/thread-self/fd/0", Some(0)), ("/proc/self/fd/012", Some(12))]
        {
            assert_eq!(descriptor_of_self(path.as_bytes()), number, "{path}");
        }
        for path in [
            "/proc/self/fd/",
            "/proc/self/fd/7/x",
            "/proc/self/fd/-1",
            "/proc/self/fd/+1",
            "/proc/self/fd/99999999999",
            "/proc/1/fd/7",
            "proc/self/fd/7",
            "/proc//self/fd/7",
        ] {
            assert_eq!(descriptor_of_self(path.as_bytes()), None, "{path}");
        }
    }
}
