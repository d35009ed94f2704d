//! How a command is started: as whom, behind which walls, and what of process 1 it can reach.

use std::collections::BTreeSet;

use cabana_sandbox::{Base, Code, ExecSpec, Found, Provider, Sandbox, SandboxPath, SandboxSpec, Stdio, TermSize, run};

use super::stage::{python, shell};
use crate::{
    attacks::PIDFD,
    inside::{Inside, named, path},
};

const TERMINAL: Stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });

async fn refusal(inside: &Inside, user: &str, spec: ExecSpec) -> Option<Code> {
    let spec = ExecSpec { user: Some(named(user)), ..spec };
    run(&*inside.sandbox, spec, 100).await.err().map(|error| error.code())
}

/// CVE-2019-11503, CVE-2025-2713: the directory was entered with the rights of whoever starts the command.
#[tokio::test]
async fn cwd_is_entered_with_the_uid_of_the_command() {
    let inside = Inside::new().await;
    inside
        .root("mkdir -p -m 700 /srv/closed && mkdir -m 777 /srv/closed/open && ln -s /srv/closed/open /tmp/link")
        .await
        .ok();
    for dir in ["/root", "/srv/closed", "/srv/closed/open", "/tmp/link"] {
        for stdio in [Stdio::Output, TERMINAL] {
            let spec = || ExecSpec { stdio, ..ExecSpec::shell("pwd", path(dir)) };
            assert_eq!(refusal(&inside, "root", spec()).await, None, "root enters {dir}");
            assert_eq!(refusal(&inside, "user", spec()).await, Some(Code::WorkdirNotFound), "{dir}");
        }
    }
    inside.end().await;
}

/// CVE-2025-2713: so was the program opened.
#[tokio::test]
async fn program_is_opened_with_the_uid_of_the_command() {
    let inside = Inside::new().await;
    let make = "mkdir -m 700 /srv/closed && cp /usr/bin/id /srv/id && chmod 700 /srv/id && cp /usr/bin/id /srv/closed/id && \
        cp /usr/bin/id /srv/unset && chmod 666 /srv/unset && ln -s /srv/closed/id /tmp/link && \
        printf '#!/srv/id\\n' > /tmp/script && chmod 755 /tmp/script";
    inside.root(make).await.ok();
    let argv = |program: &str| ExecSpec::argv([program, "-u"], SandboxPath::root());
    for program in ["/srv/id", "/srv/closed/id", "/tmp/link", "/tmp/script"] {
        assert_eq!(refusal(&inside, "root", argv(program)).await, None, "root runs {program}");
    }
    for program in ["/srv/id", "/srv/closed/id", "/tmp/link", "/tmp/script", "/srv/unset"] {
        assert_eq!(refusal(&inside, "user", argv(program)).await, Some(Code::ProgramNotFound), "{program}");
    }
    let found = ExecSpec { env: [("PATH".into(), "/srv/closed:/srv".into())].into(), ..argv("id") };
    assert_eq!(refusal(&inside, "user", found).await, Some(Code::ProgramNotFound), "by PATH");
    inside.end().await;
}

const STATUS: &str = "grep -E '^(Uid|Gid|Groups|Cap...|NoNewPrivs|Seccomp|Seccomp_filters):' /proc/self/status";

/// The lines of its status that say what a command may do.
async fn walls(sandbox: &dyn Sandbox, user: &str, mut spec: ExecSpec) -> BTreeSet<String> {
    spec.user = Some(named(user));
    let ran = run(sandbox, spec, 1 << 16).await.unwrap();
    let text = String::from_utf8_lossy(&ran.stdout.head).replace('\r', "");
    assert!(text.contains("Seccomp:\t2") && text.contains("CapBnd"), "{text}");
    text.lines().map(str::to_owned).collect()
}

/// CVE-2022-29162, CVE-2025-27612, CVE-2023-2431: what is started later or in another way had more rights than the first.
#[tokio::test]
async fn every_exec_path_has_the_same_capabilities_and_filter() {
    let on_host = std::process::Command::new("sh").args(["-c", STATUS]).output().unwrap();
    assert!(!String::from_utf8_lossy(&on_host.stdout).contains("Seccomp:\t2"), "the host has no filter");
    let inside = Inside::with(SandboxSpec::new(Base::Host)).await;
    let (engine, id) = (inside.engine.clone(), inside.sandbox.id().clone());
    let ways = || {
        let argv = ExecSpec::argv(["/bin/sh", "-c", STATUS], SandboxPath::root());
        let typed = ExecSpec { stdio: Stdio::InputOutput, ..shell(STATUS) };
        let terminal = ExecSpec { stdio: TERMINAL, ..shell(STATUS) };
        let nested = shell(&format!("setsid --wait sh -c \"{STATUS}\""));
        [shell(STATUS), argv, typed, terminal, nested]
    };
    let mut sandbox = inside.sandbox.clone();
    for user in ["root", "user"] {
        let first = walls(&*sandbox, user, shell(STATUS)).await;
        for way in ways() {
            let stdio = way.stdio;
            assert_eq!(walls(&*sandbox, user, way).await, first, "{stdio:?} as {user}");
        }
        engine.pause(&id).await.unwrap();
        sandbox = engine.start(&id).await.unwrap();
        assert_eq!(walls(&*sandbox, user, shell(STATUS)).await, first, "after a pause, as {user}");
        engine.stop(&id).await.unwrap();
        sandbox = engine.start(&id).await.unwrap();
        assert_eq!(walls(&*sandbox, user, shell(STATUS)).await, first, "after a restart, as {user}");
        let Found::Running(attached) = engine.attach(&id).await.unwrap() else { panic!("it runs") };
        assert_eq!(walls(&*attached, user, shell(STATUS)).await, first, "after an attach, as {user}");
    }
    inside.end().await;
}

