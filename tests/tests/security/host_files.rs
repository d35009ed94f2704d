//! Files of the host, by every name that might lead there.

use std::{fs, os::unix::fs::MetadataExt};

use cabana_sandbox::{ExecSpec, SandboxPath};

use crate::{
    attacks::{CHROOT, HUNT, in_own, on_host},
    inside::{Inside, unique},
};

/// A file of the host that says something which is nowhere else.
struct Canary {
    dir: tempfile::TempDir,
    content: String,
}

impl Canary {
    fn new() -> Self {
        let (dir, content) = (tempfile::tempdir().unwrap(), unique("canary"));
        fs::write(dir.path().join("canary"), &content).unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self { dir, content }
    }

    fn path(&self) -> String {
        self.dir.path().join("canary").to_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_file_of_the_host_by_links_dots_and_doors_in_proc() {
    let canary = Canary::new();
    let work = tempfile::tempdir().unwrap();
    let found = HUNT.run_on_host(&[&canary.path(), &canary.content, work.path().to_str().unwrap(), "own"]).ok();
    for way in ["path ", "up ", "door /proc/self/root", "symlink ", "hardlink "] {
        assert!(found.contains(way), "on the host, {way} leads there: {found}");
    }
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let work = format!("/tmp/work-{user}");
        let found = inside.attack(user, &HUNT, &[&canary.path(), &canary.content, &work, "all"]).await.ok();
        assert_eq!(found, "", "as {user}");
    }
    inside.end().await;
}

#[tokio::test]
async fn leaving_the_root_by_a_jail_in_a_jail() {
    let canary = Canary::new();
    let inside = Inside::new().await;
    inside.root("touch /tmp/beside").await.ok();
    let report = inside.attack("root", &CHROOT, &["/tmp/jail", "/tmp/beside", &canary.path()]).await.report();
    assert_eq!(report.of("beside the jail, from within"), "ENOENT", "it was in a jail");
    assert_eq!(report.of("beside the jail, from without"), "done", "the way out of a jail works");
    assert_eq!(report.of("on the host"), "ENOENT");
    inside.end().await;
}

#[tokio::test]
async fn the_hosts_layout_in_the_tables_of_mounts() {
    let inside = Inside::new().await;
    let tables = inside
        .root("cat /proc/self/mountinfo /proc/self/mounts /proc/self/mountstats /proc/1/mountinfo 2>/dev/null; true")
        .await;
    let text = tables.out;
    assert!(text.contains(" / rw"), "there is a table: {text}");
    let data = env!("CARGO_TARGET_TMPDIR");
    let plain = in_own(&["--mount"], &format!("mount --bind {data} /mnt && cat /proc/self/mountinfo")).ok();
    assert!(plain.contains("target/tmp"), "a mount that is made by its path shows it: {plain}");
    let names =
        data.split('/').filter(|name| name.len() > 3 && *name != "work").chain(["ephemeral", "upper0/", "sandboxes"]);
    for name in names.chain([inside.sandbox.id().as_str()]) {
        assert!(!text.contains(name), "{name} is in {text}");
    }
    // What a mount shows of its file system is its root, and nothing above. The boot id is a file of the sandbox's own memory.
    let roots = inside
        .root("awk '$4 != \"/\" && $4 !~ \"^/(null|sys|pts|proc|dev|e|boot_id|1$)\" { print }' /proc/self/mountinfo")
        .await
        .ok();
    assert_eq!(roots, "");
    inside.end().await;
}

#[tokio::test]
async fn the_hosts_layout_in_control_groups_and_maps() {
    let inside = Inside::new().await;
    let said = inside
        .root("cat /proc/self/cgroup /proc/self/maps /proc/self/cpuset /proc/1/cgroup 2>/dev/null; true")
        .await
        .out;
    assert!(said.contains("/usr/bin/"), "{said}");
    assert!(on_host("cat /proc/[0-9]*/cgroup 2>/dev/null").out.contains("/cabana/"), "seen from the host it is there");
    for name in [inside.sandbox.id().as_str(), "cabana/", "cabana-", "/tmp/", "system.slice", "user.slice"] {
        assert!(!said.contains(name), "{name} is in {said}");
    }
    inside.end().await;
}

#[tokio::test]
async fn walking_up_from_inherited_descriptors() {
    let inside = Inside::new().await;
    let script = "for fd in 0 1 2 9; do for way in .. ../etc/hostname ../../../../../../etc/shadow; do
        cat /proc/self/fd/$fd/$way 2>/dev/null && echo found; ls /proc/self/fd/$fd/$way 2>/dev/null && echo found; done; done; true";
    assert!(
        on_host(&format!("exec 9</usr/bin; {script}")).ok().contains("found"),
        "with one of a directory it leads up"
    );
    for user in ["root", "user"] {
        assert_eq!(inside.command(user, ExecSpec::shell(script, SandboxPath::root())).await.ok(), "", "as {user}");
    }
    inside.end().await;
}

#[tokio::test]
async fn writing_to_a_program_of_the_host() {
    // With its own content, so that the host is the same if it gets through; the time would tell.
    let target = "/usr/bin/true";
    let before = fs::metadata(target).unwrap();
    let inside = Inside::new().await;
    let script = format!("cp {target} /tmp/same && cat /tmp/same > {target} && chmod 755 {target} && touch {target}");
    let own = tempfile::tempdir().unwrap();
    let (copy, same) = (own.path().join("true"), own.path().join("same"));
    fs::copy(target, &copy).unwrap();
    let (was, alone) = (fs::metadata(&copy).unwrap(), script.replace(target, copy.to_str().unwrap()));
    on_host(&alone.replace("/tmp/same", same.to_str().unwrap())).ok();
    assert_ne!(was.ctime_nsec(), fs::metadata(&copy).unwrap().ctime_nsec(), "where there is one copy, it changes");
    inside.root(&script).await.ok(); // it has a copy of its own
    inside.root(&format!("ln {target} /usr/bin/second && mv {target} /usr/bin/third && rm /usr/bin/third")).await.ok();
    inside.root(&format!("test -e {target}")).await.refused();
    let after = fs::metadata(target).unwrap();
    let marks =
        |meta: &fs::Metadata| (meta.ino(), meta.mtime(), meta.ctime(), meta.ctime_nsec(), meta.nlink(), meta.len());
    assert_eq!(marks(&before), marks(&after));
    let other = Inside::of(inside.engine.clone(), &crate::inside::passing()).await;
    other.root(&format!("test -x {target}")).await.ok();
    other.end().await;
}

#[tokio::test]
async fn the_servers_environment_and_arguments() {
    let inside = Inside::new().await;
    let marks = ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "cabana_tests", "cabana-tests", "NEXTEST"];
    assert!(std::env::vars().any(|(name, _)| name == marks[0]), "the server has such a variable");
    for user in ["root", "user"] {
        let script = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; true";
        let said = inside.command(user, ExecSpec::shell(script, SandboxPath::root())).await.ok();
        assert!(said.contains("HOME="), "{said}");
        let own = fs::read("/proc/self/environ").unwrap();
        assert!(String::from_utf8_lossy(&own).contains(marks[0]), "on the host it is there to be read");
        for mark in marks {
            assert!(!said.contains(mark), "{mark} is in {said}");
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn secrets_of_the_host_that_the_base_should_not_have() {
    let inside = Inside::new().await;
    let script = "cat /etc/shadow /etc/gshadow 2>/dev/null | grep -v -E '^[^:]+:(\\*|!|!\\*|):' | grep -c . ; \
        ls -A /root /home /var/lib /run 2>/dev/null";
    let said = inside.root(script).await.out;
    assert_eq!(said.lines().next(), Some("0"), "no password of anybody: {said}");
    let host: Vec<_> = fs::read_dir("/root").unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(host.len() > 2 && fs::read("/etc/shadow").is_ok(), "the host has such things: {host:?}");
    for name in host.iter().filter_map(|name| name.to_str()).filter(|name| ![".bashrc", ".profile"].contains(name)) {
        assert!(!said.lines().any(|line| line == name), "{name} of the host's root is in {said}");
    }
    inside.root("test -e /etc/ssh && ls /etc/ssh/*key").await.refused();
    inside.end().await;
}
