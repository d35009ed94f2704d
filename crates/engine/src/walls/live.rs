//! The walls against the real kernel: what must work behind them works, what must not does not.
//!
//! Each test sets `no_new_privs` first, so it needs no root; as root, it is the filter and not a missing right that
//! refuses.
#![allow(unsafe_code)] // the tests make forbidden calls by hand, in children

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use libc::{c_int, c_long, c_ulong};
use tempfile::TempDir;

use super::{caps::kept_mask, drop_bounding, install_seccomp, no_new_privs, programs, seccomp::Programs};

/// How a call ended in a child behind the filter.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Errno(c_int),
    Killed(c_int),
}

const EPERM: Outcome = Outcome::Errno(libc::EPERM);
const ENOSYS: Outcome = Outcome::Errno(libc::ENOSYS);
const EAFNOSUPPORT: Outcome = Outcome::Errno(libc::EAFNOSUPPORT);
const EPROTONOSUPPORT: Outcome = Outcome::Errno(libc::EPROTONOSUPPORT);

const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// Makes one system call in a child behind the filter.
fn call(number: c_long, args: [c_ulong; 5]) -> Outcome {
    let [a, b, c, d, e] = args;
    // SAFETY: the arguments are numbers, or pointers that the kernel checks; what it may change is the child's alone.
    in_child(|| unsafe { libc::syscall(number, a, b, c, d, e) })
}

/// Runs `body` in a child behind the filter. It may only make system calls: another thread of this process may have
/// held any lock when the child was made.
fn in_child(body: impl FnOnce() -> c_long) -> Outcome {
    in_child_with(&programs(SECRET), |listener| {
        drop(listener);
        body()
    })
}

fn in_child_with(programs: &Programs, body: impl FnOnce(Option<OwnedFd>) -> c_long) -> Outcome {
    // SAFETY: the child makes system calls only, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = match no_new_privs().and_then(|()| install_seccomp(programs)).map(body) {
            Err(_) => 255,
            Ok(done) if done >= 0 => 0,
            Ok(_) => io::Error::last_os_error().raw_os_error().unwrap_or(254),
        };
        // SAFETY: it ends the child, without the exit handlers of the parent's copy.
        unsafe { libc::_exit(code) }
    }
    assert!(pid > 0, "fork: {}", io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: `pid` is our child and `status` is ours to write to.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    match (libc::WIFSIGNALED(status), libc::WEXITSTATUS(status)) {
        (true, _) => Outcome::Killed(libc::WTERMSIG(status)),
        (false, 0) => Outcome::Done,
        (false, 255) => panic!("the filter was not installed"),
        (false, errno) => Outcome::Errno(errno),
    }
}

/// A program that starts behind the filter.
fn walled(name: &str) -> Command {
    let programs = programs(SECRET).without_broker();
    let mut command = Command::new(name);
    // SAFETY: between fork and exec there are two system calls and no allocation.
    unsafe { command.pre_exec(move || no_new_privs().and_then(|()| install_seccomp(&programs)).map(drop)) };
    command
}

/// Runs a shell script behind the filter, in `dir`.
fn script(dir: &Path, text: &str) -> Output {
    let mut command = walled("bash");
    command.args(["-euo", "pipefail", "-c", text]).current_dir(dir).env("HOME", dir).env("LC_ALL", "C");
    command.output().unwrap()
}

