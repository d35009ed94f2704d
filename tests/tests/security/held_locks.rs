//! Locks of the kernel that a guest holds for as long as its disk is slow, which its own limits make it. Who waits for one
//! cannot be interrupted: that must be a few threads of the server, and never all of them.

use std::time::Duration;

use cabana_sandbox::{ExecSpec, Limits, Provider, SandboxPath, SandboxSpec, Source, View, Write, WriteMode};
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
