//! Files of special kinds in a directory of the host that a sandbox sees: put there by the host, or by the sandbox.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
    path::Path,
    process::Command,
};

use cabana_sandbox::{ExecSpec, SandboxSpec, Source, View, write_all};

use crate::{
    attacks::{DEVICES, Ran, on_host},
    inside::{Inside, passing, path, soon, unique},
};

const SEEN: &str = "/workspace/seen";

/// A directory of somebody's, which everybody may write to.
fn shown() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    dir
}

async fn seeing(dir: &Path, sudo: bool) -> Inside {
    let view = View { source: Source::Host(dir.into()), at: path(SEEN), writable: true };
    Inside::with(SandboxSpec { views: vec![view], sudo, ..passing() }).await
}

fn host(words: &[&str]) -> Ran {
    Ran::of(Command::new(words[0]).args(&words[1..]))
}

#[tokio::test]
async fn a_device_that_lies_in_a_view() {
    let dir = shown();
    let node = dir.path().join("zero");
    host(&["mknod", "-m", "666", node.to_str().unwrap(), "c", "1", "5"]).ok();
    assert_eq!(host(&["head", "-c", "1", node.to_str().unwrap()]).ok(), "\0", "on the host it is one");
    let inside = seeing(dir.path(), true).await;
    for user in ["root", "user"] {
        let spec = ExecSpec::shell(format!("head -c 1 {SEEN}/zero"), path("/"));
        inside.command(user, spec).await.refused();
        assert_eq!(soon("a device", inside.read(user, &format!("{SEEN}/zero"))).await, None);
    }
    inside.end().await;
}

#[tokio::test]
async fn a_device_that_a_sandbox_leaves_in_a_view() {
    let dir = shown();
    DEVICES.run_on_host(&[dir.path().to_str().unwrap()]).report().all_done();
    let inside = seeing(dir.path(), true).await;
    for user in ["root", "user"] {
        inside.attack(user, &DEVICES, &[SEEN]).await.report().nothing_done();
    }
    inside.user(&format!("mknod {SEEN}/pipe p")).await.ok(); // what is no device can be made
    let kinds: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_type().unwrap()).collect();
    assert!(kinds.iter().all(|kind| kind.is_fifo()), "{kinds:?}");
    inside.end().await;
}

#[tokio::test]
async fn a_set_uid_program_of_the_host_in_a_view() {
    let dir = shown();
    let program = dir.path().join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o6755)).unwrap();
    let control =
        host(&["setpriv", "--reuid", "47303", "--regid", "47303", "--clear-groups", program.to_str().unwrap(), "-u"]);
    // Where the way there is closed to others, nobody of the host gains by it either.
    if control.status == cabana_sandbox::Status::Code(0) {
        assert_eq!(control.ok(), "0", "on the host it gains");
    }
    let inside = seeing(dir.path(), true).await;
    assert_eq!(inside.user(&format!("{SEEN}/id -u")).await.ok(), "1000");
    inside.root("cp /usr/bin/id /srv/id && chmod 6755 /srv/id").await.ok();
    assert_eq!(
        inside.user("/srv/id -u").await.ok(),
        "0",
        "one of the sandbox's own gains, since it was made with sudo"
    );
    inside.end().await;
}

#[tokio::test]
async fn a_file_of_the_host_with_capabilities_in_a_view() {
    let dir = shown();
    let program = dir.path().join("cat");
    fs::copy("/usr/bin/cat", &program).unwrap();
    host(&["setcap", "cap_chown,cap_net_bind_service=ep", program.to_str().unwrap()]).ok();
    let inside = seeing(dir.path(), true).await;
    let status = inside.user(&format!("{SEEN}/cat /proc/self/status")).await;
    assert!(status.out.is_empty() || status.out.contains("CapEff:\t0000000000000000"), "{status:?}");
    inside.root("cp /usr/bin/cat /srv/cat && setcap cap_net_bind_service=ep /srv/cat").await.ok();
    let own = inside.user("/srv/cat /proc/self/status").await.ok();
    assert!(own.contains("CapEff:\t0000000000000400"), "one of the sandbox's own has them: {own}");
    inside.end().await;
}

