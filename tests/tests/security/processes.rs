//! Processes of the sandbox against the server's view of them.

use cabana_sandbox::{ExecSpec, Status};

use crate::{
    attacks::{IDS, PRIORITY, on_host},
    inside::{Inside, path, soon, unique, until},
};

#[tokio::test]
async fn leaving_the_commands_tree_to_live_on_after_its_end() {
    use cabana_sandbox::{Enforced, Provider};
    let inside = Inside::new().await;
    assert_eq!(inside.engine.capabilities().kill_tree, Enforced::ByKernel, "with control groups");
    let daemon = "setsid sh -c 'trap \"\" TERM HUP INT; (setsid sh -c \"exec sleep 31337\" &) ; sleep 31337' >/dev/null 2>&1 & sleep 31337";
    // A command that ends by itself leaves it behind.
    let counts = "ps -e -o args= | grep -c '^sleep 3133'";
    inside.user(&daemon.replace("31337", "31338").replace("& sleep 31338", "&")).await.ok();
    until("the daemon is there", async || inside.root(counts).await.out.trim() == "2").await;
    inside.root("pkill -KILL -x sleep").await.ok();
    let mut spec = ExecSpec::shell(daemon, path("/"));
    spec.timeout = Some(std::time::Duration::from_millis(500));
    let outcome = cabana_sandbox::run(&*inside.sandbox, spec, 1024).await.unwrap();
    assert_eq!(outcome.exit.status, Status::TimedOut);
    until("nothing of it lives", async || inside.root("ps -e -o args | grep -c '[3]1337'").await.out.trim() == "0")
        .await;
    inside.end().await;
}

#[tokio::test]
async fn moving_itself_into_another_control_group() {
    let inside = Inside::new().await;
    let script = "find / -name cgroup.procs -not -path '/proc/*' 2>/dev/null; ls -d /sys/fs/cgroup 2>/dev/null; true";
    let control = "g=$(findmnt -n -o TARGET -t cgroup2 | head -1)/$0; mkdir $g && echo $$ > $g/cgroup.procs && grep -c $0 /proc/$$/cgroup; \
        echo $$ > ${g%/*}/cgroup.procs; rmdir $g";
    let moved = std::process::Command::new("bash").args(["-c", control, &unique("cabana-moved")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&moved.stdout).trim(), "1", "who has the file moves: {moved:?}");
    assert_eq!(inside.root(script).await.ok(), "");
    inside.end().await;
}

#[tokio::test]
async fn a_program_that_runs_from_memory() {
    // Allowed, and behind the same walls as any other.
    let inside = Inside::new().await;
    let script = "import os
fd = os.memfd_create('x', 0)
os.write(fd, open('/usr/bin/unshare', 'rb').read())
os.execve('/proc/self/fd/%d' % fd, ['unshare', '-r', 'true'], {})";
    on_host(&format!("python3 - <<'EOF'\n{script}\nEOF")).ok();
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"));
    let said = inside.command("root", spec).await.refused();
    assert!(said.contains("Operation not permitted"), "{said}");
    inside.end().await;
}

#[tokio::test]
async fn credentials_of_somebody_else_over_a_socket() {
    let inside = Inside::new().await;
    let script = "import socket, struct, os, errno
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
for pid, uid in [(os.getpid(), os.getuid()), (1, os.getuid()), (os.getpid(), 65536), (os.getpid(), 0)]:
    try:
        a.sendmsg([b'x'], [(socket.SOL_SOCKET, 2, struct.pack('3i', pid, uid, os.getgid()))])
        print('done')
    except OSError as e: print(errno.errorcode[e.errno])";
    let host = on_host(&format!("python3 - <<'EOF'\n{script}\nEOF")).ok();
    assert_eq!(host, "done\ndone\ndone\ndone", "root of the host says whatever it wants");
    let spec = || ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"));
    assert_eq!(inside.command("user", spec()).await.ok(), "done\nEPERM\nEINVAL\nEPERM");
    assert_eq!(inside.command("root", spec()).await.ok(), "done\nEPERM\nEINVAL\ndone");
    inside.end().await;
}

#[tokio::test]
async fn ids_outside_of_the_sandboxs_range() {
    let inside = Inside::new().await;
    let script = "import os, errno
for act in [lambda: os.setuid(65536), lambda: os.setgid(0x70000000), lambda: os.setgroups([100000]),
            lambda: os.chown('/tmp/mine', 65536, -1), lambda: os.chown('/tmp/mine', 0x7fffffff, 0)]:
    try: act(); print('done')
    except OSError as e: print(errno.errorcode[e.errno])";
    let file = std::env::temp_dir().join(unique("ids"));
    IDS.run_on_host(&[file.to_str().unwrap()]).report().all_done();
    inside.root("touch /tmp/mine && chown 65535:65535 /tmp/mine").await.ok();
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"));
    assert_eq!(inside.command("root", spec).await.ok(), "EINVAL\nEINVAL\nEINVAL\nEINVAL\nEINVAL");
    inside.end().await;
}

