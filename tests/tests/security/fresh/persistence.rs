//! A sandbox whose init outlives its server, and what can be done meanwhile.

use cabana_sandbox::{Base, ExecSpec, Found, NetworkPolicy, Provider, SandboxPath, SandboxSpec};
use futures_util::StreamExt;

use crate::{
    attacks::{NSFS, PEER},
    inside::{Inside, engine, named, soon},
    lease::Lease,
};

async fn staying(network: NetworkPolicy) -> Inside {
    Inside::with(SandboxSpec { network, ..SandboxSpec::new(Base::Host) }).await
}

/// The server goes, the sandbox stays, the next server comes.
async fn found_again(inside: Inside) -> Inside {
    let id = inside.sandbox.id().clone();
    inside.engine.leave().await;
    drop(inside);
    let engine = engine().await;
    match soon("attaching", engine.attach(&id)).await.unwrap() {
        Found::Running(sandbox) => Inside { engine, sandbox },
        Found::Paused(_) => panic!("it is paused"),
        Found::Stopped => panic!("it was stopped"),
        Found::Absent => panic!("it is gone"),
    }
}

/// Starts a script of Python that goes on, and waits for its first words.
async fn start(inside: &Inside, user: &str, script: &str) {
    let mut spec = ExecSpec::argv(["python3", "-c", script], SandboxPath::root());
    spec.user = Some(named(user));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    match process.events.next().await {
        Some(Ok(cabana_sandbox::Event::Output(_))) => {}
        other => panic!("it did not begin: {other:?}"),
    }
}

#[tokio::test]
async fn the_door_the_lock_and_the_outputs_that_init_holds() {
    let inside = found_again(staying(NetworkPolicy::Off).await).await;
    let open = "import os
for fd in sorted(map(int, os.listdir('/proc/self/fd'))):
    try: print(fd, os.readlink('/proc/self/fd/%d' % fd).split(':')[0])
    except OSError: pass";
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", open], SandboxPath::root());
        let said = inside.command(user, spec).await.ok();
        assert_eq!(said.replace("/dev/null", "/null"), "0 /null\n1 pipe\n2 pipe", "as {user}");
        inside.attack(user, &PEER, &["1"]).await.report().all_refused(&["EPERM", "EACCES"]);
        inside.attack(user, &NSFS, &["1", "only"]).await.report().all_refused(&["EPERM", "EACCES"]);
        for way in ["ls /proc/1/fd/", "ls /proc/1/fdinfo/ && cat /proc/1/fdinfo/*", "ls /proc/1/map_files/"] {
            inside.command(user, ExecSpec::shell(way, SandboxPath::root())).await.refused();
        }
    }
    assert_eq!(inside.root("tail -n +2 /proc/net/unix | wc -l").await.ok(), "0");
    inside.end().await;
}

/// A terminal whose program has ended, and all of whose output was read, is nothing to wake up for.
#[tokio::test]
async fn a_terminal_that_keeps_init_busy_when_the_server_has_gone() {
    let inside = staying(NetworkPolicy::Off).await;
    let mut spec = ExecSpec::shell("tty", SandboxPath::root());
    spec.stdio = cabana_sandbox::Stdio::Terminal(cabana_sandbox::TermSize { cols: 80, rows: 24 });
    let ran = inside.command("user", spec).await.ok();
    assert!(ran.starts_with("/dev/pts/"), "{ran}");
    let id = inside.sandbox.id().clone();
    let note =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("data/sandboxes").join(id.as_str()).join("live.json");
    let note: serde_json::Value = serde_json::from_slice(&std::fs::read(note).unwrap()).unwrap();
    let stat = format!("/proc/{}/stat", note["pid"]);
    let inside_at = |stat: &str| stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().to_owned()).unwrap();
    inside.engine.leave().await;
    drop(inside);
    // A busy one is never asleep.
    let mut asleep = 0;
    crate::inside::until("init sleeps", async || {
        let now = inside_at(&std::fs::read_to_string(&stat).expect("init lives"));
        asleep = if now.starts_with('S') { asleep + 1 } else { 0 };
        asleep >= 20
    })
    .await;
    let engine = engine().await;
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