#[track_caller]
fn works(text: &str) -> String {
    let dir = TempDir::new().unwrap();
    let output = script(dir.path(), text);
    assert!(output.status.success(), "{text}\n{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Like `works`, for a program that a machine may lack.
#[track_caller]
fn works_if_there(program: &str, text: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !there {
        println!("{program} is not on this machine: not tried");
    }
    there.then(|| works(text))
}

#[track_caller]
fn refused(text: &str, says: &str) {
    let dir = TempDir::new().unwrap();
    let output = script(dir.path(), text);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(says), "{text}\n{output:?}");
}

#[test]
fn the_shell_and_its_tools_work() {
    let text = r#"
        mkfifo pipe; (echo through >pipe) & cat <pipe; wait
        ln -s pipe link; cp -a link copy; mv copy other; touch -d yesterday file; chmod 600 file; tar cf t.tar file
        seq 1000 | sort -rn | head -1; timeout 5 true; nice true; flock file true; sync file
        df . >/dev/null; ps >/dev/null
    "#;
    assert_eq!(works(text), "through\n1000\n");
}

#[test]
fn python_works_with_threads_processes_semaphores_sockets_and_sqlite() {
    let text = r#"cat >t.py <<'EOF'
import asyncio, ctypes, mmap, multiprocessing as mp, os, select, socket, sqlite3, subprocess, tempfile, threading
def square(x): return x * x
if __name__ == "__main__":
    seen = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert sorted(seen) == list(range(8))
    for method in ("fork", "spawn"):
        with mp.get_context(method).Pool(2) as pool: assert pool.map(square, range(4)) == [0, 1, 4, 9]
    lock = mp.Semaphore(1)
    with lock: pass
    queue = mp.Queue(); queue.put(1); assert queue.get() == 1
    db = sqlite3.connect("t.db"); db.execute("pragma journal_mode=wal"); db.execute("create table t (x)")
    db.executemany("insert into t values (?)", [(n,) for n in range(100)]); db.commit()
    assert db.execute("select sum(x) from t").fetchone() == (4950,)
    server = socket.create_server(("127.0.0.1", 0)); client = socket.create_connection(server.getsockname())
    peer, _ = server.accept(); client.sendall(b"hi"); assert peer.recv(2) == b"hi"
    socket.getaddrinfo("localhost", 80); socket.socketpair()
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"
    assert subprocess.run(["true"]).returncode == 0
    m = mmap.mmap(-1, 4096); m[0] = 1
    os.close(os.memfd_create("x")); os.close(os.pidfd_open(os.getpid())); os.openpty(); os.sched_yield()
    print("all")
EOF
python3 t.py"#;
    assert_eq!(works(text), "all\n");
}

#[test]
fn git_commits_and_clones() {
    let text = "git init -q a; cd a; git config user.name x; git config user.email x@example.org; echo 1 >f; git add f
        git commit -qm one; git gc -q; cd ..; git clone -q a b; cat b/f";
    assert_eq!(works(text), "1\n");
}

#[test]
fn a_c_program_is_made_and_runs() {
    let text = r#"cat >t.c <<'EOF'
#include <pthread.h>
#include <stdio.h>
static void *work(void *x) { return x; }
int main(void) {
    pthread_t t; void *out; int x = 7;
    if (pthread_create(&t, 0, work, &x) || pthread_join(t, &out)) return 1;
    printf("%d\n", *(int *)out);
}
EOF
printf 't: t.c\n\tgcc -g -pthread -o t t.c\n' >Makefile; make -s -j2; ./t"#;
    assert_eq!(works(text), "7\n");
}

#[test]
fn node_works_with_workers_and_files() {
    let text = r#"cat >t.js <<'EOF'
const { Worker } = require('worker_threads'), fs = require('fs'), net = require('net'), cp = require('child_process');
const server = net.createServer(s => s.end('hi')).listen(0, '127.0.0.1', () => {
  net.connect(server.address().port, '127.0.0.1').on('data', d => {
    fs.writeFileSync('f', d); cp.execFileSync('true'); server.close();
    new Worker('require("worker_threads").parentPort.postMessage(1)', { eval: true })
      .on('message', () => fs.promises.readFile('f', 'utf8').then(console.log));
  });
});
EOF
node t.js"#;
    if let Some(stdout) = works_if_there("node", text) {
        assert_eq!(stdout, "hi\n");
    }
}

#[test]
fn debuggers_work() {
    works_if_there("strace", "strace -f -o log bash -c 'true & wait'; grep -q execve log");
    // gdb turns address randomisation off and complains when it may not.
    let text = r#"echo 'int main(void) { return 0; }' >t.c; gcc -g -o t t.c
        gdb --batch -ex 'break main' -ex run -ex 'print 6 * 7' -ex continue ./t 2>&1"#;
    if let Some(stdout) = works_if_there("gdb", text) {
        assert!(stdout.contains("$1 = 42") && stdout.contains("exited normally"), "{stdout}");
        assert!(!stdout.contains("not permitted"), "{stdout}");
    }
}

#[test]
fn a_tracer_may_skip_calls() {
    let text = "strace -o log -e trace=chdir -e inject=chdir:error=ENOTDIR bash -c 'cd / 2>err || true'
        grep -qi 'not a directory' err";
    works_if_there("strace", text);
}

#[test]
fn java_and_tmux_work() {
    works_if_there("java", "java -version 2>&1");
    let text = "tmux -S sock -f /dev/null new-session -d 'echo in >out'
        timeout 60 bash -c 'until [ -s out ]; do sleep 0.05; done'";
    works_if_there("tmux", text);
}

#[test]
fn namespaces_and_mounts_are_refused() {
    refused("unshare -U true", "Operation not permitted");
    refused("unshare -m true", "Operation not permitted");
    refused("mount -t tmpfs none .", "permission denied");
    assert_eq!(call(libc::SYS_mount, [0; 5]), EPERM);
    assert_eq!(call(libc::SYS_umount2, [0; 5]), EPERM);
    assert_eq!(call(libc::SYS_setns, [0; 5]), EPERM);
    assert_eq!(call(libc::SYS_open_tree, [0; 5]), EPERM);
    for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWTIME] {
        assert_eq!(call(libc::SYS_unshare, [flag as c_ulong, 0, 0, 0, 0]), EPERM, "{flag:#x}");
        assert_eq!(call(libc::SYS_clone, [flag as c_ulong | 1 << 40, 0, 0, 0, 0]), EPERM, "{flag:#x}");
    }
    assert_eq!(call(libc::SYS_unshare, [libc::CLONE_FILES as c_ulong, 0, 0, 0, 0]), Outcome::Done);
}

