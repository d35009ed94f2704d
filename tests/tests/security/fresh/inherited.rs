//! What the server has, its sandboxes have not: whatever a process hands down to those that it starts. Each test changes
//! itself first, as a service's settings would.

use std::process::Command;

use crate::inside::Inside;

/// Runs a tool of the host on every thread of this very process: a child has what the thread has that starts it.
fn on_ourselves(tool: &str, arguments: &[&str]) {
    for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = thread.file_name();
        let tid = name.to_str().unwrap();
        let arguments = arguments.iter().map(|argument| if *argument == "TID" { tid } else { argument });
        let said = Command::new(tool).args(arguments).output().expect("the tool is there");
        assert!(said.status.success(), "{tool}: {}", String::from_utf8_lossy(&said.stderr));
    }
}

#[tokio::test]
async fn the_servers_own_better_priority() {
    on_ourselves("renice", &["-n", "-7", "-p", "TID"]);
    assert_eq!(crate::attacks::on_host("nice").ok(), "-7", "what we start has it");
    let inside = Inside::new().await;
    let nice = inside.user("nice").await.ok();
    assert!(nice.parse::<i32>().unwrap() >= 0, "{nice}");
    assert!(inside.root("ps -o ni= -p 1").await.ok().trim().parse::<i32>().unwrap() >= 0);
    inside.end().await;
}

#[tokio::test]
async fn the_servers_own_real_time() {
    on_ourselves("chrt", &["-r", "-p", "1", "TID"]);
    assert!(crate::attacks::on_host("chrt -p $$").ok().contains("SCHED_RR"), "what we start has it");
    let inside = Inside::new().await;
    let said = inside.user("chrt -p $$").await.ok();
    assert!(said.contains("SCHED_OTHER"), "{said}");
    inside.end().await;
}

#[tokio::test]
async fn signals_that_the_server_was_started_with_as_ignored() {
    const AGAIN: &str = "CABANA_TEST_IGNORES";
    const USR2: u64 = 1 << 11;
    let ignored = |status: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask").trim();
        u64::from_str_radix(mask, 16).unwrap()
    };
    if std::env::var_os(AGAIN).is_none() {
        // Only who starts a process, or the process itself by what is unsafe in Rust, can have it ignore a signal.
        let said = Command::new("sh")
            .args(["-c", "trap '' USR2; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "fresh::inherited::signals_that_the_server_was_started_with_as_ignored"])
            .env(AGAIN, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let seen = Command::new("cat").arg("/proc/self/status").output().unwrap();
    assert_ne!(ignored(&String::from_utf8_lossy(&seen.stdout)) & USR2, 0, "what we start ignores it");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let status =
            cabana_sandbox::ExecSpec::argv(["cat", "/proc/self/status", "/proc/1/status"], "/".parse().unwrap());
        let said = inside.command(user, status).await.ok();
        let masks = said.lines().filter(|line| line.starts_with("SigIgn:")).map(ignored).collect::<Vec<_>>();
        assert_eq!(masks, [0, 0], "as {user}, of the command and of init");
    }
    inside.end().await;
}

#[tokio::test]
async fn a_directory_that_the_server_left_open() {
    use std::os::fd::AsRawFd;
    let dir = std::fs::File::open("/").unwrap();
    // Not closed by an exec, as of a library that forgot it.
    rustix::io::fcntl_setfd(&dir, rustix::io::FdFlags::empty()).unwrap();
    let seen = Command::new("ls").arg(format!("/proc/self/fd/{}/", dir.as_raw_fd())).output().unwrap();
    assert!(seen.status.success(), "what we start has it");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let script = "for fd in /proc/[0-9]*/fd/*; do readlink $fd; done 2>/dev/null | grep -vE '^(pipe:|/proc/|/dev/null|/null)'; true";
        let said = inside.command(user, cabana_sandbox::ExecSpec::shell(script, "/".parse().unwrap())).await.ok();
        assert_eq!(said, "", "as {user}");
    }
    inside.end().await;
}