/// What is read as root's by tools of the host: attributes that only its root may set.
#[tokio::test]
async fn attributes_of_the_hosts_root_in_a_view() {
    let dir = shown();
    let control = dir.path().join("control");
    fs::write(&control, "").unwrap();
    host(&["setfattr", "-n", "trusted.overlay.opaque", "-v", "y", control.to_str().unwrap()]).ok();
    let inside = seeing(dir.path(), false).await;
    inside.user(&format!("touch {SEEN}/file && setfattr -n user.plain -v y {SEEN}/file")).await.ok();
    for name in ["trusted.overlay.opaque", "trusted.x", "security.ima", "system.posix_acl_access"] {
        let ran = inside.root(&format!("setfattr -n {name} -v y {SEEN}/file")).await;
        assert_ne!(ran.status, cabana_sandbox::Status::Code(0), "{name}");
    }
    let found =
        host(&["getfattr", "-d", "-m", "-", "--absolute-names", dir.path().join("file").to_str().unwrap()]).ok();
    assert!(found.contains("user.plain") && !found.contains("trusted") && !found.contains("security"), "{found}");
    inside.end().await;
}

/// Whose files of a sandbox are, seen from the host: the directory's owner's, and nobody else's.
#[tokio::test]
async fn files_that_a_sandbox_gives_to_others_in_a_view() {
    let dir = shown();
    chown(dir.path(), Some(4321), Some(4321)).unwrap();
    let inside = seeing(dir.path(), false).await;
    inside.user(&format!("touch {SEEN}/own")).await.ok();
    for whom in ["root", "0", "1", "65535", "4321", "nobody"] {
        let _ = inside.root(&format!("touch {SEEN}/f{whom} && chown {whom} {SEEN}/f{whom}")).await;
    }
    let _ = write_all(&*inside.files("root"), &path(&format!("{SEEN}/written")), "x").await;
    for entry in fs::read_dir(dir.path()).unwrap().flatten() {
        let owner = entry.metadata().unwrap().uid();
        assert!(owner == 4321 || owner >= 0x7000_0000, "{:?} belongs to {owner}", entry.file_name());
    }
    inside.end().await;
}

#[tokio::test]
async fn a_pipe_of_the_host_in_a_view_that_the_server_opens() {
    let dir = shown();
    host(&["mkfifo", "-m", "666", dir.path().join("pipe").to_str().unwrap()]).ok();
    let held = on_host(&format!("timeout 0.3 cat {}", dir.path().join("pipe").display()));
    assert_eq!(held.status, cabana_sandbox::Status::Code(124), "who opens it waits");
    let inside = seeing(dir.path(), false).await;
    for user in ["root", "user"] {
        let name = format!("{SEEN}/pipe");
        assert_eq!(soon("a pipe", inside.read(user, &name)).await, None);
        assert!(
            soon("a pipe", write_all(&*inside.files(user), &path(&name), "x")).await.is_err()
                || !fs::metadata(dir.path().join("pipe")).unwrap().file_type().is_fifo()
        );
    }
    inside.still_works().await;
    inside.end().await;
}

/// Names as long and as odd as a file system takes, made where the host's tools will meet them.
#[tokio::test]
async fn a_view_is_all_that_a_name_in_it_can_reach() {
    let outer = shown();
    let (dir, beside) = (outer.path().join("shown"), outer.path().join("beside"));
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
    let word = unique("beside");
    fs::write(&beside, &word).unwrap();
    assert_eq!(fs::read_to_string(dir.join("../beside")).unwrap(), word, "on the host it is beside");
    let inside = seeing(&dir, false).await;
    let inside_root = inside.root("cat /beside /workspace/beside 2>/dev/null; true").await.ok();
    assert_eq!(inside_root, "");
    for way in [
        "cat SEEN/../beside",
        "cat SEEN/./../beside",
        "cd SEEN && cat ../beside",
        "cd -P SEEN/. && cat ../beside",
        "ln -s ../beside SEEN/link && cat SEEN/link",
        "cat SEEN/link",
    ] {
        let said = inside.root(&way.replace("SEEN", SEEN)).await;
        assert!(!said.out.contains(&word), "{way}: {said:?}");
    }
    assert_eq!(inside.read("root", &format!("{SEEN}/link")).await, None);
    inside.end().await;
}
