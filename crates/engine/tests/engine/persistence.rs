//! A sandbox's files are as they were, however often it is stopped and started.

use cabana_engine::Engine;
use cabana_sandbox::{Base, Provider, Sandbox, SandboxId, SandboxSpec};

use crate::{
    inside::{named, path, python, rounds, shell},
    stage,
};

/// Makes one of everything that a file system can hold, and changes what the base brought.
pub(crate) const MAKE: &str = r#"
import ctypes, os, shutil, socket, struct, subprocess
os.umask(0)
top = b"/home/user/kept/"
os.mkdir(top)
for number, (owner, mode) in enumerate([(0, 0o600), (1000, 0o644), (1, 0o4755), (1000, 0o2711), (12345, 0o1777), (65533, 0o000)]):
    name = top + b"file%d" % number
    with open(name, "wb") as file: file.write(b"content %d" % number * 1000)
    os.chown(name, owner, owner // 2)
    os.chmod(name, mode)
    name = top + b"dir%d" % number
    os.mkdir(name)
    os.chown(name, owner, owner)
    os.chmod(name, mode)
os.makedirs(top + b"deep/" + b"er/" * 30)
with open(top + b"attributes", "w"): pass
os.setxattr(top + b"attributes", "user.plain", b"value")
os.setxattr(top + b"attributes", "user.bytes", bytes(range(256)))
os.setxattr(top + b"deep", "user.of a directory", b"")
os.symlink(b"attributes", top + b"link")
os.symlink(b"/nowhere/\xff", top + b"dangling")
os.lchown(top + b"link", 77, 78)
for other in b"second", b"deep/third": os.link(top + b"file1", top + other)
os.link(top + b"dangling", top + b"dangling too")
with open(top + b"sparse", "wb") as file:
    file.truncate(1 << 30)
    file.seek(1 << 29)
    file.write(b"island")
with open(top + b"\xff\xfe not text \n", "wb") as file: file.write(b"x")
os.mkfifo(top + b"pipe", 0o640)
socket.socket(socket.AF_UNIX).bind(top + b"socket")
for name in b"attributes", b"link", b"deep", b"sparse":
    os.utime(top + name, ns=(1, 1234567890123456789), follow_symlinks=False)
# What the base brought: removed, replaced, moved, emptied.
os.remove("/etc/services")
with open("/etc/protocols", "a") as file: file.write('# more\n')
os.chmod("/etc/rpc", 0o600)
os.chown("/etc/issue", 1000, 1000)
subprocess.run(["mv", "/etc/skel", "/etc/skel moved"], check=True)
shutil.rmtree("/etc/pam.d")
os.mkdir("/etc/pam.d")
with open("/etc/pam.d/only", "w") as file: file.write("new")
shutil.rmtree("/usr/share/base-files")
subprocess.run(["mv", "/usr/share/base-passwd", "/usr/share/moved"], check=True)
os.remove("/usr/bin/tac")
os.rename("/usr/bin/tsort", "/usr/bin/sorted")
with open("/usr/local/bin/mine", "w") as file: file.write('#!/bin/sh\necho mine\n')
os.chmod("/usr/local/bin/mine", 0o755)
"#;

/// Everything that can be known of these trees, in one text. Times of access are left out: to look is to change them.
const MANIFEST: &str = r#"
import collections, hashlib, os, stat
links = collections.defaultdict(list)
def tell(path):
    s = os.lstat(path)
    more = ""
    if stat.S_ISLNK(s.st_mode): more = repr(os.readlink(path))
    elif not stat.S_ISDIR(s.st_mode):
        links[s.st_dev, s.st_ino].append(path)
        more = f"links={s.st_nlink} blocks={s.st_blocks} rdev={s.st_rdev}"
        if stat.S_ISREG(s.st_mode) and s.st_size < 1 << 20:
            with open(path, "rb") as file: more += " " + hashlib.sha256(file.read()).hexdigest()
    size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
    attributes = sorted((name, os.getxattr(path, name, follow_symlinks=False)) for name in os.listxattr(path, follow_symlinks=False))
    print(path, oct(s.st_mode), s.st_uid, s.st_gid, size, s.st_mtime_ns, more, attributes)
def walk(path):
    tell(path)
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in sorted(os.listdir(path)): walk(os.path.join(path, name))
for top in b"/home/user/kept", b"/etc", b"/usr/local/bin", b"/usr/share/moved": walk(top)
for gone in b"/usr/bin/tac", b"/usr/bin/tsort", b"/usr/share/base-files", b"/usr/share/base-passwd": print(gone, os.path.lexists(gone))
tell(b"/usr/bin/sorted")
with open("/home/user/kept/sparse", "rb") as file:
    file.seek(1 << 29)
    print(file.read(6), os.lseek(file.fileno(), 0, os.SEEK_DATA))
for group in sorted(links.values()): print(*group) if len(group) > 1 else None
"#;

pub(crate) async fn manifest(sandbox: &dyn Sandbox) -> String {
    python(sandbox, "root", MANIFEST).await.ok()
}

/// Two texts of many lines: on a difference only the lines that differ are shown.
#[track_caller]
pub(crate) fn assert_same(was: &str, is: &str, when: &str) {
    if was != is {
        let lost: Vec<&str> = was.lines().filter(|line| !is.lines().any(|other| other == *line)).collect();
        let new: Vec<&str> = is.lines().filter(|line| !was.lines().any(|other| other == *line)).collect();
        panic!("{when}\nwas:\n{}\nis:\n{}", lost.join("\n"), new.join("\n"));
    }
}

pub(crate) fn check_made(manifest: &str) {
    for part in [
        "b'/home/user/kept/file2' 0o104755 1 0",
        "b'/home/user/kept/dir4' 0o41777 12345 12345",
        "('user.plain', b'value')",
        "b'/home/user/kept/deep/third' b'/home/user/kept/file1' b'/home/user/kept/second'",
        "b'island' 536870912",
        "b'/usr/share/base-files' False",
    ] {
        assert!(manifest.contains(part), "{part} is not in:\n{manifest}");
    }
    assert!(!manifest.contains("/etc/services") && !manifest.contains("'/etc/skel/"));
    let pam: Vec<&str> = manifest.lines().filter(|line| line.starts_with("b'/etc/pam.d/")).collect();
    assert_eq!(pam.len(), 1, "{pam:?}");
    let sparse = manifest.lines().find(|line| line.starts_with("b'/home/user/kept/sparse'")).unwrap();
    let blocks = sparse.split("blocks=").nth(1).unwrap().split(' ').next().unwrap();
    assert!(blocks.parse::<u32>().unwrap() <= 64, "{sparse}");
}

#[tokio::test]
async fn soak_files_are_as_they_were_after_100_rounds() {
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let mut sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    python(&*sandbox, "root", MAKE).await.ok();
    let was = manifest(&*sandbox).await;
    check_made(&was);
    let all = rounds(100);
    for round in 0..all {
        engine.stop(&id).await.unwrap();
        sandbox = engine.start(&id).await.unwrap();
        // Each round changes something of its own, and the last one's change is there.
        let script = format!(
            "mkdir -p /home/user/rounds && cd /home/user/rounds && ls | wc -l && cat log 2>/dev/null | tail -n 1
             touch {round} && echo {round} >> log && chmod $((RANDOM % 8))00 {round} && rm -f log.old && cp log log.old"
        );
        let said = shell(&*sandbox, "user", &script).await.ok();
        match round {
            0 => assert_eq!(said, "0"),
            _ => assert_eq!(said, format!("{}\n{}", round + 2, round - 1)),
        }
        if round % 10 == 0 || round + 1 == all {
            assert_same(&was, &manifest(&*sandbox).await, &format!("after round {round}"));
        }
    }
    let all_of_them = format!("cd /home/user/rounds && seq 0 {} | cmp - log && ls | wc -l", all - 1);
    assert_eq!(shell(&*sandbox, "user", &all_of_them).await.ok(), (all + 2).to_string());
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn another_engine_finds_the_files_as_they_were() {
    let id = SandboxId::random();
    let was = {
        let engine = stage::engine().await;
        let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
        python(&*sandbox, "root", MAKE).await.ok();
        let was = manifest(&*sandbox).await;
        engine.close().await;
        was
    };
    for _ in 0..3 {
        let engine = Engine::open(stage::config(stage::shared_data())).await.unwrap();
        let sandbox = engine.start(&id).await.unwrap();
        assert_same(&was, &manifest(&*sandbox).await, "with another engine");
        engine.close().await;
    }
    let engine = stage::engine().await;
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn file_capabilities_hold_with_another_range_of_ids() {
    let (one, two) = (stage::engine().await, stage::engine().await);
    let id = SandboxId::random();
    let spec = SandboxSpec { sudo: true, ..SandboxSpec::new(Base::Host) };
    let sandbox = one.create(&id, &spec).await.unwrap();
    // Version 2, effective, CAP_NET_BIND_SERVICE: what `setcap` writes.
    let set = "import os, shutil, struct
shutil.copy('/usr/bin/python3.11' if os.path.exists('/usr/bin/python3.11') else os.path.realpath('/usr/bin/python3'), '/usr/local/bin/binder')
os.setxattr('/usr/local/bin/binder', 'security.capability', struct.pack('<5I', 0x02000001, 1 << 10, 0, 0, 0))
print(os.getxattr('/usr/local/bin/binder', 'security.capability').hex())";
    let was = python(&*sandbox, "root", set).await.ok();
    let look = "import os; print(os.getxattr('/usr/local/bin/binder', 'security.capability').hex())";
    let uses = "/usr/local/bin/binder -c 'print(open(\"/proc/self/status\").read())' | grep CapEff";
    assert!(shell(&*sandbox, "user", uses).await.ok().ends_with("0000000400"));
    one.close().await;
    drop(one);

    let sandbox = two.start(&id).await.unwrap();
    assert_eq!(python(&*sandbox, "root", look).await.ok(), was);
    assert!(shell(&*sandbox, "user", uses).await.ok().ends_with("0000000400"));
    two.destroy(&id).await.unwrap();
    two.close().await;
}

#[tokio::test]
async fn what_was_removed_from_the_base_stays_removed_for_the_file_interface_too() {
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    let root = sandbox.files(Some(&named("root")));
    root.alter(cabana_sandbox::Alter::RemoveAll(path("/usr/share/base-files"))).await.unwrap();
    root.alter(cabana_sandbox::Alter::Remove(path("/usr/bin/tac"))).await.unwrap();
    root.alter(cabana_sandbox::Alter::MakeDir(path("/usr/share/base-files"), 0o755)).await.unwrap();
    engine.stop(&id).await.unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "ls -A /usr/share/base-files | wc -l").await.ok(), "0");
    let gone = sandbox.files(None).stat(&path("/usr/bin/tac")).await.unwrap_err();
    assert_eq!(gone.code(), cabana_sandbox::Code::NotFound);
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}
