//! Processes that should have ended: by their timeout, by a signal to their tree, or with their sandbox.

use std::time::Duration;

use cabana_sandbox::{Event, ExecSpec, Limits, Process, Provider, SandboxSpec, Status, Target, run};
use futures_util::StreamExt;

use crate::{
    attacks::{CHASE, OUTLIVE},
    inside::{Inside, PATIENCE, living, named, passing, path, rest, soon, unique, until},
};

/// What a command of the user does before it says `begun`, to go on for ever after it. The kernel's numbers are those of
/// either machine.
const RESISTS: &str = "import ctypes, os, signal, sys, threading, time
libc = ctypes.CDLL(None)
number = lambda x86, arm: x86 if os.uname().machine == 'x86_64' else arm
begun = lambda: print('begun', flush=True)
";

/// Commands that would go on for ever, all at once, under their timeout.
async fn all_time_out(inside: &Inside, scripts: &[(&str, &str)]) {
    let timed = scripts.iter().map(|(what, script)| async move {
        let mark = unique("ending");
        let mut spec = ExecSpec::argv(["python3", "-c", &format!("{RESISTS}{script}"), &mark], path("/"));
        spec.user = Some(named("user"));
        spec.timeout = Some(Duration::from_secs(3));
        let seen = until("it is there", async || living(&mark) > 0); // so that its end is an end
        let both = async { tokio::join!(run(&*inside.sandbox, spec, 1024), seen) };
        let (ran, ()) = tokio::time::timeout(PATIENCE, both).await.unwrap_or_else(|_| panic!("it goes on: {what}"));
        let ran = ran.unwrap();
        assert_eq!((ran.exit.status, ran.stdout.whole().unwrap().trim_ascii_end()), (Status::TimedOut, &b"begun"[..]));
        until("nothing of it lives", async || living(&mark) == 0).await;
    });
    futures_util::future::join_all(timed).await;
}

#[tokio::test]
async fn a_command_whose_first_thread_has_ended_times_out() {
    let inside = Inside::new().await;
    let script = "
threading.Thread(target=lambda: [begun(), time.sleep(300)]).start()
libc.syscall(number(60, 93), 0)";
    all_time_out(&inside, &[("its first thread has ended", script)]).await;
    inside.end().await;
}

#[tokio::test]
async fn commands_that_no_signal_ends_time_out() {
    let stops = "begun(); os.kill(os.getpid(), signal.SIGSTOP)";
    let ignores = "
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
begun()
while True: time.sleep(300)";
    // The parent stands in the kernel until its child has ended, and hears of nothing but a kill.
    let waits_in_vfork = "
if libc.syscall(number(58, 220), 0x4111, 0, 0, 0, 0) == 0:
    begun()
    while True: time.sleep(300)";
    let starts_itself_anew = "
if len(sys.argv) == 2: begun()
os.execv('/usr/bin/python3', ['python3', '-c', open('/proc/self/cmdline').read().split(chr(0))[2], sys.argv[1], 'again'])";
    let scripts = [
        ("it is stopped", stops),
        ("it ignores every signal", ignores),
        ("it waits in vfork", waits_in_vfork),
        ("it starts itself anew", starts_itself_anew),
    ];
    let inside = Inside::new().await;
    all_time_out(&inside, &scripts).await;
    inside.still_works().await;
    inside.end().await;
}

/// Seizes every thread of the process of this number, to have it stand still at its exit or not, and never waits for any. From a
/// thread, or while somebody does the same to the tracer.
const TRACES: &str = "
way = sys.argv[2]
seize = lambda thread: libc.ptrace(0x4206, int(thread), ctypes.c_long(0), ctypes.c_long(0 if way == 'end' else 0x40))
def trace():
    done = [seize(thread) for thread in os.listdir(f'/proc/{sys.argv[1]}/task')]
    print('begun' if not any(done) else 'refused', flush=True)
    while True: time.sleep(300)
child = os.fork() if way == 'chain' else 0
if child:
    seize(child)
    while True: time.sleep(300)
