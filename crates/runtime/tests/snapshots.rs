//! What a killed server left of snapshots: records and what the provider has become one again.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::sync::Arc;

use cabana_runtime::{
    Ask, Caller, Clock, Credential, IdempotencyKey, Page, Place, Role, Runtime, SandboxId, Scope, Settings, SnapshotId,
    Tenant, Time, WantedKey,
    acts::{
        sandbox::Ensure,
        snapshot::{Delete, Take},
    },
};
use cabana_sandbox::Provider;
use cabana_store::{AboutSnapshot, Durability, NewCall, NewSnapshot, Reserved, Store};
use cabana_testkit::Fake;
use futures_util::TryStreamExt;
use sha2::{Digest, Sha256};

struct Stage {
    _dir: tempfile::TempDir,
    fake: Fake,
    runtime: Runtime,
    caller: Caller,
    sandbox: SandboxId,
    /// The provider's own.
    physical: SandboxId,
}

impl Stage {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        let fake = Fake::new();
        let runtime = open(&fake, store);
        let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Use, "test")).await.unwrap();
        let caller = runtime.access().admit(Credential(&issued.text)).await.unwrap();
        let place = Place::Scope(Scope::fixed("one").unwrap(), None);
        let ask = Ask { caller: caller.clone(), place, key: None, lease: None, front: "test" };
        let sandbox = runtime.call(ask, Ensure).await.unwrap().answer().await.unwrap().sandbox;
        let physical = runtime.sandbox(&caller, &sandbox).await.unwrap().physical;
        Self { _dir: dir, fake, runtime, caller, sandbox, physical }
    }

    fn ask(&self, key: Option<&str>) -> Ask {
        let key = key.map(|key| IdempotencyKey::new(key.as_bytes()));
        Ask {
            caller: self.caller.clone(),
            place: Place::Sandbox(self.sandbox.clone()),
            key,
            lease: None,
            front: "test",
        }
    }

    /// As the next server does.
    async fn again(&self) {
        open(&self.fake, self.runtime.store().clone()).recover().await.unwrap().finished().await;
    }

    /// A record whose snapshot is not taken.
    async fn claim(&self, id: SnapshotId) -> SnapshotId {
        let physical = SnapshotId::now();
        let (tenant, sandbox, at) = (self.caller.tenant.clone(), self.sandbox.clone(), Time::UNIX_EPOCH);
        self.runtime
            .store()
            .claim_snapshot(NewSnapshot { tenant, id, physical, sandbox, about: AboutSnapshot::default(), at })
            .await
            .unwrap();
        physical
    }

    async fn kept(&self) -> Vec<SnapshotId> {
        self.fake.snapshots().await.unwrap().try_collect().await.unwrap()
    }

    /// The public ids of those that are listed, and how many records there are in all.
    async fn records(&self) -> (Vec<SnapshotId>, usize) {
        let listed = self.runtime.snapshot_list(&self.caller, None, Page::first(100)).await.unwrap();
        let all = self.runtime.store().all_snapshots().await.unwrap();
        (listed.iter().map(|snapshot| snapshot.id).collect(), all.len())
    }
}

fn open(fake: &Fake, store: Store) -> Runtime {
    let settings = Settings { sandbox: Fake::spec(), ..Settings::default() };
    Runtime::new(Arc::new(fake.clone()), store, settings, Clock::at(Time::UNIX_EPOCH))
}

#[tokio::test]
async fn what_is_whole_stays() {
    let stage = Stage::new().await;
    let taken = stage.runtime.call(stage.ask(None), Take::default()).await.unwrap().answer().await.unwrap().snapshot;
    stage.again().await;
    assert_eq!(stage.records().await, (vec![taken], 1));
    assert_eq!(stage.kept().await.len(), 1);
}

#[tokio::test]
async fn one_that_was_taken_and_not_recorded_is_found_by_its_call() {
    let stage = Stage::new().await;
    for is_taken in [true, false] {
        let call = cabana_runtime::CallId::now();
        let key = format!("{is_taken}");
        // As the runtime reserves it.
        let place = format!("{:?}", Place::Sandbox(stage.sandbox.clone()));
        let digest = Sha256::new().chain_update("snapshot.take").chain_update([0]).chain_update(place);
        let new = NewCall {
            id: call,
            tenant: stage.caller.tenant.clone(),
            key: stage.caller.key,
            sandbox: Some(stage.sandbox.clone()),
            user: None,
            made: false,
            verb: "snapshot.take",
            front: "test",
            digest: digest.chain_update([0]).chain_update([0; 32]).finalize().into(),
            once: Some(Sha256::digest(&key).into()),
            argv: Vec::new(),
            at: Time::UNIX_EPOCH,
        };
        assert_eq!(stage.runtime.store().reserve(new).await, Ok(Reserved::Fresh));
        let id = SnapshotId::from(call.uuid());
        let physical = stage.claim(id).await;
        assert_eq!(stage.records().await.0.len(), usize::from(!is_taken), "nobody sees it before");
        if is_taken {
            stage.fake.snapshot(&stage.physical, physical).await.unwrap();
        }
        stage.again().await;
        let told = stage.runtime.call(stage.ask(Some(&key)), Take::default()).await.unwrap().answer().await;
        match is_taken {
            true => assert_eq!(told.unwrap().snapshot, id),
            false => assert!(matches!(told, Err(cabana_runtime::Error::Unknown)), "{told:?}"),
        }
        assert_eq!((stage.records().await.1, stage.kept().await.len()), (1, 1));
    }
}

#[tokio::test]
async fn what_was_left_half_way_goes_and_what_nobody_knows_of_stays() {
    let stage = Stage::new().await;
    // A record whose call has ended, with and without its snapshot.
    let half = stage.claim(SnapshotId::now()).await;
    stage.fake.snapshot(&stage.physical, half).await.unwrap();
    stage.claim(SnapshotId::now()).await;
    // One that was on its way out.
    let leaving = stage.runtime.call(stage.ask(None), Take::default()).await.unwrap().answer().await.unwrap().snapshot;
    stage.runtime.store().begin_snapshot_delete(&stage.caller.tenant, leaving).await.unwrap().unwrap();
    // One whose files are gone.
    let lost = stage.runtime.call(stage.ask(None), Take::default()).await.unwrap().answer().await.unwrap().snapshot;
    let lost = stage.runtime.snapshot(&stage.caller, lost).await.unwrap();
    stage.fake.remove_snapshot(lost.physical).await.unwrap();
    // One that has no record at all may be what is left of a lost database.
    let alone = SnapshotId::now();
    stage.fake.snapshot(&stage.physical, alone).await.unwrap();
    stage.again().await;
    assert_eq!(stage.records().await, (Vec::new(), 0));
    assert_eq!(stage.kept().await, [alone]);
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_taken_leaves_nothing() {
    let stage = Stage::new().await;
    stage.fake.destroy(&stage.physical).await.unwrap();
    let refused = stage.runtime.call(stage.ask(None), Take::default()).await.unwrap().answer().await.unwrap_err();
    assert_eq!(refused.code(), cabana_runtime::Code::SandboxNotFound);
    assert!(refused.to_string().contains(stage.sandbox.as_str()), "{refused}");
    assert_eq!((stage.records().await.1, stage.kept().await.len()), (0, 0));
    let nothing = stage.runtime.call(stage.ask(None), Delete(SnapshotId::now())).await.unwrap().answer().await;
    assert_eq!(nothing.unwrap_err().code(), cabana_runtime::Code::SnapshotNotFound);
}