#[test]
fn what_the_filter_cannot_look_into_is_absent() {
    assert_eq!(call(libc::SYS_clone3, [0; 5]), ENOSYS);
    assert_eq!(call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]), ENOSYS);
    assert_eq!(call(1000, [0; 5]), ENOSYS);
}

#[test]
fn a_call_that_nobody_answers_is_not_there_and_a_second_listener_is_none() {
    let dir = TempDir::new().unwrap();
    let file = std::ffi::CString::new(dir.path().join("file").to_str().unwrap()).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let chmod =
        |mode: c_ulong| call(libc::SYS_fchmodat, [libc::AT_FDCWD as c_ulong, file.as_ptr() as c_ulong, mode, 0, 0]);
    assert_eq!(chmod(0o755), Outcome::Done);
    assert_eq!(chmod(0o4755), ENOSYS);
    let programs = programs(SECRET);
    let again = || match install_seccomp(&programs) {
        Ok(None) => 0,
        _ => -1,
    };
    // The first one is held here as a host holds it that has started us behind one.
    let of_a_host = Programs::of_a_host();
    let held = in_child_with(&of_a_host, |listener| if listener.is_some() { again() } else { -1 });
    assert_eq!(held, Outcome::Done);
}

#[test]
fn clone3_is_there_for_who_knows_the_secret() {
    // The kernel looks at the arguments, finds none and refuses: the filter has let the call through.
    let clone3 = |[fifth, sixth]: [u64; 2]| {
        // SAFETY: with arguments of no length no process is made.
        in_child(|| unsafe { libc::syscall(libc::SYS_clone3, 0_u64, 0_u64, 0_u64, 0_u64, fifth, sixth) })
    };
    let [a, b] = SECRET;
    assert_eq!(clone3([a, b]), Outcome::Errno(libc::EINVAL));
    for wrong in [[0, 0], [a, 0], [0, b], [a ^ 1 << 32, b], [a, b ^ 1 << 63]] {
        assert_eq!(clone3(wrong), ENOSYS, "{wrong:x?}");
    }
}