if way == 'chain':
    while 'TracerPid:\\t0' in open('/proc/self/status').read(): time.sleep(0.01)
if way == 'thread': threading.Thread(target=trace).start()
else: trace()";

/// Lets anybody trace the caller, where the kernel asks for that.
const TRACEABLE: &str = "libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)";

/// Starts a script of the user, after what all have, and waits for its first word.
async fn begun(inside: &Inside, script: &str, arguments: &[&str], timeout: Option<Duration>) -> Process {
    let script = format!("{RESISTS}{script}");
    let words = ["python3", "-c", &script].into_iter().chain(arguments.iter().copied());
    let mut spec = ExecSpec::argv(words, path("/"));
    (spec.user, spec.timeout) = (Some(named("user")), timeout);
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let said = soon("its first word", process.events.next()).await.unwrap().unwrap();
    assert!(matches!(&said, Event::Output(output) if output.bytes.trim_ascii() == b"begun"), "{said:?}");
    process
}

async fn end_under_a_tracer(inside: &Inside) {
    // The control: a parent does not hear of a child that has ended and is traced by somebody else.
    let control = format!(
        "{RESISTS}
child = os.fork()
if child == 0: {TRACEABLE}; begun(); time.sleep(1); os._exit(0)
tracer = os.fork()
if tracer == 0: libc.ptrace(0x4206, child, ctypes.c_long(0), ctypes.c_long(0)); time.sleep(300)
while ') Z' not in open(f'/proc/{{child}}/stat').read(): time.sleep(0.01)
print('withheld' if os.waitpid(child, os.WNOHANG) == (0, 0) else 'told')
os.kill(tracer, 9)
print(os.waitpid(child, 0)[1])"
    );
    let spec = ExecSpec::argv(["python3", "-c", &control], path("/"));
    assert!(inside.command("user", spec).await.ok().contains("withheld\n0"));
    let threads = format!(
        "{TRACEABLE}
threading.Thread(target=lambda: time.sleep(300)).start()
begun()
time.sleep(300)"
    );
    for way in ["exit", "end", "chain"] {
        let victim = begun(inside, &threads, &[], Some(Duration::from_secs(4))).await;
        let _tracer = begun(inside, TRACES, &[&victim.pid.unwrap().to_string(), way], None).await;
        assert_eq!(soon("the end by its timeout", rest(victim)).await.1, Status::TimedOut, "{way}");
    }
    inside.still_works().await;
}

#[tokio::test]
async fn a_tracer_that_waits_for_nobody_holds_back_no_end() {
    let inside = Inside::new().await;
    end_under_a_tracer(&inside).await;
    let ends = format!(
        "{TRACEABLE}
begun()
while not os.path.exists('/tmp/go'): time.sleep(0.01)"
    );
    let victim = begun(&inside, &ends, &[], None).await;
    let _tracer = begun(&inside, TRACES, &[&victim.pid.unwrap().to_string(), "end"], None).await;
    inside.user("touch /tmp/go").await.ok();
    assert_eq!(soon("the end by itself", rest(victim)).await.1, Status::Code(0));
    inside.end().await;
    let without = Inside::without_cgroups().await;
    end_under_a_tracer(&without).await;
    without.end().await;
}

/// A thread that executes a program waits in the kernel for the others to be gone, and stands still for nobody meanwhile.
#[tokio::test]
async fn a_tracer_that_waits_for_nobody_holds_back_no_pause() {
    let inside = Inside::new().await;
    let executes = format!(
        "{TRACEABLE}
threading.Thread(target=lambda: time.sleep(300)).start()
begun()
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
os.execv('/bin/sleep', ['sleep', '300'])"
    );
    for way in ["exit", "end", "thread", "chain"] {
        let go = format!("/tmp/go-{way}");
        let victim = begun(&inside, &executes, &[&go], None).await;
        let pid = victim.pid.unwrap();
        let _tracer = begun(&inside, TRACES, &[&pid.to_string(), way], None).await;
        inside.user(&format!("touch {go}")).await.ok();
        let waits = format!("grep -q 'State:.D' /proc/{pid}/status");
        until("the control: its exec is held up", async || inside.user(&waits).await.status == Status::Code(0)).await;
        soon("a pause", inside.engine.pause(inside.sandbox.id())).await.unwrap();
        soon("going on", inside.engine.start(inside.sandbox.id())).await.unwrap();
        inside.still_works().await;
    }
    inside.end().await;
}

