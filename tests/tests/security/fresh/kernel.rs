//! What the kernel tells and gives to anybody who asks in the right words.

use cabana_sandbox::{ExecSpec, Provider, Status};

use crate::{
    attacks::{HALVES, HUGE, NSFS},
    inside::{Inside, path, unique},
};

#[tokio::test]
async fn locks_of_the_host_and_the_ranges_of_neighbours_in_proc() {
    let inside = Inside::new().await;
    let neighbour = Inside::of(inside.engine.clone(), &crate::inside::passing()).await;
    let outside = std::fs::read_to_string("/proc/locks").unwrap();
    assert!(outside.contains("FLOCK"), "each live range is a lock: {outside}");
    for user in ["root", "user"] {
        let seen = inside.command(user, ExecSpec::argv(["cat", "/proc/locks"], path("/"))).await.ok();
        assert_eq!(seen, "", "as {user}");
    }
    neighbour.engine.destroy(neighbour.sandbox.id()).await.unwrap();
    inside.end().await;
}

#[tokio::test]
async fn the_hosts_pressure_and_a_watch_on_it() {
    const WATCH: &str = "exec 3<>/proc/pressure/cpu && echo 'some 1000000 2000000' >&3";
    let control = std::process::Command::new("sh").args(["-c", WATCH]).status().unwrap();
    assert!(control.success(), "it can be watched where nothing stops it");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        for way in [WATCH, "cat /proc/pressure/*"] {
            inside.command(user, ExecSpec::shell(way, path("/"))).await.refused();
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn what_the_host_was_started_with() {
    assert!(!std::fs::read("/proc/cmdline").unwrap().is_empty());
    let inside = Inside::new().await;
    assert_eq!(inside.root("cat /proc/cmdline").await.ok(), "");
    assert!(inside.read("root", "/proc/cmdline").await.is_none(), "the file interface is closed to it");
    inside.end().await;
}

#[tokio::test]
async fn arguments_with_something_in_the_half_that_the_kernel_does_not_read() {
    HALVES.run_on_host(&[]).report().none_refused(&["EPERM"]);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &HALVES, &[]).await.report().all_refused(&["EPERM"]);
    }
    inside.end().await;
}

#[tokio::test]
async fn namespaces_before_and_after_ones_own() {
    let control = NSFS.run_on_host(&[]).report();
    control.none_refused(&["EPERM", "EACCES"]);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let own = inside.attack(user, &NSFS, &[]).await.report();
        for which in [11, 12] {
            assert_eq!(own.of(&format!("another mount namespace {which}")), "EPERM", "as {user}");
        }
        assert_eq!(own.of("a namespace of the process 3"), "done", "one's own, as {user}");
        inside.attack(user, &NSFS, &["1", "only"]).await.report().all_refused(&["EPERM", "EACCES"]);
    }
    inside.end().await;
}

/// Whether the host has set any aside or not: nobody inside gets as far as asking.
#[tokio::test]
async fn huge_pages_that_the_host_keeps_for_others() {
    HUGE.run_on_host(&[]).report().none_refused(&["EPERM"]);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &HUGE, &[]).await.report().all_refused(&["EPERM"]);
    }
    inside.end().await;
}

/// Without a way to see it, a secret that init has in its registers is as good as one in its memory.
#[tokio::test]
async fn registers_and_stacks_of_process_1() {
    let inside = Inside::new().await;
    let own = inside.root("cat /proc/self/syscall && cat /proc/self/wchan && cat /proc/self/auxv | wc -c").await.ok();
    assert!(!own.is_empty(), "one's own can be read");
    for file in ["syscall", "stack", "auxv", "personality", "environ", "smaps_rollup", "timers", "map_files/", "ns/mnt"]
    {
        for user in ["root", "user"] {
            let script = format!("ls -L /proc/1/{file} > /dev/null && cat /proc/1/{file}");
            inside.command(user, ExecSpec::shell(&script, path("/"))).await.refused();
        }
    }
    inside.end().await;
}

/// The kernel's own message queues are files of a file system that is mounted nowhere.
#[tokio::test]
async fn a_notice_of_a_queue_to_a_process_of_the_host() {
    let inside = Inside::new().await;
    let name = unique("/queue");
    let script = format!(
        "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
queue = libc.mq_open(b'{name}', os.O_CREAT | os.O_RDWR, 0o600, None)
assert queue >= 0
class Owner(ctypes.Structure): _fields_ = [('type', ctypes.c_int), ('pid', ctypes.c_int)]
came = {{}}
for pid in 1, {host}, -1, os.getpid():
    came[pid] = libc.fcntl(queue, 15, ctypes.byref(Owner(1, pid))) == 0 # F_SETOWN_EX
libc.mq_unlink(b'{name}')
print(came[{host}], came[-1], came[os.getpid()])",
        host = std::process::id(),
    );
    let control = crate::attacks::on_host(&format!("python3 - <<'EOF'\n{script}\nEOF")).ok();
    assert_eq!(control, "True False True", "who shares its namespace is found");
    let spec = ExecSpec::argv(["python3", "-c", &script], path("/"));
    assert_eq!(inside.command("user", spec).await.ok(), "False False True", "only processes of the sandbox are found");
    inside.end().await;
}

/// Where core dumps are piped to a program of the host, the kernel starts it as the host's root for a crash inside, whatever
/// the limit is, unless that is exactly one byte (the ground of CVE-2025-4598 and CVE-2025-5054).
#[tokio::test]
async fn raising_or_lowering_the_limit_that_keeps_core_dumps_from_the_hosts_program() {
    const CHANGE: &str = "import resource, subprocess, ctypes, os
def limit(): return [line.split()[4:6] for line in open('/proc/self/limits') if 'core' in line][0]
for most in [(0, 0), (resource.RLIM_INFINITY, resource.RLIM_INFINITY), (1 << 20, 1 << 20), (0, 1)]:
    try: resource.setrlimit(resource.RLIMIT_CORE, most)
    except (OSError, ValueError): pass
    print(*limit())
both = (ctypes.c_uint64 * 2)(0, 0)
libc = ctypes.CDLL(None)
libc.prlimit64(0, 4, both, None); libc.syscall(160, 4, both); libc.prlimit(os.getpid(), 4, both, None)
print(*limit(), libc.prlimit(0, 4, both, None))
print(*[line.split()[4:6] for line in subprocess.check_output(['cat', '/proc/self/limits'], text=True).splitlines() if 'core' in line][0])";
    // The control: where nothing holds it, it is what was asked for last.
    let host = std::process::Command::new("python3").args(["-c", CHANGE]).output().unwrap();
    let host = String::from_utf8_lossy(&host.stdout).into_owned();
    assert!(host.lines().next() == Some("0 0") && !host.contains("\n1 1\n"), "{host}");
    for inside in [Inside::new().await, Inside::without_cgroups().await] {
        for user in ["root", "user"] {
            let spec = ExecSpec::argv(["/usr/bin/python3", "-c", CHANGE], path("/"));
            let said = inside.command(user, spec).await.ok();
            assert_eq!(said, "1 1\n1 1\n1 1\n1 1\n1 1 0\n1 1", "as {user}: held, and answered as done");
        }
        // A crash is told as one, without a core.
        let ran = inside.user("kill -SEGV $$").await;
        assert_eq!(ran.status, Status::Signal(11));
        inside.end().await;
    }
}
