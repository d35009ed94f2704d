//! What a sandbox cannot pass, tried from inside.

use std::net::TcpListener;

use cabana_sandbox::{Alter, Read, SandboxSpec, Write, WriteMode, write_all};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::inside::{Inside, in_terminal, passing, path};

/// A program of Python's own, which makes a system call by its number and prints the error's name.
const CALLS: &str = r#"
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    done = libc.syscall(*[ctypes.c_long(a) for a in arguments])
    return "done" if done >= 0 else errno.errorcode[ctypes.get_errno()]
intel = platform.machine() == "x86_64"
"#;

/// Runs each script as root: all must fail, and not because the tool is missing.
async fn all_refused(scripts: &[&str]) {
    let inside = Inside::new().await;
    for script in scripts {
        let said = inside.root(script).await.refused();
        assert!(!said.contains("command not found"), "{script}: {said}");
    }
    inside.end().await;
}

#[tokio::test]
async fn root_inside_cannot_mount() {
    all_refused(&[
        "mount -t tmpfs none /mnt",
        "mount --bind /etc /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "umount -l /usr",
        "mount -t proc proc /mnt",
    ])
    .await;
}

#[tokio::test]
async fn root_inside_cannot_make_namespaces() {
    all_refused(&[
        "unshare -U true",
        "unshare -r true",
        "unshare -n true",
        "unshare -m true",
        "unshare -p --fork true",
        "nsenter -t 1 -m true",
        "nsenter -t 1 -n true",
    ])
    .await;
}

#[tokio::test]
async fn no_device_can_be_made() {
    all_refused(&["mknod /tmp/disk b 7 0", "mknod /tmp/mem c 1 1", "mknod /dev/disk b 7 0", "touch /dev/new"]).await;
}

#[tokio::test]
async fn the_kernel_is_neither_read_nor_set() {
    all_refused(&[
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sys/kernel/hostname",
        "dmesg",
        "for file in kcore keys key-users timer_list sysrq-trigger; do cat /proc/$file 2>/dev/null; done | grep -q .",
        "test -e /proc/sysrq-trigger && test ! -c /proc/sysrq-trigger",
        "ls -A /proc/acpi /proc/scsi /proc/asound 2>/dev/null | grep -qv -e ^/ -e '^$'",
        "swapon /etc/passwd",
        "date -s \"$(date)\"",
        "hostname changed",
    ])
    .await;
}

#[tokio::test]
async fn process_1_shows_nothing_of_itself_to_root_or_user() {
    let inside = Inside::new().await;
    let looks = [
        "head -c 1 /proc/1/mem",
        "cat /proc/1/environ",
        "readlink /proc/1/root",
        "readlink /proc/1/cwd",
        "readlink /proc/1/exe",
        "ls /proc/1/fd/",
        "cat /proc/1/maps",
        "cat /proc/1/syscall",
        "echo 0 > /proc/1/oom_score_adj",
    ];
    for look in looks {
        inside.root(look).await.refused();
        inside.user(look).await.refused();
    }
    inside.end().await;
}

#[tokio::test]
async fn process_1_can_be_neither_traced_nor_killed() {
    let inside = Inside::new().await;
    let trace = format!("{CALLS}print(call(101 if intel else 117, 16, 1, 0, 0))");
    assert_eq!(inside.python("root", &trace).await.ok(), "EPERM");
    for signal in ["KILL", "TERM", "STOP", "SEGV", "INT", "CHLD", "USR1", "RTMIN"] {
        inside.root(&format!("kill -{signal} 1")).await; // whatever is said: what counts is that it has no effect
        assert_eq!(inside.root("echo lives").await.ok(), "lives", "after SIG{signal}");
    }
    inside.user("kill -KILL 1").await.refused();
    inside.end().await;
}

#[tokio::test]
async fn a_process_has_the_kept_capabilities_and_no_more() {
    let inside = Inside::new().await;
    let sets =
        |text: &str| -> Vec<String> { text.lines().map(|line| line.split('\t').nth(1).unwrap().into()).collect() };
    let caps = "grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status";
    assert_eq!(sets(&inside.root(caps).await.ok()), ["00000000a00404fb"; 3]);
    assert_eq!(sets(&inside.user(caps).await.ok()), ["0000000000000000", "0000000000000000", "00000000a00404fb"]);
    let rest = "grep -E '^Cap(Inh|Amb)' /proc/self/status";
    assert_eq!(sets(&inside.root(rest).await.ok()), ["0000000000000000"; 2]);
    inside.end().await;
}

