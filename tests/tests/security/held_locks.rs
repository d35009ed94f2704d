//! Locks of the kernel that a guest holds for as long as its disk is slow, which its own limits make it. Who waits for one
//! cannot be interrupted: that must be a few threads of the server, and never all of them.

use std::{sync::Arc, time::Duration};

use cabana_sandbox::{
    Control, ExecSpec, Limits, Provider, Sandbox, SandboxPath, SandboxSpec, Source, Stdio, TermSize, View, Write,
    WriteMode,
};
use futures_util::{StreamExt, stream};
use tokio::task::JoinSet;

use crate::{
    attacks::HOLD_LOCK,
    inside::{Inside, passing, path, soon, until},
};

/// A program of the compiler that nothing else uses.
const LARGE: &str = "/usr/bin/lto-dump-12";

/// The slowest that may be asked for.
fn slow() -> SandboxSpec {
    SandboxSpec { limits: Limits { io: Some(1 << 20), ..Limits::default() }, ..passing() }
}

/// A neighbour of the attacker, who must not notice anything.
async fn neighbour(inside: &Inside) -> Inside {
    Inside::of(inside.engine.clone(), &passing()).await
}

async fn goes_on(neighbour: &Inside) {
    for _ in 0..5 {
        neighbour.still_works().await;
        let read = soon("a file of a neighbour", neighbour.read("user", "/etc/passwd")).await;
        assert!(read.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_lock_of_a_commands_output() {
    let inside = Inside::with(slow()).await;
    let neighbour = neighbour(&inside).await;
    // The control: inside, who takes from such a pipe without waiting for bytes is held up.
    let report = inside.attack("user", &HOLD_LOCK, &["try", LARGE]).await;
    assert!(report.out.contains("waited done"), "{report:?}");
    let mut attacks = Vec::new();
    for _ in 0..4 {
        attacks.push(inside.start("user", &HOLD_LOCK, &["pipe", LARGE]).await);
    }
    // A client reads each of them.
    let reading: JoinSet<()> = attacks.into_iter().map(|attack| attack.events.for_each(async |_| ())).collect();
    goes_on(&neighbour).await;
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of what it said", reading.join_all()).await;
    goes_on(&neighbour).await;
    neighbour.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_lock_of_a_file_that_many_requests_write_to() {
    let inside = Inside::with(slow()).await;
    let neighbour = neighbour(&inside).await;
    let append = async |files: std::sync::Arc<dyn cabana_sandbox::Files>| {
        let body = stream::once(async { Ok(bytes::Bytes::from_static(b"more\n")) }).boxed();
        files.write(&path("/home/user/victim"), Write::new(WriteMode::Append), body).await
    };
    // The control: before anybody holds it, a line more takes no time.
    soon("a write", append(inside.files("user"))).await.unwrap();
    let _attack = inside.start("user", &HOLD_LOCK, &["inode", "/home/user/victim"]).await;
    until("it waits for the disk", async || inside.root("ps -o stat= -C hold_lock").await.out.starts_with('D')).await;
    // More than a runtime has threads, where each request takes one.
    let mut requests: JoinSet<_> = (0..600).map(|_| append(inside.files("user"))).collect();
    let held = tokio::time::timeout(Duration::from_secs(1), requests.join_next()).await;
    assert!(held.is_err(), "the control: they are held up: {held:?}");
    goes_on(&neighbour).await;
    // Its other files wait, too, with a word after a while; but its end does not.
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of the requests", requests.join_all()).await;
    goes_on(&neighbour).await;
    neighbour.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_is_slow_by_its_limits_ends_at_once() {
    let inside = Inside::with(slow()).await;
    let attack = inside.start("user", &HOLD_LOCK, &["inode", "/home/user/victim"]).await;
    until("it waits for the disk", async || inside.root("ps -o stat= -C hold_lock").await.out.starts_with('D')).await;
    let mut rest = Box::pin(attack.events.for_each(async |_| ()));
    let early = tokio::time::timeout(Duration::from_secs(3), &mut rest).await;
    assert!(early.is_err(), "the control: at this rate it takes a minute");
    soon("its end", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of its command", rest).await;
    let spec = ExecSpec::argv(["true"], SandboxPath::root());
    assert!(inside.sandbox.exec(spec).await.is_err(), "it is gone");
}

/// Who waits for a file of a directory that both have cannot be ended before the other one is done, which its limits make slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_up_the_end_of_a_neighbour_who_shares_a_directory() {
    let shared = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let view = View { source: Source::Host(shared.path().to_owned()), at: path("/workspace"), writable: true };
    let inside = Inside::with(SandboxSpec { views: vec![view.clone()], ..slow() }).await;
    let neighbour = Inside::of(inside.engine.clone(), &SandboxSpec { views: vec![view], ..passing() }).await;
    let _attack = inside.start("user", &HOLD_LOCK, &["inode", "/workspace/victim"]).await;
    until("it waits for the disk", async || inside.root("ps -o stat= -C hold_lock").await.out.starts_with('D')).await;
    let append = ExecSpec::argv(["sh", "-c", "exec tee -a /workspace/victim < /etc/hostname"], path("/"));
    let waiting = neighbour.sandbox.exec(append).await.unwrap();
    // The control: it stands in the kernel, where nothing ends it.
    let stands = async || neighbour.root("ps -o stat= -C tee").await.out.starts_with('D');
    until("the neighbour waits for the file", stands).await;
    neighbour.root("kill -9 $(ps -o pid= -C tee)").await.ok();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(stands().await, "the control: a kill does not end it");
    soon("the end of a neighbour", neighbour.engine.destroy(neighbour.sandbox.id())).await.unwrap();
    drop(waiting);
    // The limits of the other one hold again.
    let again = inside.user("dd if=/dev/zero of=/tmp/more bs=1M count=8 oflag=direct 2>&1 | tail -n 1").await.ok();
    let seconds: f64 = again.split(", ").nth(2).unwrap().trim_end_matches(" s").parse().unwrap();
    assert!(seconds > 4.0, "{again}");
    inside.end().await;
}

/// So many at once are more than a runtime of two workers has.
const AT_ONCE: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_file_of_users_that_each_command_asks() {
    let inside = Inside::with(slow()).await;
    let neighbour = neighbour(&inside).await;
    let run =
        async |sandbox: Arc<dyn Sandbox>| cabana_sandbox::run(&*sandbox, ExecSpec::argv(["true"], path("/")), 64).await;
    // The control: before anybody holds it, a command takes no time.
    soon("a command", run(inside.sandbox.clone())).await.unwrap();
    let _attack = inside.start("root", &HOLD_LOCK, &["users", LARGE]).await;
    let mut commands: JoinSet<_> = JoinSet::new();
    let held_up = async || {
        commands.spawn(run(inside.sandbox.clone()));
        tokio::time::timeout(Duration::from_secs(1), commands.join_next()).await.is_err()
    };
    until("the control: a command is held up", held_up).await;
    commands.extend((0..AT_ONCE).map(|_| run(inside.sandbox.clone())));
    goes_on(&neighbour).await;
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of its commands", commands.join_all()).await;
    goes_on(&neighbour).await;
    neighbour.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_size_of_a_terminal_that_a_client_changes() {
    let inside = Inside::with(slow()).await;
    let neighbour = neighbour(&inside).await;
    let size = TermSize { cols: 80, rows: 24 };
    let words = inside.bring(&HOLD_LOCK).await;
    let words = words.into_iter().chain(["size".to_owned(), LARGE.to_owned()]);
    let spec = ExecSpec { stdio: Stdio::Terminal(size), ..ExecSpec::argv(words, path("/")) };
    let attack = inside.sandbox.exec(spec).await.unwrap();
    let mut resizes: JoinSet<_> = JoinSet::new();
    let resize = async move |control: Arc<dyn Control>| control.resize(size).await;
    let held_up = async || {
        resizes.spawn(resize(attack.control.clone()));
        tokio::time::timeout(Duration::from_secs(1), resizes.join_next()).await.is_err()
    };
    until("the control: a change is held up", held_up).await;
    resizes.extend((0..AT_ONCE).map(|_| resize(attack.control.clone())));
    goes_on(&neighbour).await;
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of the changes", resizes.join_all()).await;
    neighbour.end().await;
}

/// A process that waits for the disk does not stand still, and who pauses it waits for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_up_a_pause_while_others_ask_what_the_sandbox_uses() {
    let inside = Inside::with(slow()).await;
    let neighbour = neighbour(&inside).await;
    let _attack = inside.start("user", &HOLD_LOCK, &["inode", "/home/user/victim"]).await;
    until("it waits for the disk", async || inside.root("ps -o stat= -C hold_lock").await.out.starts_with('D')).await;
    let (engine, id) = (inside.engine.clone(), inside.sandbox.id().clone());
    let mut pause = tokio::spawn(async move { engine.pause(&id).await.map(drop) });
    let early = tokio::time::timeout(Duration::from_secs(1), &mut pause).await;
    assert!(early.is_err(), "the control: it is held up: {early:?}");
    let mut asked: JoinSet<_> = JoinSet::new();
    for _ in 0..AT_ONCE {
        let sandbox = inside.sandbox.clone();
        asked.spawn(async move { sandbox.usage().await.map(drop) });
    }
    let answered = async {
        while asked.join_next().await.is_some() {}
        neighbour.still_works().await;
    };
    tokio::time::timeout(Duration::from_secs(4), answered).await.expect("nobody waits for the pause");
    assert!(!pause.is_finished(), "the control: it still is");
    inside.engine.destroy(inside.sandbox.id()).await.unwrap();
    let _given_up = soon("the end of the pause", pause).await;
    neighbour.end().await;
}
