use cabana_model::{Outcome, SandboxId, SnapshotId, SnapshotState};
use cabana_store::{AboutSnapshot, Done, Error, NewSnapshot, Page, Reserved, SnapshotStep, Store};

use crate::stage::{Stage, at, call, chain, done, tenant};

fn new(name: &str, sandbox: &SandboxId) -> NewSnapshot {
    let (id, physical) = (SnapshotId::now(), SnapshotId::now());
    NewSnapshot {
        tenant: tenant(name),
        id,
        physical,
        sandbox: sandbox.clone(),
        about: AboutSnapshot::default(),
        at: at(0),
    }
}

async fn ready(store: &Store, new: &NewSnapshot) {
    let call = call(&new.tenant);
    assert_eq!(store.reserve(call.clone()).await, Ok(Reserved::Fresh));
    store.claim_snapshot(new.clone()).await.unwrap();
    store.record_snapshot(done(&call), SnapshotStep::Ready(new.id)).await.unwrap();
}

#[tokio::test]
async fn a_snapshot_is_there_with_the_end_of_its_call() {
    let stage = Stage::new();
    let (us, new) = (tenant("a"), new("a", &SandboxId::random()));
    let call = call(&us);
    stage.store.reserve(call.clone()).await.unwrap();
    stage.store.claim_snapshot(new.clone()).await.unwrap();
    assert_eq!(stage.store.snapshot(&us, new.id).await.unwrap(), None);
    assert_eq!(stage.store.any_snapshot(&us, new.id).await.unwrap().unwrap().state, SnapshotState::Making);
    let stage = stage.again().await;
    let store = &stage.store;
    store.record_snapshot(done(&call), SnapshotStep::Ready(new.id)).await.unwrap();
    let found = store.snapshot(&us, new.id).await.unwrap().unwrap();
    assert_eq!((found.physical, &found.sandbox, found.created), (new.physical, &new.sandbox, at(0)));
    assert_eq!(chain(store, &us).await.len(), 1);
    // All of it or nothing: the call has ended already.
    let again = store.record_snapshot(done(&call), SnapshotStep::Gone(new.id)).await;
    assert!(matches!(again, Err(Error::Refused(_))));
    assert!(store.snapshot(&us, new.id).await.unwrap().is_some());
    assert_eq!(chain(store, &us).await.len(), 1);
    assert_eq!(store.snapshot(&tenant("b"), new.id).await.unwrap(), None, "it is nobody else's");
}

#[tokio::test]
async fn an_end_without_its_record_is_no_end() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let call = call(&us);
    store.reserve(call.clone()).await.unwrap();
    let refused = store.record_snapshot(done(&call), SnapshotStep::Ready(SnapshotId::now())).await;
    assert!(matches!(refused, Err(Error::Refused(_))));
    assert_eq!(store.open_calls().await.unwrap().len(), 1);
    assert!(chain(&store, &us).await.is_empty());
    let failed = Done { outcome: Outcome::Unknown, ..done(&call) };
    store.record_snapshot(failed, SnapshotStep::Gone(SnapshotId::now())).await.unwrap();
}

#[tokio::test]
async fn snapshots_are_listed_newest_first_and_deleted_by_their_own_tenant() {
    let Stage { store, dir: _dir } = Stage::new();
    let (us, boxes) = (tenant("a"), [SandboxId::random(), SandboxId::random()]);
    let mut made = Vec::new();
    for n in 0..6 {
        let new = new("a", &boxes[n % 2]);
        ready(&store, &new).await;
        made.insert(0, new.id);
    }
    ready(&store, &new("b", &boxes[0])).await;
    let list = async |sandbox: Option<&SandboxId>, limit, after| {
        let found = store.snapshots(&us, None, sandbox, Page { limit, after }).await.unwrap();
        found.into_iter().map(|found| found.id).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 100, None).await, made);
    assert_eq!(list(None, 2, Some(made[1].to_string())).await, made[2..4]);
    assert_eq!(list(Some(&boxes[1]), 100, None).await, [made[0], made[2], made[4]]);
    assert_eq!(store.snapshots(&us, None, None, Page { limit: 1, after: Some("x".into()) }).await, Err(Error::Cursor));

    assert_eq!(store.begin_snapshot_delete(&tenant("b"), made[0]).await.unwrap(), None);
    for _ in 0..2 {
        let leaving = store.begin_snapshot_delete(&us, made[0]).await.unwrap().unwrap();
        assert_eq!(leaving.state, SnapshotState::Deleting);
    }
    assert_eq!(list(None, 100, None).await, made[1..]);
    store.forget_snapshot(&us, made[0]).await.unwrap();
    assert_eq!(store.begin_snapshot_delete(&us, made[0]).await.unwrap(), None);
    assert_eq!(store.all_snapshots().await.unwrap().len(), 6);
}

#[tokio::test]
async fn lists_have_no_notes_which_may_be_long() {
    let Stage { store, dir: _dir } = Stage::new();
    let (us, sandbox) = (tenant("a"), SandboxId::random());
    let about = AboutSnapshot { name: Some("one".into()), note: Some("\"long\"".into()), built: false };
    let new = NewSnapshot { about: about.clone(), ..new("a", &sandbox) };
    ready(&store, &new).await;
    let lists = [
        store.snapshots(&us, None, None, Page::first(10)).await.unwrap(),
        store.snapshots_named(&us, None, "one").await.unwrap(),
        store.all_snapshots().await.unwrap(),
    ];
    for list in lists {
        assert_eq!(
            list.iter().map(|one| &one.about).collect::<Vec<_>>(),
            [&AboutSnapshot { note: None, ..about.clone() }]
        );
    }
    assert_eq!(store.snapshot(&us, new.id).await.unwrap().unwrap().about, about);
    assert_eq!(store.snapshot_named(&us, None, "one").await.unwrap().unwrap().about, about);
}
