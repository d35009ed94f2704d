//! Settings and secrets of the kernel in `/proc`, by other names than those that are masked; and what a crash leaves.

use std::{fs, process::Command};

use super::stage::{python, shell};
use crate::{attacks::ALIASES, inside::Inside};

/// CVE-2025-31133 and CVE-2022-0811 ended in `core_pattern`, by whatever way.
#[tokio::test]
async fn sysctls_are_read_only_through_every_alias() {
    let files =
        ["write", "sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/vm/overcommit_memory", "sys/fs/suid_dumpable"];
    let host = ALIASES.run_on_host(&files).report();
    assert_eq!((host.of("path sys/kernel/core_pattern"), host.of("jail sys/kernel/core_pattern")), ("done", "done"));
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let report = inside.attack(user, &ALIASES, &files).await.report();
        assert_eq!(report.of("own root sys/kernel/core_pattern"), report.of("path sys/kernel/core_pattern"));
        report.all_refused(&["EROFS", "EACCES", "EPERM", "ENOENT"]);
    }
    inside.end().await;
}

/// CVE-2018-10892, and masks that a second way goes around.
#[tokio::test]
async fn masked_files_stay_masked_through_every_alias() {
    let masked = [
        "acpi",
        "asound",
        "kcore",
        "keys",
        "key-users",
        "latency_stats",
        "scsi",
        "sysrq-trigger",
        "timer_list",
        "cmdline",
    ];
    let words: Vec<&str> = ["read"].into_iter().chain(masked).collect();
    let host = ALIASES.run_on_host(&words).report();
    assert_eq!((host.of("path timer_list"), host.of("jail cmdline")), ("done", "done"), "the host has them");
    let inside = Inside::new().await;
    assert_eq!(inside.attack("root", &ALIASES, &["read", "version"]).await.report().of("jail version"), "done");
    for user in ["root", "user"] {
        let report = inside.attack(user, &ALIASES, &words).await.report();
        report.all_refused(&["EMPTY", "EACCES", "EPERM", "ENOENT", "EIO"]);
    }
    inside.end().await;
}

/// Written by the kernel, with the rights of the host, to where the host's setting says.
#[tokio::test]
async fn crash_writes_no_core_file() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if !pattern.contains(['|', '/', '@']) {
        let dir = tempfile::tempdir().unwrap();
        let crash = "ulimit -c unlimited; kill -SEGV $$";
        Command::new("sh").args(["-c", crash]).current_dir(dir.path()).output().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a crash of the host's has a core file");
    }
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let crash = "import os, resource
for limit in [(resource.RLIM_INFINITY, resource.RLIM_INFINITY), (1 << 20, 1 << 20), (2, 2)]:
    try: resource.setrlimit(resource.RLIMIT_CORE, limit)
    except (ValueError, OSError): pass
os.chdir('/tmp')
for number in [3, 4, 5, 6, 8, 11, 31]:
    if os.fork() == 0: os.kill(os.getpid(), number)
    print(os.WCOREDUMP(os.wait()[1]))";
        let said = inside.command(user, python(crash)).await.ok();
        assert_eq!(said, ["False"; 7].join("\n"), "as {user}");
        let found = inside
            .command(user, shell("find / -xdev -name 'core*' -newer /proc/1/stat -size +0 2>/dev/null; ls /tmp"))
            .await;
        assert_eq!(found.out, "", "as {user}");
    }
    inside.end().await;
}
