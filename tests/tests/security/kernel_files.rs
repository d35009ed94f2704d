//! Settings and secrets of the kernel, as files.

use std::fs;

use cabana_sandbox::{ExecSpec, SandboxPath};
use futures_util::TryStreamExt;

use crate::{
    attacks::{IPC, in_own, on_host},
    inside::{Inside, path},
};

/// Each is opened for writing, and nothing is written.
async fn cannot_be_opened_to_write(files: &[&str]) {
    let inside = Inside::new().await;
    for file in files {
        for user in ["root", "user"] {
            // `<>` and `>>` neither truncate nor make anything.
            let script = format!("[ ! -e {file} ] || [ -c {file} ] || (exec 9>>{file}) 2>/dev/null && exit 9; exit 1");
            let ran = inside.command(user, ExecSpec::shell(script, SandboxPath::root())).await;
            let absent = inside.root(&format!("[ ! -e {file} ] || [ -c {file} ]")).await.status;
            if absent != cabana_sandbox::Status::Code(0) {
                assert_eq!(ran.status, cabana_sandbox::Status::Code(1), "{file} as {user}");
            }
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn settings_of_the_kernel_in_proc_sys() {
    let files = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hotplug",
        "/proc/sys/kernel/sysrq",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/sys/kernel/ns_last_pid",
        "/proc/sys/kernel/shmmax",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/file-max",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/user/max_user_namespaces",
    ];
    assert!(files.iter().any(|file| fs::OpenOptions::new().append(true).open(file).is_ok()), "the host can");
    cannot_be_opened_to_write(&files).await;
}

#[tokio::test]
async fn handles_of_the_kernel_in_proc() {
    let files = [
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/proc/irq/0/smp_affinity",
        "/proc/bus/pci/00/00.0",
        "/proc/mtrr",
        "/proc/acpi/wakeup",
        "/proc/scsi/scsi",
        "/proc/timer_stats",
        "/proc/latency_stats",
        "/proc/kcore",
        "/proc/version",
    ];
    assert!(files.iter().any(|file| fs::OpenOptions::new().append(true).open(file).is_ok()), "the host can");
    cannot_be_opened_to_write(&files).await;
}

#[tokio::test]
async fn memory_and_addresses_of_the_kernel() {
    let control = "head -c 64 /proc/slabinfo && head -c 64 /proc/vmallocinfo && head -c 64 /proc/timer_list";
    assert!(on_host(control).ok().contains("slabinfo"), "the host's root reads them");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        for file in
            ["kcore", "kmsg", "kpagecount", "kpageflags", "slabinfo", "vmallocinfo", "keys", "key-users", "timer_list"]
        {
            let script = format!("head -c 64 /proc/{file} 2>/dev/null | grep -qa .");
            let ran = inside.command(user, ExecSpec::shell(script, SandboxPath::root())).await;
            assert_eq!(ran.status, cabana_sandbox::Status::Code(1), "{file} as {user}");
        }
        let script = "[ ! -r /proc/kallsyms ] || grep -v -m1 '^0000000000000000 ' /proc/kallsyms";
        let said = inside.command(user, ExecSpec::shell(script, SandboxPath::root())).await.out;
        assert_eq!(said, "", "addresses as {user}");
    }
    inside.end().await;
}

#[tokio::test]
async fn hardware_and_disks_of_the_host() {
    const LOOK: &str = "for f in bus diskstats fs interrupts iomem ioports irq mtrr partitions; do \
        find /proc/$f -type f 2>/dev/null | head -c 4096 | while read -r file; do head -c 64 $file 2>/dev/null; done; done | wc -c";
    let told = on_host(LOOK).ok();
    assert!(told.parse::<usize>().unwrap() > 0, "the host's root reads some of it: {told}");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let told = inside.command(user, ExecSpec::shell(LOOK, SandboxPath::root())).await.ok();
        assert_eq!(told, "0", "as {user}");
    }
    // What programs ask about the machine stays.
    inside
        .user("grep -q processor /proc/cpuinfo && grep -q MemTotal /proc/meminfo && grep -q cpu /proc/stat")
        .await
        .ok();
    inside.end().await;
}

