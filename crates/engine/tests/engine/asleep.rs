//! Sandboxes that are stopped: how little they take, and that nothing is lost by it.

use std::{fs, path::Path};

use cabana_sandbox::{Base, Found, Provider, SandboxId, SandboxSpec, SnapshotId, read_all, write_all};
use futures_util::TryStreamExt;

use crate::{
    inside::{host, path, shell},
    snapshots::Alone,
    stage,
};

/// What a stopped sandbox may take of the disk in which nothing was written.
const MOST: u64 = 16 << 10;

fn on_disk(dir: &Path) -> u64 {
    let said = host("du", &["-s", "--block-size=1", dir.to_str().unwrap()]);
    said.split_whitespace().next().unwrap().parse().unwrap()
}

fn parts(data: &Path, id: &SandboxId) -> Vec<String> {
    let names = |dir: &Path| -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let home = data.join("sandboxes").join(id.as_str());
    let mut all = [names(&home), names(&home.join("fs"))].concat();
    all.sort();
    all
}

const LOOKS: &str =
    "stat -c '%n %a %u %g %Y %s' / /usr /home/user && getfattr -d -m - / /usr 2>/dev/null; ls -A / | sort";

#[tokio::test]
async fn a_stopped_sandbox_in_which_nothing_was_written_takes_little_of_the_disk() {
    let (engine, data) = (stage::engine().await, stage::shared_data());
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    let looks = shell(&*sandbox, "root", LOOKS).await.ok();
    for _ in 0..3 {
        engine.stop(&id).await.unwrap();
        assert_eq!(parts(&data, &id), ["fs", "record.json"]);
        let taken = on_disk(&data.join("sandboxes").join(id.as_str()));
        assert!(taken <= MOST, "{taken}");
        engine.stop(&id).await.unwrap();
        let sandbox = engine.start(&id).await.unwrap();
        assert_eq!(shell(&*sandbox, "root", LOOKS).await.ok(), looks, "nobody inside can tell");
    }
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn what_was_done_to_the_root_of_a_sandbox_stays_done() {
    let (engine, data) = (stage::engine().await, stage::shared_data());
    for (change, kept) in [
        ("chmod 751 /", "upper0"),
        ("chown 12:34 /usr", "upper1"),
        ("touch /new && rm /new", "upper0"),
        ("python3 -c 'import os; os.setxattr(\"/\", \"user.mark\", b\"here\")'", "upper0"),
        ("rm /usr/bin/tac", "upper1"),
    ] {
        let id = SandboxId::random();
        let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
        shell(&*sandbox, "root", change).await.ok();
        let looks = shell(&*sandbox, "root", LOOKS).await.ok();
        engine.stop(&id).await.unwrap();
        assert_eq!(parts(&data, &id), ["fs", "record.json", kept], "{change}");
        let sandbox = engine.start(&id).await.unwrap();
        assert_eq!(shell(&*sandbox, "root", LOOKS).await.ok(), looks, "{change}");
        engine.destroy(&id).await.unwrap();
    }
    engine.close().await;
}

#[tokio::test]
async fn what_is_put_away_can_be_kept_saved_and_restored() {
    let alone = Alone::new().await;
    let sandbox = alone.create(&alone.spec()).await;
    let id = sandbox.id().clone();
    alone.engine.stop(&id).await.unwrap();
    let base = alone.engine.snapshot(&id, SnapshotId::now()).await.unwrap();
    assert_eq!(parts(alone.data(), &id), ["fs", "record.json"], "a snapshot takes nothing out");
    let fork = alone.create(&SandboxSpec { base, ..alone.spec() }).await;
    let root = fork.files(Some(&cabana_sandbox::User::root()));
    write_all(&*root, &path("/etc/mark"), "of the fork").await.unwrap();
    shell(&*fork, "root", "chmod 700 /").await.ok();
    alone.engine.stop(fork.id()).await.unwrap();
    let base = alone.engine.snapshot(fork.id(), SnapshotId::now()).await.unwrap();
    // The layer above the kept one looks as that does, and is put away for that very reason.
    let second = alone.create(&SandboxSpec { base, ..alone.spec() }).await;
    alone.engine.stop(second.id()).await.unwrap();
    assert_eq!(parts(alone.data(), second.id()), ["fs", "record.json"]);
    let second = alone.engine.start(second.id()).await.unwrap();
    assert_eq!(shell(&*second, "root", "stat -c %a / && cat /etc/mark").await.ok(), "700\nof the fork");
    alone.engine.stop(second.id()).await.unwrap();
    let saved: Vec<_> = alone.engine.save(second.id()).await.unwrap().try_collect().await.unwrap();
    let restored = SandboxId::random();
    let saved = futures_util::StreamExt::boxed(futures_util::stream::iter(saved.into_iter().map(Ok)));
    alone.engine.restore(&restored, &alone.spec(), saved).await.unwrap();
    assert_eq!(parts(alone.data(), &restored), ["fs", "record.json"]);
    let restored = alone.engine.start(&restored).await.unwrap();
    let root = restored.files(Some(&cabana_sandbox::User::root()));
    assert_eq!(read_all(&*root, &path("/etc/mark"), 100).await.unwrap(), "of the fork");
    assert_eq!(shell(&*restored, "root", "stat -c %a /").await.ok(), "700");
    alone.engine.close().await;
}

#[tokio::test]
async fn who_opens_a_data_directory_reads_no_sandbox_of_it() {
    let alone = Alone::new().await;
    let sandbox = alone.create(&alone.spec()).await;
    let id = sandbox.id().clone();
    alone.engine.stop(&id).await.unwrap();
    let sandboxes = alone.data().join("sandboxes");
    // Who reads one of these fails: their records are none.
    let broken = SandboxId::random();
    fs::create_dir_all(sandboxes.join(broken.as_str()).join("fs")).unwrap();
    fs::write(sandboxes.join(broken.as_str()).join("record.json"), "no record").unwrap();
    alone.engine.close().await;
    let engine = cabana_engine::Engine::open(stage::config(alone.data().into())).await.unwrap();
    let listed: Vec<_> = engine.list().await.unwrap().try_collect().await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Stopped));
    let other = engine.create(&SandboxId::random(), &alone.spec()).await.unwrap();
    engine.start(&id).await.unwrap();
    assert!(engine.tidy().await.unwrap(), "there is nothing to remove");
    engine.destroy(other.id()).await.unwrap();
    engine.close().await;
}