/// Two that held each other at their exits would end by no signal, and no sandbox with them.
#[tokio::test]
async fn two_processes_that_would_hold_each_other_at_their_exits() {
    let inside = Inside::new().await;
    let script = format!(
        "{RESISTS}{TRACEABLE}
seize = lambda pid, options: 'done' if libc.ptrace(0x4206, pid, ctypes.c_long(0), ctypes.c_long(options)) == 0 else 'refused'
first, (hear, tell) = os.getpid(), os.pipe()
second = os.fork()
if second == 0:
    os.read(hear, 1)
    print('back, at its exit', seize(first, 0x40))
    import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # each would stop it, for who is stopped itself
    ask = lambda request, option: libc.ptrace(request, first, ctypes.c_long(0), ctypes.c_long(option)) == 0
    print('back', seize(first, 0), 'and stopped', ask(0x4207, 0) and os.waitpid(first, 0x40000000)[0] == first)
    print('back, by an option', ask(0x4200, 1), 'at its exit', ask(0x4200, 0x40), 'the old way', ask(21, 0x40))
    print('let go', ask(17, 0))
    third = os.fork()
    if third == 0: time.sleep(300)
    print('another at its exit', seize(third, 0x40))
    os.kill(third, 9)
    sys.stdout.flush()
    os._exit(0)
print('at its exit', seize(second, 0x40), flush=True)
os.write(tell, b'x')
while True:
    _, status = os.waitpid(second, 0)
    if os.WIFEXITED(status): break
    libc.ptrace(7, second, ctypes.c_long(0), ctypes.c_long(0))"
    );
    let spec = ExecSpec::argv(["python3", "-c", &script], path("/"));
    let said = inside.command("user", spec).await.ok();
    let expected = [
        "at its exit done",
        "back, at its exit refused",
        "back done and stopped True",
        "back, by an option True at its exit False the old way False",
        "let go True",
        "another at its exit done",
    ];
    for line in expected {
        assert!(said.contains(line), "{line}: {said}");
    }
    inside.still_works().await;
    soon("the end of the sandbox", inside.end()).await;
}

/// Where there are no groups, a process of ours keeps the tree of a command together, and root inside can reach that.
#[tokio::test]
async fn a_command_that_attacks_its_supervisor() {
    let inside = Inside::without_cgroups().await;
    for (attack, expected) in [
        ("kill -9 $PPID", Status::Signal(9)),
        ("kill -STOP $PPID", Status::TimedOut),
        ("kill -9 $PPID", Status::Signal(9)),
    ] {
        let mark = unique("strays");
        let script = format!("(setsid sh -c 'sleep 300; true' $0 &); {attack}; sleep 300; true");
        let mut spec = ExecSpec::argv(["sh", "-c", &script, &mark], path("/"));
        (spec.user, spec.timeout) = (Some(named("root")), Some(Duration::from_secs(3)));
        let process = inside.sandbox.exec(spec).await.unwrap();
        assert_eq!(soon(attack, rest(process)).await.1, expected, "{attack}");
        until("nothing of it lives", async || living(&mark) == 0).await;
        inside.still_works().await;
    }
    inside.end().await;
}