#[tokio::test]
async fn every_process_is_filtered_and_gains_no_privileges() {
    let inside = Inside::new().await;
    let walls = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t\\n'";
    assert_eq!(inside.root(walls).await.ok(), "NoNewPrivs:1Seccomp:2");
    assert_eq!(inside.user(walls).await.ok(), "NoNewPrivs:1Seccomp:2");
    inside.end().await;
}

#[tokio::test]
async fn clones_into_namespaces_are_refused_by_the_kernel() {
    let inside = Inside::new().await;
    let script = format!(
        "{CALLS}
print(call(435, 0, 0))
for flag in 0x10000000, 0x40000000, 0x20000, 0x20000000, 0x08000000, 0x04000000, 0x02000000:
    print(call(56 if intel else 220, flag | 17, 0, 0, 0, 0))
    print(call(272 if intel else 97, flag))"
    );
    let said = inside.python("root", &script).await.ok();
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("ENOSYS"), "clone3");
    assert!(lines.by_ref().count() == 14);
    assert!(said.lines().skip(1).all(|line| line == "EPERM"), "{said}");
    inside.end().await;
}

#[tokio::test]
async fn a_setuid_program_gains_nothing_unless_sudo_is_wished() {
    let script = "cp /usr/bin/id /home/user/id && chmod 4755 /home/user/id";
    let plain = Inside::new().await;
    plain.root(script).await.ok();
    assert_eq!(plain.user("/home/user/id -u; /home/user/id -ru").await.ok(), "1000\n1000");
    plain.user("sudo -n id -u").await.refused();
    plain.end().await;

    let sudo = Inside::with(SandboxSpec { sudo: true, ..passing() }).await;
    sudo.root(script).await.ok();
    assert_eq!(sudo.user("/home/user/id -u; /home/user/id -ru").await.ok(), "0\n1000");
    assert_eq!(sudo.user("sudo -n id -u").await.ok(), "0");
    let caps = sudo.user("sudo -n grep CapEff /proc/self/status").await.ok();
    assert!(caps.ends_with("a00404fb"), "{caps}");
    sudo.end().await;
}

#[tokio::test]
async fn there_is_loopback_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = Inside::new().await;
    let devices = inside.root("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await.ok();
    assert_eq!(devices, "lo");
    let script = format!(
        "import socket
s = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(s.getsockname(), 5)
s.accept()[0].send(b'through loopback')
print(c.recv(99).decode())
try:
    socket.create_connection(('127.0.0.1', {}), 5)
    print('reached the host')
except ConnectionRefusedError:
    print('refused')
try:
    socket.create_connection(('192.0.2.1', 80), 5)
    print('reached the world')
except OSError as e:
    print(e.strerror)",
        listener.local_addr().unwrap().port()
    );
    let said = inside.python("user", &script).await.ok();
    assert_eq!(said, "through loopback\nrefused\nNetwork is unreachable");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody came");
    inside.end().await;
}

#[tokio::test]
async fn dev_has_a_few_nodes_and_terminals_of_its_own() {
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let _of_the_host = rustix::pty::openpt(flags).unwrap();
    let inside = Inside::new().await;
    let nodes = inside.root("ls -1 /dev | sort | xargs").await.ok();
    assert_eq!(nodes, "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero");
    assert_eq!(inside.root("ls /dev/pts").await.ok(), "ptmx");
    let made = "import os; m, s = os.openpty(); print(os.ttyname(s)); print(*sorted(os.listdir('/dev/pts')))";
    assert_eq!(inside.python("user", made).await.ok(), "/dev/pts/0\n0 ptmx");
    inside.root("echo > /dev/null && head -c 8 /dev/urandom | wc -c").await.ok();
    inside.root("rm /dev/null").await.refused();
    inside.end().await;
}

#[tokio::test]
async fn nothing_can_be_typed_into_a_terminal_from_inside() {
    let inside = Inside::new().await;
    let script = "import fcntl, termios
assert __import__('os').isatty(0)
try:
    fcntl.ioctl(0, termios.TIOCSTI, b'x')
    print('typed')
except OSError as e:
    print('refused')";
    assert_eq!(in_terminal(&*inside.sandbox, "root", script).await.ok(), "refused");
    inside.end().await;
}