#[test]
fn keys_kernel_programs_counters_and_handles_are_refused() {
    for number in [
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_kcmp,
        libc::SYS_open_by_handle_at,
        libc::SYS_name_to_handle_at,
        libc::SYS_fanotify_init,
        libc::SYS_syslog,
    ] {
        assert_eq!(call(number, [0; 5]), EPERM, "{number}");
    }
}

#[test]
fn terminals_take_no_typing_from_programs() {
    let byte = c"x";
    let mut ends = [0; 2];
    let [leader, terminal] = &mut ends;
    let none = std::ptr::null_mut();
    // SAFETY: the two descriptors are ours to write to, and the rest may be null.
    assert_eq!(unsafe { libc::openpty(leader, terminal, none, none.cast(), none.cast()) }, 0);
    for request in [libc::TIOCSTI as c_ulong, libc::TIOCSTI as c_ulong | 1 << 32, libc::TIOCLINUX as c_ulong, 0x5423] {
        let args = [ends[1] as c_ulong, request, byte.as_ptr() as c_ulong, 0, 0];
        assert_eq!(call(libc::SYS_ioctl, args), EPERM, "{request:#x}");
    }
    let mut size = [0_u16; 4];
    let args = [ends[1] as c_ulong, libc::TIOCGWINSZ as c_ulong, size.as_mut_ptr() as c_ulong, 0, 0];
    assert_eq!(call(libc::SYS_ioctl, args), Outcome::Done);
    for end in ends {
        // SAFETY: ours, and not used again.
        unsafe { libc::close(end) };
    }
}

#[test]
fn sockets_of_other_families_do_not_exist() {
    let socket = |family: c_int, kind: c_int, protocol: c_int| {
        call(libc::SYS_socket, [family as c_ulong, kind as c_ulong, protocol as c_ulong, 0, 0])
    };
    for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH] {
        assert_eq!(socket(family, libc::SOCK_RAW, 0), EAFNOSUPPORT, "{family}");
    }
    // The old name of AF_PACKET, still open behind AF_INET.
    const SOCK_PACKET: c_int = 10;
    assert_eq!(socket(libc::AF_INET, SOCK_PACKET, 0), EPROTONOSUPPORT);
    assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP), EPROTONOSUPPORT);
    assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER), EPROTONOSUPPORT);
    assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE), ENOSYS, "a broker makes it");
    assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM, 0), Outcome::Done);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn other_doors_into_the_kernel_are_deadly() {
    let x32_getpid = 0x4000_0000 | libc::SYS_getpid;
    assert_eq!(call(x32_getpid, [0; 5]), Outcome::Killed(libc::SIGSYS));
    let i386_getpid = in_child(|| {
        let result: c_long;
        // SAFETY: the call of 32-bit x86 for getpid; it touches no memory.
        unsafe { std::arch::asm!("int 0x80", inout("rax") 20_i64 => result) };
        result
    });
    // A kernel without 32-bit support has no such door at all.
    assert!(matches!(i386_getpid, Outcome::Killed(libc::SIGSYS | libc::SIGSEGV)), "{i386_getpid:?}");
}

#[test]
fn the_filter_is_inherited_and_cannot_be_taken_off() {
    assert_eq!(works("bash -c 'grep ^Seccomp: /proc/self/status'"), "Seccomp:\t2\n");
    refused("bash -c 'bash -c \"unshare -U true\"'", "Operation not permitted");
}

#[test]
fn the_bounding_set_holds_what_is_kept_and_nothing_else() {
    let mut command = Command::new("cat");
    // SAFETY: between fork and exec there are system calls and no allocation.
    unsafe { command.arg("/proc/self/status").pre_exec(drop_bounding) };
    if fs::read_to_string("/proc/self/status").unwrap().contains("CapEff:\t0000000000000000") {
        println!("without CAP_SETPCAP nothing can be dropped: not tried");
        return;
    }
    let status = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("CapBnd:"), "00000000a00404fb");
    assert_eq!(field("CapEff:"), format!("{:016x}", kept_mask()));
}