/// Where no cgroup keeps a tree together, its processes are looked for one by one.
#[tokio::test]
async fn a_tree_whose_processes_are_gone_before_they_are_hit() {
    let inside = Inside::without_cgroups().await;
    for (way, timeout) in [("group", Some(2)), ("session", Some(2)), ("session", None)] {
        let mark = unique("chased");
        let words = inside.bring(&CHASE).await.into_iter().chain([way.to_owned(), mark.clone()]);
        let mut spec = ExecSpec::argv(words, path("/"));
        (spec.user, spec.timeout) = (Some(named("user")), timeout.map(Duration::from_secs));
        let mut process = inside.sandbox.exec(spec).await.unwrap();
        let _begun = process.events.next().await;
        if timeout.is_none() {
            soon("a signal", process.control.signal(9, Target::Tree)).await.unwrap();
        }
        let expected = if timeout.is_some() { Status::TimedOut } else { Status::Signal(9) };
        assert_eq!(soon("its end", rest(process)).await.1, expected, "{way}");
        until("nothing of it lives", async || living(&mark) == 0).await;
        inside.still_works().await;
    }
    inside.end().await;
}

/// Every process of it forks as long as there is room, and ends to make room for the next; the first goes on.
async fn breeding_tree_is_killed(begins: &str) {
    let limits = Limits { pids: Some(64), ..Limits::NONE };
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let mark = unique("breeds");
    let script = format!(
        "{RESISTS}
def breed():
    while True:
        try:
            if os.fork() == 0: os.setsid(); begin()
        except (OSError, RuntimeError):
            if os.getpid() != first: os._exit(0)
{begins}
first = os.getpid()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
begun()
begin()"
    );
    let mut spec = ExecSpec::argv(["python3", "-c", &script, &mark], path("/"));
    spec.user = Some(named("user"));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let _begun = process.events.next().await;
    until("there are many", async || living(&mark) > 8).await;
    soon("a signal", process.control.signal(9, Target::Tree)).await.unwrap();
    soon("its end", rest(process)).await;
    until("nothing of it lives", async || living(&mark) == 0).await;
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn a_tree_that_breeds_while_it_is_killed() {
    breeding_tree_is_killed("begin = breed").await;
}

#[tokio::test]
async fn a_tree_that_breeds_without_first_threads_while_it_is_killed() {
    let begin = "
def begin():
    threading.Thread(target=breed).start()
    libc.syscall(number(60, 93), 0)";
    breeding_tree_is_killed(begin).await;
}

#[tokio::test]
async fn a_sandbox_that_breeds_while_it_is_destroyed() {
    let inside = Inside::new().await;
    let mark = unique("breeds");
    for _ in 0..3 {
        let words = inside.bring(&OUTLIVE).await;
        let spec = ExecSpec::argv(words.into_iter().chain([mark.clone()]), path("/"));
        let mut process = inside.sandbox.exec(ExecSpec { user: Some(named("root")), ..spec }).await.unwrap();
        let _begun = process.events.next().await;
    }
    let forks = "import os, time\nfor _ in range(40):\n  if os.fork() == 0: time.sleep(300)\nprint('begun', flush=True)\ntime.sleep(300)";
    let mut process = inside.sandbox.exec(ExecSpec::argv(["python3", "-c", forks, &mark], path("/"))).await.unwrap();
    let _begun = process.events.next().await;
    until("all are there", async || living(&mark) > 40).await;
    soon("the end of the sandbox", inside.end()).await;
    assert_eq!(living(&mark), 0, "none outlived it");
}

/// The leader is gone, what it started has its output: the exit is told, and a signal to the tree still finds the rest.
#[tokio::test]
async fn a_tree_without_its_leader_is_still_ended() {
    let inside = Inside::new().await;
    let mark = unique("left");
    let script = format!("(exec -a {mark} sleep 300) & disown; echo begun; exit 4");
    let mut process = inside.sandbox.exec(ExecSpec::argv(["bash", "-c", &script], path("/"))).await.unwrap();
    let control = process.control.clone();
    let _begun = process.events.next().await;
    let (_, status) = soon("the exit", rest(process)).await;
    assert_eq!(status, Status::Code(4));
    until("it is left behind", async || living(&mark) == 1).await;
    soon("a signal", control.signal(9, Target::Tree)).await.unwrap();
    until("nothing of it lives", async || living(&mark) == 0).await;
    inside.end().await;
}
