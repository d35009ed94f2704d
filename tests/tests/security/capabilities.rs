//! Rights that were taken away, asked back.

use cabana_sandbox::SandboxSpec;

use crate::{
    attacks::{DEVICES, IOCTLS, on_host},
    inside::{Inside, passing},
};

/// A program that says which capabilities it has, at `at`.
const PROBE: &str = "cp /usr/bin/cat /tmp/probe && chmod 755 /tmp/probe";
const KEPT: &str = "00000000a00404fb";

async fn with_sudo() -> Inside {
    // Without no_new_privs and nosuid in the way, so that only the bounding set and the namespace stand.
    let inside = Inside::with(SandboxSpec { sudo: true, ..passing() }).await;
    inside.root(PROBE).await.ok();
    inside
}

fn set(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
}

#[tokio::test]
async fn capabilities_by_a_file_that_has_them() {
    let inside = with_sudo().await;
    // What is kept can be given to a file, and works: the control.
    let bind = "import os, struct
def grant(caps):
    data = struct.pack('<5I', 0x02000001, caps & 0xffffffff, 0, caps >> 32, 0)
    os.setxattr('/tmp/probe', 'security.capability', data)
grant(int(os.sys.argv[1], 0)) if hasattr(os, 'sys') else grant(int(__import__('sys').argv[1], 0))";
    let grant = |caps: &str| format!("python3 -c \"{bind}\" {caps}");
    inside.root(&grant("0x400")).await.ok();
    let got = inside.user("/tmp/probe /proc/self/status").await.ok();
    assert_eq!(set(&got, "CapEff"), "0000000000000400", "NET_BIND_SERVICE is had by its file");
    // All of them, and SYS_ADMIN alone: no exec gives more than the bounding set.
    for caps in ["0x1ffffffffff", "0x200000", "0x1000", "0x80000", "0x8000000000"] {
        inside.root(&grant(caps)).await;
        let ran = inside.user("/tmp/probe /proc/self/status").await;
        if ran.out.is_empty() {
            continue; // the kernel does not start it
        }
        let got = u64::from_str_radix(&set(&ran.out, "CapEff"), 16).unwrap();
        assert_eq!(got & !u64::from_str_radix(KEPT, 16).unwrap(), 0, "{caps}: {got:x}");
    }
    inside.end().await;
}

#[tokio::test]
async fn capabilities_by_a_set_uid_file() {
    let inside = with_sudo().await;
    inside.root("chmod 4755 /tmp/probe").await.ok();
    let got = inside.user("/tmp/probe /proc/self/status").await.ok();
    assert_eq!(set(&got, "CapEff"), KEPT, "root inside and no more");
    inside.end().await;

    let plain = Inside::new().await;
    plain.root(&format!("{PROBE} && chmod 4755 /tmp/probe")).await.ok();
    let got = plain.user("/tmp/probe /proc/self/status").await.ok();
    assert_eq!(set(&got, "CapEff"), "0000000000000000", "not even that");
    plain.end().await;
}

#[tokio::test]
async fn capabilities_by_ambient_sets_and_secure_bits() {
    let inside = with_sudo().await;
    let script = "import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def prctl(*a):
    return 'done' if libc.prctl(*[ctypes.c_ulong(x) for x in a]) >= 0 else errno.errorcode[ctypes.get_errno()]
print('ambient', prctl(47, 2, 21, 0, 0))
print('secure bits', prctl(28, 0x2f, 0, 0, 0))
print('bounding', libc.prctl(23, 21, 0, 0, 0))
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
print('capset', 'done' if libc.capset(header, data) == 0 else errno.errorcode[ctypes.get_errno()])";
    let host = on_host(&format!("python3 - <<'EOF'\n{script}\nEOF")).ok();
    assert!(host.contains("secure bits done") && host.contains("bounding 1"), "the host's root may: {host}");
    let spec = cabana_sandbox::ExecSpec::argv(["/usr/bin/python3", "-c", script], cabana_sandbox::SandboxPath::root());
    let said = inside.command("root", spec).await.ok();
    assert_eq!(said, "ambient EPERM\nsecure bits EPERM\nbounding 0\ncapset EPERM");
    inside.end().await;
}

#[tokio::test]
async fn no_new_privs_taken_back() {
    let inside = Inside::new().await;
    let script = "import ctypes; libc = ctypes.CDLL(None)
print(libc.prctl(38, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0))";
    let spec = cabana_sandbox::ExecSpec::argv(["/usr/bin/python3", "-c", script], cabana_sandbox::SandboxPath::root());
    assert_eq!(inside.command("root", spec).await.ok(), "-1 1");
    inside.user("sudo -n true").await.refused();
    inside.user("su -c true root </dev/null").await.refused();
    inside.end().await;
    let allowed = with_sudo().await;
    assert_eq!(allowed.user("sudo -n id -u").await.ok(), "0", "where it is asked for, it works");
    allowed.end().await;
}

#[tokio::test]
async fn device_nodes_of_every_kind() {
    let dir = tempfile::tempdir().unwrap();
    DEVICES.run_on_host(&[dir.path().to_str().unwrap()]).report().all_done();
    let inside = Inside::new().await;
    for node in ["b 7 0", "b 8 0", "c 1 1", "c 1 2", "c 5 1", "c 10 200", "c 10 229", "b 259 0", "c 1 3"] {
        for place in ["/tmp/node", "/dev/shm/node", "/home/user/node"] {
            let said = inside.root(&format!("mknod {place} {node}")).await.refused();
            assert!(said.contains("Operation not permitted"), "{node}: {said}");
        }
    }
    inside.user("mkfifo /tmp/pipe").await.ok(); // what is no device can be made
    inside.end().await;
}

/// The kernel holds up who writes to the same file system for it, all of it.
#[tokio::test]
async fn changing_how_the_blocks_of_a_file_are_kept() {
    let own = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let done = std::process::Command::new("chattr").arg("-e").arg(own.path()).status().unwrap();
    assert!(done.success(), "the host's own may be changed");
    let inside = Inside::new().await;
    inside.user("touch /tmp/file && lsattr /tmp/file").await.ok();
    for how in ["-e", "+e", "+d"] {
        let said = inside.user(&format!("chattr {how} /tmp/file")).await.refused();
        assert!(said.contains("Operation not supported"), "{how}: {said}");
    }
    inside.end().await;
}

#[tokio::test]
async fn pinning_files_so_that_they_cannot_be_deleted() {
    let own = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    assert_eq!(IOCTLS.run_on_host(&[own.path().to_str().unwrap()]).report().of("pin"), "done");
    let inside = Inside::new().await;
    inside.root("mkdir /tmp/pinned && touch /tmp/pinned/file").await.ok();
    inside.root("chattr +i /tmp/pinned/file").await.refused();
    inside.root("chattr +a /tmp/pinned").await.refused();
    inside.attack("root", &IOCTLS, &["/tmp/pinned/file"]).await.report().all_refused(&[
        "EPERM",
        "EACCES",
        "ENOTTY",
        "EOPNOTSUPP",
    ]);
    inside.end().await;
}