#[tokio::test]
async fn sys_debugfs_and_control_groups_as_file_systems() {
    let inside = Inside::new().await;
    let there = "for f in /sys/kernel /sys/fs/cgroup/cgroup.procs /sys/kernel/uevent_helper /sys/kernel/debug/tracing \
        /sys/firmware /sys/module /dev/mem /dev/kmsg /dev/sda /dev/vda /dev/fuse /dev/kvm /dev/net/tun /dev/console /dev/loop0; do
        [ -e $f ] && echo $f; done; true";
    assert_eq!(inside.root(there).await.ok(), "");
    assert!(on_host(there).ok().contains("/sys/kernel"), "the host has some of them");
    let own = "mkdir -p /tmp/m && for kind in cgroup2 sysfs proc mqueue; do mount -t $kind none /tmp/m && umount /tmp/m || exit 1; done";
    in_own(&["--mount", "--propagation", "private"], &own.replace("/tmp/m", "/mnt")).ok();
    for mount in [
        "cgroup2",
        "cgroup",
        "sysfs",
        "proc",
        "debugfs",
        "tracefs",
        "securityfs",
        "bpf",
        "overlay",
        "devtmpfs",
        "mqueue",
    ] {
        let said = inside.root(&format!("mkdir -p /tmp/m && mount -t {mount} none /tmp/m")).await.refused();
        assert!(said.contains("permission denied") || said.contains("Operation not permitted"), "{mount}: {said}");
    }
    // As with CVE-2022-0492: no group of v1 whose end would start a program of the host.
    inside.root("find / -xdev -name release_agent 2>/dev/null | grep .").await.refused();
    inside.end().await;
}

#[tokio::test]
async fn taking_a_mask_off_a_kernel_file() {
    let masked =
        "mount --bind /dev/null /proc/cmdline && [ ! -s /proc/cmdline ] && umount /proc/cmdline && cat /proc/cmdline";
    assert!(!in_own(&["--mount", "--propagation", "private"], masked).ok().is_empty(), "who may unmount takes it off");
    let inside = Inside::new().await;
    for mask in ["/proc/kcore", "/proc/sys", "/proc/keys", "/proc", "/dev", "/usr", "/"] {
        for way in ["umount", "umount -l", "umount -f", "mount -o remount,rw", "mount --move /tmp", "mount --bind /tmp"]
        {
            inside.root(&format!("{way} {mask}")).await.refused();
        }
    }
    // Nor by what a mount cannot hide: renaming or removing what it lies on.
    for way in ["mv /proc /p", "rm -r /proc/sys", "mv /dev /d", "rmdir /dev/pts", "mv /usr /u", "ln -s /tmp /proc/x"] {
        inside.root(&format!("{way} 2>&1")).await.refused();
    }
    inside.end().await;
}

