//! What a descriptor of a sandbox can do in the hands of another. Sandboxes cannot hand each other any; here a program of the host does.

use std::{path::PathBuf, sync::Arc};

use cabana_engine::Engine;
use cabana_sandbox::{
    Base, Event, Limits, Process, Provider, SandboxId, SandboxSpec, SnapshotId, Source, View, VolumeId,
};
use futures_util::StreamExt;

use crate::{
    attacks::{HANDED, Relay},
    inside::{Inside, engine, passing, path, until},
};

const DOOR: &str = "/workspace/both/door";

/// A directory that both see, and who takes what is handed over.
struct Taker {
    engine: Arc<Engine>,
    volume: VolumeId,
    inside: Inside,
    process: Process,
    _relay: Relay,
}

impl Taker {
    async fn new() -> Self {
        let engine = engine().await;
        let volume = VolumeId::now();
        engine.make_volume(volume).await.unwrap();
        let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data/volumes");
        let relay = Relay::start(&data.join(volume.to_string()).join("tree/door"));
        let inside = Inside::of(engine.clone(), &SandboxSpec { views: vec![both(volume)], ..passing() }).await;
        let process = inside.start("root", &HANDED, &["take", DOOR, "/tmp/go"]).await;
        Self { engine, volume, inside, process, _relay: relay }
    }

    async fn said(&mut self) -> String {
        match self.process.events.next().await {
            Some(Ok(Event::Output(output))) => String::from_utf8_lossy(&output.bytes).trim().to_owned(),
            other => panic!("it says nothing: {other:?}"),
        }
    }

    async fn end(self) {
        self.engine.destroy(self.inside.sandbox.id()).await.unwrap();
        self.engine.remove_volume(self.volume).await.unwrap();
        self.engine.close().await;
    }
}

fn both(volume: VolumeId) -> View {
    View { source: Source::Volume(volume), at: path("/workspace/both"), writable: true }
}

#[tokio::test]
async fn writing_to_a_file_of_a_stopped_sandbox_after_its_snapshot() {
    let mut taker = Taker::new().await;
    let spec = SandboxSpec { views: vec![both(taker.volume)], ..SandboxSpec::new(Base::Host) };
    let giver = Inside::of(taker.engine.clone(), &spec).await;
    giver.root("echo 'of its own' > /opt/tool; chmod 777 /opt/tool").await.ok();
    giver.attack("root", &HANDED, &["file", DOOR, "/opt/tool"]).await.ok();
    assert_eq!(taker.said().await, "has");
    let (engine, id) = (taker.engine.clone(), giver.sandbox.id().clone());
    engine.stop(&id).await.unwrap();
    let name = SnapshotId::now();
    engine.snapshot(&id, name).await.unwrap();
    let fork = || async {
        let spec = SandboxSpec { base: Base::Snapshot(name), ..passing() };
        Inside { engine: engine.clone(), sandbox: engine.create(&SandboxId::random(), &spec).await.unwrap() }
    };
    let before = fork().await;
    assert_eq!(before.user("cat /opt/tool").await.ok(), "of its own");
    taker.inside.root("touch /tmp/go").await.ok();
    assert_eq!(taker.said().await, "11 of another", "the descriptor is as good as ever");
    let after = fork().await;
    for fork in [before, after] {
        assert_eq!(fork.user("cat /opt/tool").await.ok(), "of its own");
        engine.destroy(fork.sandbox.id()).await.unwrap();
    }
    // What it writes to are the files of the sandbox that gave it away, and no layer of anybody else.
    let again = engine.start(&id).await.unwrap();
    let again = Inside { engine: engine.clone(), sandbox: again };
    assert!(again.user("cat /opt/tool").await.ok().starts_with("of another"), "the control");
    engine.destroy(&id).await.unwrap();
    engine.remove_snapshot(name).await.unwrap();
    taker.end().await;
}

/// Nobody holds anything: then it is kept as it is, and not copied.
#[tokio::test]
async fn a_snapshot_of_a_stopped_sandbox_is_a_rename() {
    let engine = engine().await;
    let inside = Inside::of(engine.clone(), &SandboxSpec::new(Base::Host)).await;
    inside.root("echo x > /opt/file").await.ok();
    let id = inside.sandbox.id().clone();
    let own = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data/sandboxes").join(id.as_str()).join("fs/upper0/opt");
    engine.stop(&id).await.unwrap();
    assert!(own.join("file").exists(), "{own:?}");
    let name = SnapshotId::now();
    engine.snapshot(&id, name).await.unwrap();
    assert!(!own.exists());
    engine.destroy(&id).await.unwrap();
    engine.remove_snapshot(name).await.unwrap();
    engine.close().await;
}

/// The memory stays charged to the group that it was charged to.
#[tokio::test]
async fn memory_that_outlives_its_sandbox_is_not_charged_to_the_next_one() {
    const HELD: u64 = 48;
    let mut taker = Taker::new().await;
    let engine = taker.engine.clone();
    let limited = |mib: u64| Limits { memory: Some(mib << 20), ..Limits::default() };
    let spec = SandboxSpec { views: vec![both(taker.volume)], limits: limited(128), ..passing() };
    let giver = Inside::of(engine.clone(), &spec).await;
    let ids = giver.root("cat /proc/self/uid_map").await.ok();
    giver.attack("root", &HANDED, &["memory", DOOR, &HELD.to_string()]).await.ok();
    assert_eq!(taker.said().await, "has");
    engine.destroy(giver.sandbox.id()).await.unwrap();
    // Until the range of ids comes again, and the group with it.
    let mut begun = 0;
    until("another sandbox with the same ids", async || {
        begun += 1;
        let spec = SandboxSpec { limits: limited(HELD - 16), ..passing() };
        let next = engine.create(&SandboxId::random(), &spec).await;
        let sandbox = next.unwrap_or_else(|error| panic!("the {begun}th: {error}"));
        let next = Inside { engine: engine.clone(), sandbox };
        let same = next.user("cat /proc/self/uid_map").await.ok() == ids;
        assert_eq!(next.user("head -c 16000000 /dev/zero | tail -c 16000000 | wc -c").await.ok(), "16000000");
        engine.destroy(next.sandbox.id()).await.unwrap();
        same
    })
    .await;
    assert!(begun > 1, "they rest first");
    taker.inside.root("touch /tmp/go").await.ok();
    assert_eq!(taker.said().await, format!("{} of another", HELD << 20), "it was held all the time");
    taker.end().await;
}