#[tokio::test]
async fn dangerous_calls_are_refused() {
    let inside = Inside::new().await;
    // Intel's number, ARM's number, and what it is.
    let calls = [
        (321, 280, "bpf"),
        (298, 241, "perf_event_open"),
        (323, 282, "userfaultfd"),
        (250, 219, "keyctl"),
        (248, 217, "add_key"),
        (246, 104, "kexec_load"),
        (175, 105, "init_module"),
        (313, 273, "finit_module"),
        (169, 142, "reboot"),
        (155, 41, "pivot_root"),
        (308, 268, "setns"),
        (304, 265, "open_by_handle_at"),
        (425, 425, "io_uring_setup"),
        (428, 428, "open_tree"),
        (430, 430, "fsopen"),
        (442, 442, "mount_setattr"),
        (159, 171, "adjtimex"),
        (163, 89, "acct"),
        (167, 224, "swapon"),
        (103, 116, "syslog"),
    ];
    for (intel, arm, name) in calls {
        let script = format!("{CALLS}print(call({intel} if intel else {arm}, 0, 0, 0, 0, 0))");
        let said = inside.python("root", &script).await.ok();
        assert!(said == "EPERM" || said == "ENOSYS", "{name}: {said}");
    }
    inside.end().await;
}

/// What a client gets that reads this as root of the sandbox; `None` when it is refused.
async fn read(inside: &Inside, name: &str) -> Option<Vec<u8>> {
    let (_, body) = inside.files("root").read(&path(name), Read::default()).await.ok()?;
    let chunks: Vec<_> = body.try_collect().await.ok()?;
    Some(chunks.concat())
}

#[tokio::test]
async fn root_of_the_file_interface_is_not_root_of_the_host() {
    let inside = Inside::new().await;
    // Files of the kernel that belong to the host's root alone: refused to root inside, and so to who acts for it.
    let of_the_host =
        ["/proc/kpagecount", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/kpageflags"];
    for name in of_the_host.iter().filter(|name| std::path::Path::new(name).exists()) {
        inside.root(&format!("head -c 1 {name} | grep -qa .")).await.refused();
        assert!(read(&inside, name).await.is_none_or(|bytes| bytes.is_empty()), "{name} was read");
    }
    inside.end().await;
}

#[tokio::test]
async fn root_of_the_file_interface_changes_no_setting_of_the_host() {
    let inside = Inside::new().await;
    let setting = "/proc/irq/default_smp_affinity";
    let same = std::fs::read(setting).unwrap();
    inside.root(&format!("cat {setting} > {setting}")).await.refused();
    let body = stream::once(async move { Ok(same.into()) }).boxed();
    let write = inside.files("root").write(&path(setting), Write::new(WriteMode::InPlace), body).await;
    assert!(write.is_err(), "it was written");
    inside.end().await;
}

#[tokio::test]
async fn root_of_the_file_interface_changes_no_mode_of_the_kernels_files() {
    use std::os::unix::fs::PermissionsExt;
    let inside = Inside::new().await;
    // Shown in every /proc of the machine, with one mode for all of them. This is the mode that it has.
    let name = "/proc/version";
    let mode = std::fs::metadata(name).unwrap().permissions().mode() & 0o7777;
    inside.root(&format!("chmod {mode:o} {name}")).await.refused();
    assert!(inside.files("root").alter(Alter::SetMode(path(name), mode)).await.is_err(), "it was set");
    inside.end().await;
}

#[tokio::test]
async fn the_file_interface_follows_no_link_out() {
    let inside = Inside::new().await;
    let canary = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(canary.path(), "of the host").unwrap();
    let host = canary.path().to_str().unwrap();
    let files = inside.files("root");
    let ours = std::process::id();
    let ways = [
        host.to_owned(),
        format!("../../../../../../..{host}"),
        format!("/proc/self/root{host}"),
        format!("/proc/thread-self/root{host}"),
        format!("/proc/1/root{host}"),
        format!("/proc/1/root/../..{host}"),
        format!("/proc/{ours}/root{host}"),
        format!("/proc/self/cwd/../../../../../../..{host}"),
        "/proc/self/exe".to_owned(),
        "/proc/1/exe".to_owned(),
        "/proc/self/environ".to_owned(),
        "/proc/1/environ".to_owned(),
        "/proc/1/mem".to_owned(),
        "/proc/1/maps".to_owned(),
        "/dev/fd/0".to_owned(),
        "/dev/stdin".to_owned(),
    ];
    for (number, way) in ways.iter().enumerate() {
        let link = format!("/home/user/link{number}");
        files.alter(Alter::Symlink { at: path(&link), text: way.clone().into_bytes() }).await.unwrap();
        let read = read(&inside, &link).await;
        assert!(read.as_ref().is_none_or(|bytes| bytes.is_empty()), "{way} led to {} bytes", read.unwrap().len());
    }
    // To write through a link makes the file inside or is refused; the host's stays as it is.
    for number in 0..8 {
        let _ = write_all(&*files, &path(&format!("/home/user/link{number}")), "changed").await;
        assert_eq!(std::fs::read_to_string(canary.path()).unwrap(), "of the host");
    }
    inside.end().await;
}
