//! The doctor, on this machine and on worse ones.

use std::process::Command;

use crate::kit::{Ends, binary, cabana, data, is_root};

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
