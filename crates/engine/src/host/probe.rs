//! One thing tried for real, in a process of its own: what it changes ends with it.
//!
//! [`ask`] starts this program again under the name [`PROBE`]; [`probe_main`] is what that process does. It has one
//! thread, which the kernel wants of whoever enters a user namespace. It answers with one line: `ok`, or a number and
//! the step that failed.

#![allow(unsafe_code)] // unshare, fork and mount_setattr have no safe form

use std::{
    ffi::CStr,
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    mount::{self, MountFlags, MountPropagationFlags, OpenTreeFlags},
    process::{DumpableBehavior, Pid, Signal, WaitOptions},
};

use super::Tried;

/// The name (argv[0]) that makes this program a probe.
pub const PROBE: &str = "cabana-probe";

type Step = Result<(), (&'static str, io::Error)>;

pub(super) fn ask(what: &str, dir: Option<&Path>) -> Tried {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(PROBE).arg(what).args(dir).stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(output) = command.output() else { return Tried::Not };
    read_answer(&String::from_utf8_lossy(&output.stdout))
}

fn read_answer(line: &str) -> Tried {
    match line.trim().split_once(' ') {
        None if line.trim() == "ok" => Tried::Works,
        Some((errno, step)) => match errno.parse() {
            Ok(errno) => Tried::Refused { step: step.to_owned(), errno },
            Err(_) => Tried::Not,
        },
        None => Tried::Not,
    }
}

/// What a process named [`PROBE`] does instead of `main`.
pub fn probe_main() -> ! {
    let mut args = std::env::args_os().skip(1);
    let what = args.next().unwrap_or_default();
    let dir = args.next().unwrap_or_default();
    let result = match what.to_str() {
        Some("namespaces") => namespaces(),
        Some("overlay") => overlay(Path::new(&dir)),
        Some("proc") => proc(),
        Some("idmap") => idmap(Path::new(&dir)),
        Some("network") => network(),
        _ => Err(("knowing this probe", io::ErrorKind::InvalidInput.into())),
    };
    let answer = match result {
        Ok(()) => "ok".to_owned(),
        Err((step, error)) => format!("{} {step}", error.raw_os_error().unwrap_or(0)),
    };
    let told = io::stdout().write_all(answer.as_bytes());
    std::process::exit(i32::from(told.is_err()))
}

/// One at a time, so that the one which is refused is known by name.
fn namespaces() -> Step {
    enter(libc::CLONE_NEWUSER)?;
    for (namespace, step) in [
        (libc::CLONE_NEWNS, "making a mount namespace"),
        (libc::CLONE_NEWPID, "making a pid namespace"),
        (libc::CLONE_NEWNET, "making a network namespace"),
        (libc::CLONE_NEWIPC, "making an ipc namespace"),
        (libc::CLONE_NEWUTS, "making a uts namespace"),
        (libc::CLONE_NEWCGROUP, "making a cgroup namespace"),
    ] {
        unshare(namespace).map_err(|e| (step, e))?;
    }
    // AppArmor may let all of them be made and then refuse to use them, and a seccomp filter may forbid one last call.
    private_mounts()?;
    own_root()
}

fn own_root() -> Step {
    let place = ["/tmp", "/run", "/mnt"].into_iter().find(|dir| Path::new(dir).is_dir()).unwrap_or("/");
    mount::mount("cabana", place, "tmpfs", MountFlags::NOSUID, None::<&CStr>)
        .map_err(|e| ("mounting a tmpfs", e.into()))?;
    std::env::set_current_dir(place).map_err(|e| ("entering a directory", e))?;
    rustix::process::pivot_root(".", ".").map_err(|e| ("changing the root", e.into()))
}

/// As a sandbox with a network has it.
fn network() -> Step {
    enter(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
    loopback_up().map_err(|e| ("bringing the loopback up", e))?;
    crate::network::try_out()
}

fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: plain numbers: all zero is a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure that this call reads.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// With the layers on the file system where sandboxes will have theirs.
fn overlay(dir: &Path) -> Step {
    enter(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    private_mounts()?;
    for part in ["lower", "upper", "work", "merged"] {
        fs::create_dir_all(dir.join(part)).map_err(|e| ("making a directory", e))?;
    }
    // Names relative to the room: its own path may hold the commas and colons that the options are split at.
    std::env::set_current_dir(dir).map_err(|e| ("entering a directory", e))?;
    let options = c"lowerdir=lower,upperdir=upper,workdir=work,userxattr";
    mount::mount("overlay", "merged", "overlay", MountFlags::empty(), Some(options))
        .map_err(|e| ("mounting an overlay", e.into()))?;
    let written = fs::write("merged/file", "x").map_err(|e| ("writing to the overlay", e));
    written.and_then(|()| fs::remove_file("merged/file").map_err(|e| ("removing from the overlay", e)))
}

/// The kernel refuses a new proc where parts of the present one are covered: a container's masks would be got round.
fn proc() -> Step {
    enter(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID)?;
    private_mounts()?;
    in_child(|| {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount::mount("proc", "/proc", "proc", flags, None::<&CStr>).map_err(Into::into)
    })
    .map_err(|e| ("mounting a new proc", e))
}

fn idmap(dir: &Path) -> Step {
    let ids = other_ids().map_err(|e| ("making a user namespace to map to", e))?;
    let tree =
        mount::open_tree(rustix::fs::CWD, dir, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
            .map_err(|e| ("cloning a mount", e.into()))?;
    map_mount(&tree, &ids).map_err(|e| ("mapping the ids of a mount", e))
}

fn map_mount(tree: &OwnedFd, ids: &File) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: ids.as_raw_fd() as u64,
    };
    // SAFETY: both descriptors are open, the path is empty as AT_EMPTY_PATH wants, and the size is that of the struct.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A user namespace with a range of its own. A child makes it and is ended once its file is open.
fn other_ids() -> io::Result<File> {
    let (mut ready, mut say) = io::pipe()?;
    let child = fork(|| {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // As the engine's own processes are: then its namespace opens only for who may trace it.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let made = unshare(libc::CLONE_NEWUSER);
        let _ = say.write_all(&errno_of(&made).to_ne_bytes());
        loop {
            std::thread::park();
        }
    })?;
    let mut answer = [0; 4];
    let namespace = ready.read_exact(&mut answer).and_then(|()| match i32::from_ne_bytes(answer) {
        0 => {
            let pid = child.as_raw_nonzero();
            fs::write(format!("/proc/{pid}/uid_map"), "0 100000 65536")?;
            fs::write(format!("/proc/{pid}/gid_map"), "0 100000 65536")?;
            File::open(format!("/proc/{pid}/ns/user"))
        }
        errno => Err(io::Error::from_raw_os_error(errno)),
    });
    let _ = rustix::process::kill_process(child, Signal::KILL);
    let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
    namespace
}

/// Into new namespaces, as uid 0 of them. One id is what everybody may map.
fn enter(namespaces: libc::c_int) -> Step {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(namespaces).map_err(|e| ("making a user namespace", e))?;
    let map = |file, text: String| fs::write(file, text).map_err(|e| ("writing the id map", e));
    map("/proc/self/setgroups", "deny".to_owned())?;
    map("/proc/self/uid_map", format!("0 {uid} 1"))?;
    map("/proc/self/gid_map", format!("0 {gid} 1"))
}

fn private_mounts() -> Step {
    mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| ("making the mounts private", e.into()))
}

fn unshare(namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointer and touches no memory or descriptor of this process.
    if unsafe { libc::unshare(namespaces) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Does it in a child, which is the first process of a pid namespace made before.
fn in_child(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let child = fork(|| errno_of(&work()))?;
    let ended = rustix::process::waitpid(Some(child), WaitOptions::empty())?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("the probe was killed")),
    }
}

fn fork(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: a probe has one thread, so the child may do all that the parent may.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child at once, without the exit handlers that belong to the parent.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error),
    }
}

/// 0 is success, as for a process.
fn errno_of(result: &io::Result<()>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_line() {
        assert_eq!(read_answer("ok"), Tried::Works);
        let refused = Tried::Refused { step: "mounting a new proc".into(), errno: 1 };
        assert_eq!(read_answer("1 mounting a new proc\n"), refused);
        assert_eq!(read_answer(""), Tried::Not);
        assert_eq!(read_answer("running 0 tests"), Tried::Not);
    }
}