/// While an exec is held up, the child has the user's id, init's memory and copies of all that init has open.
#[tokio::test]
async fn a_half_started_command_that_has_all_that_init_has() {
    let inside = staying(NetworkPolicy::Off).await;
    inside.user("cp /bin/true /tmp/slow && chmod 755 /tmp/slow").await.ok();
    let _lease = Lease::on(&inside, &["/tmp/slow"]).await;
    let mut held = ExecSpec::argv(["/tmp/slow"], SandboxPath::root());
    held.user = Some(named("user"));
    let start = inside.sandbox.exec(held);
    tokio::select! {
        biased;
        () = async {
            let list = "for p in /proc/[0-9]*; do grep -q cabana-init $p/comm && echo ${p#/proc/}; done; true";
            let mut pids = String::new();
            crate::inside::until("one is half started", async || {
                pids = inside.root(list).await.ok();
                pids.split_whitespace().count() > 1
            }).await;
            for pid in pids.split_whitespace() {
                for user in ["root", "user"] {
                    let refused = ["EPERM", "EACCES", "ESRCH", "ENOENT"];
                    inside.attack(user, &PEER, &[pid]).await.report().all_refused(&refused);
                    inside.attack(user, &NSFS, &[pid, "only"]).await.report().all_refused(&refused);
                    let ways = format!("ls /proc/{pid}/fd/ || ls /proc/{pid}/map_files/ || ls /proc/{pid}/cwd/ \
                        || ls /proc/{pid}/root/ || cat /proc/{pid}/syscall || cat /proc/{pid}/environ || exit 1");
                    inside.command(user, ExecSpec::shell(&ways, SandboxPath::root())).await.refused();
                }
            }
        } => {}
        started = start => panic!("it was not held up: {:?}", started.map(drop)),
    }
    soon("the end of the sandbox", inside.end()).await;
}

/// As with the script that starts «the program that starts me»: nobody inside may run it.
#[tokio::test]
async fn the_engines_own_program_started_inside_of_a_sandbox_that_stays() {
    let inside = found_again(staying(NetworkPolicy::Off).await).await;
    inside.root("cp /bin/echo /tmp/own && printf '#!/tmp/own\\n' > /tmp/plain").await.ok();
    inside.root("printf '#!/proc/self/exe\\n' > /tmp/door && chmod 755 /tmp/plain /tmp/door").await.ok();
    let started = async |script: &str| {
        let spec = ExecSpec { user: Some(named("root")), ..ExecSpec::argv([script], SandboxPath::root()) };
        cabana_sandbox::run(&*inside.sandbox, spec, 1024).await.map(drop).map_err(|error| error.code())
    };
    assert_eq!(started("/tmp/plain").await, Ok(()), "a script of a program of its own is started");
    assert_eq!(started("/tmp/door").await, Err(cabana_sandbox::Code::ProgramNotFound));
    inside.still_works().await;
    inside.end().await;
}

/// Nobody serves the network while there is no server; whoever listens there then is in the way of the next one.
async fn squatting(ports: &str, user: &str) {
    let inside = staying(NetworkPolicy::Public).await;
    let script = format!(
        "import resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held, taken = [], set()
print('begun', flush=True)
while len(taken) < len({ports}):
    for port in {ports}:
        if port in taken: continue
        s = socket.socket()
        try: s.bind(('0.0.0.0', port)); s.listen(1); held.append(s); taken.add(port)
        except OSError: s.close()
open('/tmp/taken', 'w').write('all')
time.sleep(600)"
    );
    start(&inside, user, &script).await;
    let id = inside.sandbox.id().clone();
    let upper = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("data/sandboxes")
        .join(id.as_str())
        .join("fs/upper0/tmp/taken");
    inside.engine.leave().await;
    drop(inside);
    let taken = |text: String| text == "all";
    crate::inside::until("the ports are taken", async || std::fs::read_to_string(&upper).is_ok_and(taken)).await;
    let engine = engine().await;
    let sandbox = match soon("attaching", engine.attach(&id)).await {
        Ok(Found::Running(sandbox)) => sandbox,
        Ok(_) => panic!("it does not run any more"),
        Err(error) => panic!("its owner does not get at it: {error}"),
    };
    let inside = Inside { engine, sandbox };
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn listening_where_the_server_that_left_did() {
    squatting("[65501, 65502, 65503, 65504]", "user").await;
}

#[tokio::test]
async fn listening_wherever_the_next_server_could() {
    squatting("list(range(65400, 65505))", "user").await;
}

#[tokio::test]
async fn listening_as_root_wherever_the_next_server_could() {
    squatting("[53, *range(65400, 65505)]", "root").await;
}

#[tokio::test]
async fn listening_before_there_is_a_network() {
    let inside = staying(NetworkPolicy::Off).await;
    let script = "import socket, time
held = []
for port in range(65400, 65505):
    s = socket.socket(); s.bind(('0.0.0.0', port)); s.listen(1); held.append(s)
print('held', flush=True)
time.sleep(600)";
    start(&inside, "user", script).await;
    let wanted = cabana_sandbox::Wanted::Network(NetworkPolicy::Public);
    soon("a network", inside.sandbox.update(wanted)).await.unwrap();
    inside.still_works().await;
    inside.end().await;
}
