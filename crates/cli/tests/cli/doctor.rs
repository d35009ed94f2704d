//! The doctor, on this machine and on worse ones.

use std::process::Command;

use crate::kit::{Ended, Ends, binary, cabana, data, is_root};

#[test]
fn this_machine_is_looked_at_whole() {
    let said = cabana().arg("doctor").ends().well();
    for topic in [
        "kernel",
        "identities",
        "namespaces",
        "overlay",
        "proc",
        "seccomp",
        "suid-dumpable",
        "core-dumps",
        "limits",
        "network",
        "disk-limits",
        "io-limits",
        "terminals",
        "inotify-watches",
        "mount-namespaces",
        "open-files",
        "open-files-of-one",
        "files",
        "pids",
        "programs",
    ] {
        let told = said.lines().any(|line| line.split_whitespace().nth(1) == Some(topic));
        assert!(told, "nothing of {topic} in {said}");
    }
    assert!(said.contains("Sandboxes can run here"), "{said}");
    assert!(!said.contains("os error"), "{said}");
    assert!(!said.contains("could not be tried"), "{said}");
}

#[test]
fn programs_read_json() {
    let said = cabana().args(["doctor", "--json"]).ends().well();
    for part in ["\"can_run\": true", "\"findings\": [", "\"topic\": \"kernel\"", "\"state\": \"ok\"", "\"facts\": {"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

#[test]
fn looking_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    cabana().args(["doctor", "--data"]).arg(home.path().join("not/there/yet")).ends().well();
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

/// Under `unshare`, as a container's runtime would leave it.
fn elsewhere(flags: &[&str], script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(flags).args(["sh", "-c", script]).env("CABANA", binary()).env("CABANA_DATA", data());
    command
}

#[test]
fn a_masked_proc_is_told_with_what_to_do() {
    if !is_root() {
        return;
    }
    let mask = "mount -t tmpfs none /proc/irq && ";
    let ended = elsewhere(&["--mount"], &format!("{mask} exec $CABANA doctor")).ends();
    assert_eq!(ended.code, 1, "{ended:?}");
    let line =
        ended.stdout.lines().find(|line| line.starts_with("missing  proc ")).unwrap_or_else(|| panic!("{ended:?}"));
    assert!(line.contains("mounting a new proc was refused"), "{line}");
    assert!(!ended.stdout.contains("os error"), "{ended:?}");
    let ended = elsewhere(&["--mount"], &format!("{mask} exec $CABANA run -- true")).ends();
    assert!(ended.code == 125 && ended.stderr.contains("cabana doctor"), "{ended:?}");
}

/// As if the host's setting were this, in a mount namespace of the test's own. No sandbox runs there: the kernel gives a new
/// /proc only to who sees a whole one.
fn with_setting(name: &str, value: &str, words: &str) -> Ended {
    let setting = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(setting.path(), format!("{value}\n")).unwrap();
    let mask = format!("mount --bind {} /proc/sys/{name}", setting.path().display());
    elsewhere(&["--mount"], &format!("{mask} && exec $CABANA {words}")).ends()
}

fn with_suid_dumpable(value: u32, words: &str) -> Ended {
    with_setting("fs/suid_dumpable", &value.to_string(), words)
}

#[test]
fn core_dumps_that_go_to_a_socket_are_told() {
    if !is_root() {
        return;
    }
    let told = |pattern: &str| {
        let ended = with_setting("kernel/core_pattern", pattern, "doctor");
        ended.stdout.lines().any(|line| line.starts_with("lost") && line.contains("core-dumps"))
    };
    assert!(told("@/run/coredump.sock"));
    assert!(!told("|/usr/lib/systemd/systemd-coredump %P") && !told("core"));
}

#[test]
fn a_host_with_suid_dumpable_1_is_refused() {
    if !is_root() {
        return;
    }
    let said = with_suid_dumpable(1, "run -- true").fails(125, "host_unsupported");
    assert!(said.contains("fs.suid_dumpable is 1") && said.contains("cabana doctor"), "{said}");
    let said = with_suid_dumpable(1, "serve --listen 127.0.0.1:0").fails(125, "host_unsupported");
    assert!(said.contains("fs.suid_dumpable is 1"), "{said}");
    let ended = with_suid_dumpable(1, "doctor");
    let line = ended.stdout.lines().find(|line| line.starts_with("missing  suid-dumpable "));
    assert!(ended.code == 1 && line.is_some_and(|line| line.contains("fs.suid_dumpable is 1")), "{ended:?}");
    assert!(ended.stdout.contains("sysctl -w fs.suid_dumpable=0"), "{ended:?}");
    for safe in [0, 2] {
        let ended = with_suid_dumpable(safe, "doctor");
        assert!(!ended.stdout.contains("missing  suid-dumpable "), "{safe}: {ended:?}");
        let ended = with_suid_dumpable(safe, "run -- true");
        assert!(!ended.stderr.contains("fs.suid_dumpable"), "{safe}: {ended:?}");
    }
}

#[test]
fn a_ceiling_of_no_namespaces_is_told_with_what_to_do() {
    if !is_root() {
        return;
    }
    // As uid 0 without the right to mount: the way that a container has it.
    let close = "echo 0 > /proc/sys/user/max_user_namespaces && ";
    let flags = ["--user", "--map-root-user"];
    let ended = elsewhere(&flags, &format!("{close} exec $CABANA doctor --data /tmp/none")).ends();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stdout.contains("user.max_user_namespaces is 0"), "{ended:?}");
    assert!(ended.stdout.contains("sysctl -w user.max_user_namespaces="), "{ended:?}");
}
