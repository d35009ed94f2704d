//! Process 1 of the sandbox: it starts everything, and it is the server's one hand inside.

use std::time::Duration;

use cabana_sandbox::{ExecSpec, SandboxPath, Status};
use futures_util::future::join_all;
use rustix::fs::SealFlags;

use crate::{
    attacks::{FLOOD, GATE, PEER, PRLIMIT, SLAUGHTER},
    host_process::HostProcess,
    inside::{Inside, SOON, named, path, rest, soon},
    lease::Lease,
};

#[tokio::test]
async fn reading_writing_and_tracing_process_1() {
    let inside = Inside::new().await;
    // The same attacks on a child of the attacker's own succeed, but for what only the host may.
    let own = inside.attack("root", &PEER, &[]).await.report();
    for what in ["reading its memory", "opening mem to write", "opening exe", "taking its descriptor", "tracing it"] {
        assert_eq!(own.of(what), "done", "{what}");
    }
    for user in ["root", "user"] {
        inside.attack(user, &PEER, &["1"]).await.report().all_refused(&["EPERM", "EACCES"]);
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn overwriting_init_through_proc_1_exe() {
    let inside = Inside::new().await;
    // On a process of its own, what is not forbidden by its being run is done.
    let own =
        "cp /bin/sleep /tmp/own; /tmp/own 300 >/dev/null 2>&1 & p=$!; until grep -qx own /proc/$p/comm; do :; done";
    inside.root(&format!("{own}; chmod 777 /proc/$p/exe && cp /proc/$p/exe /tmp/copy && kill $p")).await.ok();
    for way in
        ["cat /bin/true > /proc/1/exe", "truncate -s 0 /proc/1/exe", "chmod 777 /proc/1/exe", "cp /proc/1/exe /tmp"]
    {
        inside.root(way).await.refused();
    }
    inside.still_works().await;
    inside.end().await;
}

/// As with CVE-2019-5736: a script whose interpreter is «the program that starts me» would make init start the host's own
/// program inside, with libraries of the attacker. Nobody inside may run it; where there is a single id, it is its owner's
/// to run, and a test of the matrix goes on from there.
#[tokio::test]
async fn overwriting_the_engine_by_a_script_that_starts_it() {
    let inside = Inside::new().await;
    let library = inside.bring(&GATE).await.remove(0);
    // In a program that is the sandbox's own, the library changes what it runs from.
    let own = inside.root(&format!("cp /bin/true /tmp/own && LD_PRELOAD={library} /tmp/own")).await.report();
    assert_eq!((own.of("changing its mode"), own.of("giving it away")), ("done", "done"));
    // A script of that program is started with the library in it.
    inside.root("printf '#!/tmp/own\\n' > /tmp/plain && printf '#!/proc/self/exe\\n' > /tmp/door").await.ok();
    inside.root("chmod 755 /tmp/plain /tmp/door").await.ok();
    inside.root(&format!("echo {library} > /etc/ld.so.preload")).await.ok();
    let plain = inside.command("root", ExecSpec::argv(["/tmp/plain"], SandboxPath::root())).await.report();
    assert_eq!(plain.of("runs"), "/tmp/own");
    for user in ["root", "user"] {
        let door = ExecSpec { user: Some(named(user)), ..ExecSpec::argv(["/tmp/door"], SandboxPath::root()) };
        let refused = cabana_sandbox::run(&*inside.sandbox, door, 1024).await;
        let code = refused.as_ref().err().map(cabana_sandbox::Error::code);
        assert_eq!(code, Some(cabana_sandbox::Code::ProgramNotFound), "as {user}: {refused:?}");
    }
    inside.files("root").alter(cabana_sandbox::Alter::Remove(path("/etc/ld.so.preload"))).await.unwrap();
    // Where there is a single id the attacker owns the program, and only seals keep it as it is.
    let init = HostProcess::all_of(&inside).await.into_iter().find(HostProcess::is_init).unwrap();
    let seals = rustix::fs::fcntl_get_seals(std::fs::File::open(init.path("exe")).unwrap()).unwrap();
    let content = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    // That of the mode: kernels before 6.3 have none.
    const EXEC: SealFlags = SealFlags::from_bits_retain(0x20);
    let own = rustix::fs::memfd_create("own", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    let mode = if rustix::fs::fcntl_add_seals(own, EXEC).is_ok() { EXEC } else { SealFlags::empty() };
    assert!(seals.contains(content | mode), "{seals:?}");
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn signals_to_process_1() {
    let inside = Inside::new().await;
    for number in (1..32).chain(34..65) {
        let script = format!("kill -{number} 1; kill -{number} 1 1 1 2>/dev/null; true");
        inside.root(&script).await.ok();
    }
    inside.still_works().await;
    inside.user("kill -9 1").await.refused();
    // Who is not process 1 ends by it.
    for signal in ["KILL", "TERM", "SEGV", "RTMAX"] {
        let own = inside.root(&format!("sleep 300 & kill -{signal} $!; wait $!; [ $? -gt 128 ] && echo ended")).await;
        assert_eq!(own.ok(), "ended", "{signal}");
    }
    inside.end().await;
}

#[tokio::test]
async fn starving_process_1_by_its_limits() {
    let inside = Inside::new().await;
    let own = inside.attack("root", &PRLIMIT, &[]).await.report();
    own.none_refused(&["EPERM"]);
    let report = inside.attack("root", &PRLIMIT, &["1"]).await.report();
    let works = tokio::time::timeout(SOON, inside.user("echo works")).await;
    assert!(works.is_ok(), "init is starved: {report:?}");
    inside.end().await;
}

const LESS_TIME: &str = "import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, done): print(what, 'done' if done == 0 else errno.errorcode[ctypes.get_errno()])
attempt('niceness of process 1', libc.setpriority(0, 1, 19))
attempt('niceness of its user', libc.setpriority(2, 0, 19))
attempt('niceness of its group', libc.setpriority(1, 1, 19))
attempt('disk of process 1', libc.syscall(251, 1, 1, 3 << 13))
attempt('disk of its user', libc.syscall(251, 3, 0, 3 << 13))
attempt('disk of its group', libc.syscall(251, 2, 1, 3 << 13))
child = os.fork()
if child == 0: os.setpgid(0, 0); os.pause() if hasattr(os, 'pause') else __import__('signal').pause()
attempt('own process', libc.setpriority(0, child, 19))
attempt('disk of own process', libc.syscall(251, 1, child, 3 << 13))
os.kill(child, 9)";

/// Process 1 has root's id inside: who changes what all processes of root may have changes its part, too.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn taking_time_from_process_1_by_its_user_and_its_group() {
    let inside = Inside::new().await;
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", LESS_TIME], SandboxPath::root());
    let report = inside.command("root", spec).await.report();
    // The control: the same calls on a process of one's own.
    assert_eq!((report.of("own process"), report.of("disk of own process")), ("done", "done"));
    for what in ["niceness of", "disk of"] {
        assert_eq!(report.of(&format!("{what} process 1")), "EPERM");
        assert_eq!(report.of(&format!("{what} its user")), "EPERM");
        assert!(["EPERM", "ESRCH"].contains(&report.of(&format!("{what} its group"))), "{report:?}");
    }
    // As whoever started the engine is.
    let niceness = inside.root("cut -d' ' -f19 /proc/1/stat /proc/self/stat | uniq | wc -l").await.ok();
    assert_eq!(niceness, "1");
    inside.end().await;
}

/// The files of process 1 in `/proc` belong to root inside.
#[tokio::test]
async fn writing_to_the_files_of_process_1_in_proc() {
    let inside = Inside::new().await;
    for (file, value) in [("oom_score_adj", "900"), ("clear_refs", "1"), ("autogroup", "19"), ("timerslack_ns", "1")] {
        let write = |process: &str| format!("[ ! -e /proc/{process}/{file} ] || echo {value} > /proc/{process}/{file}");
        // The control: on a process of one's own it works, where the kernel has it.
        inside.root(&write("self")).await.ok();
        for process in ["1", "1/task/1"] {
            let script = format!("[ -e /proc/{process}/{file} ] && {{ echo {value} > /proc/{process}/{file}; }}");
            inside.root(&script).await.refused();
        }
    }
    assert_eq!(
        inside.root("cat /proc/1/oom_score_adj").await.ok(),
        inside.root("cat /proc/self/oom_score_adj").await.ok()
    );
    inside.still_works().await;
    inside.end().await;
}

/// A host may share its processors out by sessions, and root inside says how much the one of a process gets: with a session in common,
/// that of one sandbox would slow down all.
#[tokio::test]
async fn init_has_a_session_of_its_own_and_so_has_each_of_its_supervisors() {
    for (inside, supervisors) in [(Inside::new().await, 0), (Inside::without_cgroups().await, 2)] {
        for _ in 0..2 {
            inside.user("sleep 600 >/dev/null 2>&1 &").await.ok(); // its supervisor stays with it
        }
        let all = HostProcess::all_of(&inside).await;
        let init = all.iter().find(|process| process.is_init()).expect("its init");
        // Of the last command it may just end.
        let sessions = all.iter().filter(|process| process.is_ours()).map(|process| (process.0, process.session()));
        let sessions: Vec<_> = sessions.filter(|(_, session)| !session.is_empty()).collect();
        assert!(sessions.len() > supervisors, "{sessions:?}");
        for (number, session) in sessions {
            assert_eq!(session, number.to_string(), "init is {}", init.0);
        }
        inside.end().await;
    }
}

/// Some calls init decides without a broker, whose number bounds the others: they come as fast as they are answered.
#[tokio::test]
async fn flooding_init_with_calls_that_it_decides_itself() {
    let inside = Inside::new().await;
    let flood = inside.start("user", &FLOOD, &["/tmp/enough"]).await;
    // It goes on until this command has come to its end, which init has to start and to wait for.
    soon("a command meanwhile", inside.user("touch /tmp/enough")).await.ok();
    assert_eq!(soon("the end of the flood", rest(flood)).await.1, Status::Code(0));
    inside.end().await;
}

#[tokio::test]
async fn killing_commands_before_they_are_started() {
    let inside = Inside::new().await;
    for signal in ["9", "11", "19"] {
        let victim = inside.sandbox.exec(ExecSpec::argv(["sleep", "300"], SandboxPath::root())).await.unwrap();
        let attack = inside.start("user", &SLAUGHTER, &[signal]).await;
        if signal != "19" {
            let (_, status) = soon("the end of one that was there", rest(victim)).await;
            assert!(matches!(status, Status::Signal(_)), "it hits what it may: {status:?}");
        }
        let victims = (0..8).map(|_| async {
            let mut spec = ExecSpec::argv(["/bin/true"], SandboxPath::root());
            spec.user = Some(named("user"));
            spec.timeout = Some(Duration::from_secs(2));
            // Killed, stopped, or through: but told, and soon.
            soon("a command that is shot at", cabana_sandbox::run(&*inside.sandbox, spec, 1024)).await.map(drop)
        });
        let _ = join_all(victims).await;
        let root = soon("a command of root meanwhile", inside.root("echo works")).await;
        assert_eq!(root.ok(), "works", "after signal {signal}");
        attack.control.signal(9, cabana_sandbox::Target::Tree).await.unwrap();
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn holding_up_a_start_by_a_lease_on_the_program() {
    let inside = Inside::new().await;
    inside.user("cp /bin/true /tmp/slow && chmod 755 /tmp/slow").await.ok();
    let _lease = Lease::on(&inside, &["/tmp/slow"]).await;
    let mut held = ExecSpec::argv(["/tmp/slow"], SandboxPath::root());
    held.user = Some(named("user"));
    let start = inside.sandbox.exec(held);
    tokio::select! {
        biased;
        () = async {
            // While it hangs: others are started, and what is half started gives nothing away.
            for _ in 0..5 {
                inside.still_works().await;
            }
            let pids = "for p in /proc/[0-9]*; do grep -q cabana-init $p/comm && echo ${p#/proc/}; done; true";
            let said = inside.root(pids).await.ok();
            assert!(said.split_whitespace().count() > 1, "beside init there is one that is not through: {said}");
            for pid in said.split_whitespace() {
                for user in ["root", "user"] {
                    let report = inside.attack(user, &PEER, &[pid]).await.report();
                    report.all_refused(&["EPERM", "EACCES", "ESRCH", "ENOENT"]);
                }
            }
        } => {}
        started = start => drop(started),
    }
    soon("the end of the sandbox", inside.end()).await;
}

#[tokio::test]
async fn more_descriptors_than_init_has_places_for() {
    let inside = Inside::new().await;
    let flood = "import resource, os, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
open_now = []
try:
    while True: open_now.append(os.open('/dev/null', os.O_RDONLY))
except OSError: pass
assert len(open_now) > 500
print(len(open_now), flush=True)
time.sleep(600)";
    let mut spec = ExecSpec::argv(["/usr/bin/python3", "-c", flood], SandboxPath::root());
    spec.user = Some(named("root"));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let _first = futures_util::StreamExt::next(&mut process.events).await;
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn a_full_backlog_before_a_connection_of_the_server() {
    let inside = Inside::new().await;
    let full = "import socket, time
s = socket.socket(); s.bind(('127.0.0.1', 7777)); s.listen(0)
held = []
for _ in range(8):
    c = socket.socket(); c.setblocking(False)
    try: c.connect(('127.0.0.1', 7777))
    except BlockingIOError: pass
    held.append(c)
while ' 02 ' not in open('/proc/net/tcp').read(): pass # one that is not answered any more
print('full', flush=True)
time.sleep(600)";
    let mut spec = ExecSpec::argv(["/usr/bin/python3", "-c", full], SandboxPath::root());
    spec.user = Some(named("user"));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let _first = futures_util::StreamExt::next(&mut process.events).await;
    let waits = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 7777), 0.5)'";
    assert!(inside.user(waits).await.refused().contains("timed out"), "whoever connects waits");
    let connections = join_all((0..16).map(|_| inside.sandbox.connect(7777)));
    tokio::select! {
        biased;
        () = async {
            for _ in 0..5 {
                inside.still_works().await;
                assert!(inside.read("user", "/etc/passwd").await.is_some());
            }
            let closed = soon("another port", inside.sandbox.connect(7778)).await.err().expect("nobody listens");
            assert_eq!(closed.code(), cabana_sandbox::Code::PortClosed);
        } => {}
        _ = connections => {}
    }
    soon("the end of the sandbox", inside.end()).await;
}

#[tokio::test]
async fn finding_the_socket_that_init_listens_to() {
    // Its socket is not among what a command has open, nor among what a command can find.
    let inside = Inside::new().await;
    let open = "import os
for fd in sorted(map(int, os.listdir('/proc/self/fd'))):
    try: print(fd, os.readlink('/proc/self/fd/%d' % fd).split(':')[0])
    except OSError: pass";
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", open], SandboxPath::root());
        let said = inside.command(user, spec).await.ok();
        let kinds = said.replace("/dev/null", "/null"); // it lies in a mount that has no place inside
        assert_eq!(kinds, "0 /null\n1 pipe\n2 pipe", "as {user}");
    }
    let sockets = inside.root("tail -n +2 /proc/net/unix | wc -l").await.ok();
    assert_eq!(sockets, "0", "sockets that are there without anybody's making one");
    let made =
        "import socket, os; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/s'); print(open('/proc/net/unix').read())
print(os.readlink('/proc/self/fd/%d' % s.fileno()))";
    let seen = inside.command("user", ExecSpec::argv(["/usr/bin/python3", "-c", made], SandboxPath::root())).await.ok();
    assert!(seen.contains("/tmp/s") && seen.contains("socket:["), "one that is made is found: {seen}");
    inside.end().await;
}

#[tokio::test]
async fn an_exit_status_that_is_no_exit() {
    // A command that stops, is traced or leaves its group has not ended; one that ends says how.
    let inside = Inside::new().await;
    let ran = inside.user("sh -c 'kill -STOP $$' & until grep -q '^State:.T' /proc/$!/status; do :; done; kill -CONT $!; wait $!; exit 77").await;
    assert_eq!(ran.status, Status::Code(77));
    // Whoever waits for stops, too, takes one for news of a child.
    let fooled = "import os; p = os.fork()\nif p == 0: os.kill(os.getpid(), 19)\nprint(os.WIFSTOPPED(os.waitpid(p, os.WUNTRACED)[1])); os.kill(p, 9)";
    assert_eq!(inside.user(&format!("python3 -c '{fooled}'")).await.ok(), "True");
    let ran = tokio::time::timeout(SOON, inside.user("(setsid sleep 300 >/dev/null 2>&1 &) ; kill -SEGV $$")).await;
    assert_eq!(ran.expect("told in time").status, Status::Signal(11));
    inside.end().await;
}

#[tokio::test]
async fn a_command_that_asks_to_be_traced_and_stops_keeps_its_timeout() {
    const TRACED: &str = "import ctypes, os, signal
ctypes.CDLL(None).ptrace(0, 0, 0, 0)
print('asked', flush=True)
os.kill(os.getpid(), signal.SIGUSR1)";
    // The control: who waits for such a child hears of it while it lives.
    let parent = format!(
        "import os\npid = os.fork()\nif not pid: exec({TRACED:?}); os._exit(0)\n_, status = os.waitpid(pid, 0)\n\
         print(os.WIFSTOPPED(status)); os.kill(pid, 9)"
    );
    let inside = Inside::new().await;
    let ran = inside.command("user", ExecSpec::argv(["/usr/bin/python3", "-c", &parent], SandboxPath::root())).await;
    assert_eq!(ran.ok(), "asked\nTrue");
    for inside in [inside, Inside::without_cgroups().await] {
        for user in ["root", "user"] {
            let mut spec = ExecSpec::argv(["/usr/bin/python3", "-c", TRACED], SandboxPath::root());
            spec.user = Some(named(user));
            spec.timeout = Some(Duration::from_millis(700));
            let outcome = soon("the timeout", cabana_sandbox::run(&*inside.sandbox, spec, 1024)).await.unwrap();
            assert_eq!(outcome.exit.status, Status::TimedOut, "as {user}");
            let left = inside.root("ps -e -o stat= | grep -c '^t' || true").await.ok();
            assert_eq!(left, "0", "nothing of it is left");
        }
        inside.end().await;
    }
}