/// CVE-2019-12589: the filter of whoever joined later was read from a file that root inside had changed.
#[tokio::test]
async fn tampering_inside_does_not_weaken_later_commands() {
    let inside = Inside::new().await;
    let before =
        [walls(&*inside.sandbox, "root", shell(STATUS)).await, walls(&*inside.sandbox, "user", shell(STATUS)).await];
    let tampering = [
        "for f in environment security/limits.conf security/capability.conf profile bash.bashrc login.defs; do \
            mkdir -p /etc/security; printf 'PATH=/tmp\\n* hard core unlimited\\ncap_sys_admin user\\n' > /etc/$f; done",
        "rm -rf /run /var/run /var/lib /var/tmp /tmp/* /dev/shm/* 2>/dev/null; true",
        "chmod -R a+rwxs /etc /srv /home 2>/dev/null; chmod 644 /etc/passwd /etc/group; true",
        "echo 'user:x:1000:0::/:/bin/sh' > /tmp/line; kill -9 -1",
        "for f in /proc/1/* /proc/sys/kernel/*; do echo 0 > $f; done 2>/dev/null; true",
        "mkdir -p /seccomp /run/firejail /run/seccomp; for d in /seccomp /run/firejail /run/seccomp; do \
            echo allow > $d/filter; echo 0 > $d/seccomp.64; done",
    ];
    for way in tampering {
        let _ = inside.root(way).await;
        for (user, before) in ["root", "user"].iter().zip(&before) {
            assert_eq!(walls(&*inside.sandbox, user, shell(STATUS)).await, *before, "{way} as {user}");
        }
    }
    inside.end().await;
}

/// CVE-2016-8659: a privileged process that the guest may write to, by whatever the kernel has of it in `/proc`.
#[tokio::test]
async fn procfs_files_of_pid_1_cannot_be_written() {
    let inside = Inside::new().await;
    let script = "import os, subprocess, sys
child = subprocess.Popen(['sleep', '60'])
pid = 1 if sys.argv[1] == '1' else child.pid
for dir, dirs, files in os.walk('/proc/%d' % pid):
    dirs[:] = [d for d in dirs if d in ('attr', 'task') or d == str(pid)]
    for name in files:
        path = dir + '/' + name
        for content in [b'0', b'1', b'7', b'', b'deny']:
            try:
                file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                os.write(file, content); print(path.replace('/proc/%d' % pid, '')); break
            except OSError: pass
child.kill()";
    let of = |who: &str| ExecSpec::argv(["/usr/bin/python3", "-c", script, who], SandboxPath::root());
    let own = inside.command("root", of("own")).await.ok();
    for file in ["/oom_score_adj", "/coredump_filter", "/clear_refs"] {
        assert!(own.lines().any(|line| line == file), "{file} of a child can be written: {own}");
    }
    for user in ["root", "user"] {
        assert_eq!(inside.command(user, of("1")).await.ok(), "", "as {user}");
    }
    inside.still_works().await;
    inside.end().await;
}

/// The namespaces of process 1 by a pidfd, which asks for no path in `/proc`.
#[tokio::test]
async fn pidfd_ioctls_give_no_namespace_of_pid_1() {
    let inside = Inside::new().await;
    let own = inside.attack("root", &PIDFD, &["own"]).await.report();
    assert_eq!((own.of("mnt"), own.of("user"), own.of("net")), ("done", "done", "done"), "of a child they are given");
    for user in ["root", "user"] {
        inside.attack(user, &PIDFD, &["1"]).await.report().all_refused(&["EPERM", "EACCES"]);
    }
    inside.end().await;
}

/// Descriptors of process 1, and of a command of another user, by a pidfd.
#[tokio::test]
async fn pidfd_getfd_takes_nothing_from_another_user() {
    let inside = Inside::new().await;
    let script = "import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
pidfd = os.pidfd_open(int(sys.argv[1]) if sys.argv[1] != 'own' else os.getpid())
for number in range(16):
    got = libc.syscall(438, pidfd, number, 0)
    print(number, 'done' if got >= 0 else errno.errorcode[ctypes.get_errno()])";
    let of = |who: &str| ExecSpec::argv(["/usr/bin/python3", "-c", script, who], SandboxPath::root());
    assert_eq!(inside.command("user", of("own")).await.report().of("1"), "done");
    let mut held = python("import os, time; print(os.getpid(), flush=True); time.sleep(600)");
    held.user = Some(named("root"));
    let mut process = inside.sandbox.exec(held).await.unwrap();
    let event = futures_util::StreamExt::next(&mut process.events).await;
    let Some(Ok(cabana_sandbox::Event::Output(output))) = event else { panic!("it did not begin: {event:?}") };
    let pid = String::from_utf8_lossy(&output.bytes).trim().to_owned();
    inside.command("root", of(&pid)).await.report().none_refused(&["EPERM"]);
    for (user, who) in [("user", pid.as_str()), ("user", "1"), ("root", "1")] {
        inside.command(user, of(who)).await.report().all_refused(&["EPERM", "EACCES"]);
    }
    inside.end().await;
}