/// Files of the kernel that answer with the namespaces of who reads: for a client of the server, that is the host's.
#[tokio::test]
async fn the_hosts_name_through_the_servers_hands() {
    let inside = Inside::new().await;
    let own = inside.user("cat /proc/sys/kernel/hostname").await.ok();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_ne!(own, host.trim(), "the sandbox has a name of its own");
    inside.user("ln -s /proc/sys/kernel/hostname /home/user/name").await.ok();
    for user in ["root", "user"] {
        for way in ["/proc/sys/kernel/hostname", "/home/user/name"] {
            let read = inside.read(user, way).await.unwrap_or_default();
            assert!(!String::from_utf8_lossy(&read).contains(host.trim()), "{way} as {user} tells the host's name");
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn the_hosts_shared_memory_through_the_servers_hands() {
    let key = 0x0cab_0000 | (std::process::id() & 0xffff) as i32;
    let _of_the_host = OnHost::new(key);
    let host = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    assert!(host.contains(&key.to_string()), "the host shows it: {host}");
    let inside = Inside::new().await;
    assert!(!inside.root("cat /proc/sysvipc/*").await.ok().contains(&key.to_string()));
    for file in ["shm", "msg", "sem"] {
        for user in ["root", "user"] {
            let read = inside.read(user, &format!("/proc/sysvipc/{file}")).await.unwrap_or_default();
            assert!(!String::from_utf8_lossy(&read).contains(&key.to_string()), "{file} as {user} shows the host's");
        }
    }
    inside.end().await;
}

/// Objects of the host's own, gone with the test.
struct OnHost(i32);

impl OnHost {
    fn new(key: i32) -> Self {
        assert_eq!(IPC.run_on_host(&["make", &key.to_string()]).report().of("shared memory"), "done");
        Self(key)
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        IPC.run_on_host(&["remove", &self.0.to_string()]);
    }
}

#[tokio::test]
async fn the_hosts_network_devices_through_the_servers_hands() {
    let inside = Inside::new().await;
    let conf = "/proc/sys/net/ipv4/conf";
    let own = inside.root(&format!("ls {conf}")).await.ok();
    let host: Vec<String> =
        fs::read_dir(conf).unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let theirs: Vec<&String> = host.iter().filter(|name| !own.split_whitespace().any(|own| own == **name)).collect();
    assert!(!theirs.is_empty(), "the host has devices that the sandbox has not: {host:?}");
    let Ok(listing) = inside.files("user").list(&path(conf)).await else { return inside.end().await };
    let batches: Vec<_> = listing.try_collect().await.unwrap_or_default();
    let seen: Vec<String> =
        batches.concat().iter().map(|info| String::from_utf8_lossy(info.path.name()).into_owned()).collect();
    assert!(theirs.iter().all(|name| !seen.contains(name)), "of the host: {theirs:?}; seen: {seen:?}");
    inside.end().await;
}

#[tokio::test]
async fn files_in_closed_directories_of_the_kernel_through_the_servers_hands() {
    let inside = Inside::new().await;
    // The directory is closed to all but the host's root, what lies in it is open: the way in is the wall.
    let names: Vec<String> = fs::read_dir("/proc/tty/driver")
        .map(|dir| dir.flatten().map(|entry| entry.path().to_str().unwrap().to_owned()).collect())
        .unwrap_or_default();
    assert!(names.iter().any(|name| fs::read(name).is_ok()), "the host's root reads them: {names:?}");
    for name in names {
        inside.root(&format!("cat {name}")).await.refused();
        let read = inside.read("root", &name).await.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(read, None, "{name}");
    }
    inside.end().await;
}

#[tokio::test]
async fn descriptors_of_process_1_through_the_servers_hands() {
    let inside = Inside::new().await;
    inside.root("stat /proc/self/fd/0").await.ok(); // of its own it knows
    assert!(fs::metadata("/proc/self/fd/0").is_ok(), "and so does the server");
    for number in 0..32 {
        let name = format!("/proc/1/fd/{number}");
        inside.root(&format!("stat {name}")).await.refused();
        let found = inside.files("root").stat(&path(&name)).await.map(|info| info.mode);
        assert!(found.is_err(), "{name} tells that it is open, and how: {found:?}");
    }
    inside.end().await;
}

#[tokio::test]
async fn searching_the_kernels_files_through_the_servers_hands() {
    use cabana_sandbox::{Hit, Search};
    let inside = Inside::new().await;
    inside.root("head -c 1 /proc/slabinfo").await.refused();
    assert!(!on_host("head -c 100 /proc/slabinfo").ok().is_empty(), "there is something to find");
    inside.user("mkdir /home/user/t && echo found > /home/user/t/slabinfo").await.ok();
    let what = |root: &str| Search {
        root: path(root),
        globs: vec!["slabinfo".into(), "vmallocinfo".into(), "pagetypeinfo".into(), "kpagecount".into()],
        grep: Some(".".into()),
        ignore_files: false,
        max_hits: 10,
        budget: std::time::Duration::from_secs(5),
    };
    let lines = async |root: &str| {
        let hits = match inside.files("root").search(what(root)).await {
            Ok(hits) => hits.try_collect::<Vec<_>>().await.unwrap_or_default().concat(),
            Err(_) => Vec::new(),
        };
        hits.into_iter().filter(|hit| matches!(hit, Hit::Line { .. })).collect::<Vec<_>>()
    };
    assert_eq!(lines("/home/user/t").await.len(), 1, "a file of that name elsewhere is found");
    let found = lines("/proc").await;
    assert!(found.is_empty(), "lines of files that root inside may not read: {found:?}");
    inside.end().await;
}