#[tokio::test]
async fn output_of_a_command_that_never_lets_go_of_its_pipe() {
    let inside = Inside::new().await;
    // The pipe itself is opened again, both ways, by something that lives on.
    let script = "(exec 9<>/proc/self/fd/1; setsid sleep 300 &) 2>/dev/null; echo said; exit 5";
    let brief = script.replace("300", "3");
    let held = on_host(&format!("timeout 0.3 bash -c '({brief}) | cat'"));
    assert_eq!(held.status, Status::Code(124), "who reads to the end waits for it: {held:?}");
    let ran = soon("the exit", inside.user(script)).await;
    assert_eq!((ran.status, ran.out.as_str()), (Status::Code(5), "said\n"));
    inside.end().await;
}

#[tokio::test]
async fn outliving_the_end_by_being_stopped_or_traced() {
    let inside = Inside::new().await;
    let script = "sh -c 'kill -STOP $$' & strace -qq -f -o /dev/null sleep 31337 & (trap '' TERM; sleep 31337) & \
        python3 -c 'import os, ctypes; ctypes.CDLL(None).vfork() or os.execvp(\"sleep\", [\"sleep\", \"31337\"])' & \
        wait";
    let process = inside.sandbox.exec(ExecSpec::shell(script, path("/"))).await.unwrap();
    until("one stands still, and the others sleep", async || {
        let states = inside.root("ps -e -o stat=,args=").await.ok();
        let sleep = states.lines().filter(|line| line.ends_with(" sleep 31337") && !line.contains("strace")).count();
        sleep == 3 && states.lines().any(|line| line.starts_with('T'))
    })
    .await;
    soon("the end of the sandbox", inside.end()).await;
    let (_, status) = soon("the end of the command", crate::inside::rest(process)).await;
    assert_eq!(status, Status::Signal(9));
}

/// Whoever weighs little is kept from the processor by others inside, also while it holds a lock that the whole machine needs.
#[tokio::test]
async fn weighing_less_than_others_inside() {
    const SCRIPT: &str = "import ctypes, os, platform
libc = ctypes.CDLL(None)
here = 0 if platform.machine() == 'x86_64' else 1
call = lambda numbers, *arguments: libc.syscall(numbers[here], *arguments)
attributes = lambda policy, nice: (ctypes.c_uint64 * 6)(48 | policy << 32, 0, nice, 0, 0, 0)
def weighs():
    disk = call((252, 31), 1, 0)
    return os.sched_getscheduler(0) in (0, 1, 2) and os.getpriority(os.PRIO_PROCESS, 0) <= 0 and disk >> 13 != 3
ways = {
    'idle': lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
    'batch': lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    'idle, and not what it forks': lambda: os.sched_setscheduler(0, os.SCHED_IDLE | 1 << 30, os.sched_param(0)),
    'attributes': lambda: call((314, 274), 0, attributes(5, 0), 0),
    'nice by attributes': lambda: call((314, 274), 0, attributes(0, 19), 0),
    'nice': lambda: os.nice(19),
    'very nice': lambda: os.setpriority(os.PRIO_PROCESS, 0, 2**31 - 1),
    'a nice group': lambda: os.setpriority(os.PRIO_PGRP, 0, 5),
    'the disk': lambda: call((251, 30), 1, 0, 3 << 13),
}
for name, way in ways.items():
    if not (child := os.fork()):
        try: way()
        except OSError: pass
        os._exit(0 if weighs() else 1)
    print(name, 'done' if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) else 'held')";
    let control = on_host(&format!("setsid python3 - <<'END'\n{SCRIPT}\nEND"));
    control.report().all_done();
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", SCRIPT], path("/"));
        inside.command(user, spec).await.report().all_refused(&["held"]);
    }
    inside.end().await;
}

#[tokio::test]
async fn priority_over_the_host() {
    let inside = Inside::new().await;
    let script = "import os, errno, ctypes
libc = ctypes.CDLL(None, use_errno=True)
def ioprio():
    if libc.syscall(251 if os.uname().machine == 'x86_64' else 30, 1, 0, 1 << 13): raise OSError(ctypes.get_errno(), '')
def deadline():
    attr = (ctypes.c_uint64 * 6)(48 | 6 << 32, 0, 0, 10**6, 10**7, 10**7)
    if libc.syscall(314 if os.uname().machine == 'x86_64' else 274, 0, attr, 0): raise OSError(ctypes.get_errno(), '')
for act in [lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
            lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(99)), deadline, lambda: os.nice(-5), ioprio]:
    try: act(); print('done')
    except OSError as e: print(errno.errorcode[e.errno])";
    PRIORITY.run_on_host(&[]).report().all_done();
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"));
        let said = inside.command(user, spec).await.ok();
        let answers: Vec<&str> = said.lines().collect();
        let refused = |answer: &&str| ["EPERM", "EACCES"].contains(answer);
        assert!(answers.len() == 5 && answers[2] == "ENOSYS", "{said}");
        assert!(answers.iter().filter(|answer| refused(answer)).count() == 4, "{said}");
    }
    inside.end().await;
}
