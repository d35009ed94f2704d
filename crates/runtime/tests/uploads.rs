//! Files on their way into a build: what is cut off leaves nothing, and what is kept is counted, bounded and removed.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use cabana_model::{Exceeded, Quota, Resource};
use cabana_runtime::{
    Ask, Call, Caller, Clock, Code, Credential, Error, Hash, Owner, Place, Result, Role, Runtime, Settings, Tenant,
    Time, WantedKey,
    acts::{build::Upload, sandbox::Ensure},
};
use cabana_sandbox::Stream;
use cabana_store::{Durability, Store};
use cabana_testkit::Fake;
use futures_util::{StreamExt, stream};
use jiff::SignedDuration;
use tokio::{sync::mpsc, time::timeout};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stage {
    dir: tempfile::TempDir,
    runtime: Runtime,
    clock: Clock,
}

impl Stage {
    fn new(quota: Quota) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        // Files have times of the machine.
        let clock = Clock::at(Time::now());
        let data = Some(dir.path().to_owned());
        let settings = Settings { sandbox: Fake::spec(), quota, data, ..Settings::default() };
        let runtime = Runtime::new(Arc::new(Fake::new()), store, settings, clock.clone());
        Self { dir, runtime, clock }
    }

    async fn caller(&self, tenant: &str) -> Caller {
        let tenant = Tenant::new(tenant).unwrap();
        let issued = self.runtime.access().issue(WantedKey::new(tenant, Role::Use, "test")).await.unwrap();
        self.runtime.access().admit(Credential(&issued.text)).await.unwrap()
    }

    async fn begin(&self, caller: &Caller, hash: char, body: Stream<Bytes>) -> Result<Call<u64>> {
        let upload = Upload { hash: String::from(hash).repeat(64).parse::<Hash>().unwrap(), body };
        self.runtime.call(ask(caller, Place::Nowhere), upload).await
    }

    async fn upload(&self, caller: &Caller, hash: char, bytes: usize) -> Result<u64> {
        let body = stream::iter([Ok(Bytes::from(vec![7; bytes]))]).boxed();
        self.begin(caller, hash, body).await?.answer().await
    }

    fn place(&self, tenant: &str) -> PathBuf {
        self.dir.path().join("uploads").join(tenant)
    }

    fn files(&self, tenant: &str) -> usize {
        self.place(tenant).read_dir().map_or(0, Iterator::count)
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let waited = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
    }

    async fn stored(&self, caller: &Caller) -> u128 {
        self.runtime.measure_stored().await.unwrap();
        let owner = Owner { tenant: caller.tenant.clone(), key: None };
        self.runtime.standing(owner).await.unwrap().used.stored_bytes
    }
}

fn ask(caller: &Caller, place: Place) -> Ask {
    Ask { caller: caller.clone(), place, key: None, lease: None, front: "test" }
}

/// One that goes on as long as this is held.
fn endless() -> (mpsc::Sender<Bytes>, Stream<Bytes>) {
    let (pieces, body) = mpsc::channel(1);
    let body = stream::unfold(body, |mut body| async { Some((Ok(body.recv().await?), body)) });
    (pieces, body.boxed())
}

#[tokio::test]
async fn an_upload_that_is_cancelled_leaves_no_file() {
    let stage = Stage::new(Quota::NONE);
    let us = stage.caller("us").await;
    let (pieces, body) = endless();
    let call = stage.begin(&us, 'a', body).await.unwrap();
    pieces.send(Bytes::from(vec![7; 1 << 20])).await.unwrap();
    stage.until("it is written", || stage.files("us") == 1).await;
    call.cancel();
    assert_eq!(call.answer().await.unwrap_err().code(), Code::Cancelled);
    assert_eq!(stage.files("us"), 0);
}

#[tokio::test]
async fn what_a_killed_server_left_half_written_is_removed_by_the_next() {
    let stage = Stage::new(Quota::NONE);
    let us = stage.caller("us").await;
    stage.upload(&us, 'a', 1000).await.unwrap();
    let draft = stage.place("us").join(format!("{}.{}", "b".repeat(64), "0".repeat(32)));
    std::fs::write(&draft, "half of it").unwrap();
    stage.runtime.recover().await.unwrap().finished().await;
    assert!(!draft.exists());
    assert_eq!(stage.files("us"), 1, "what came as a whole stays");
}

#[tokio::test]
async fn of_one_tenant_four_uploads_are_written_at_once_and_the_next_one_waits() {
    let stage = Stage::new(Quota::NONE);
    let (us, them) = (stage.caller("us").await, stage.caller("them").await);
    let mut under_way = Vec::new();
    for hash in "abcde".chars() {
        let (pieces, body) = endless();
        under_way.push((stage.begin(&us, hash, body).await.unwrap(), pieces));
    }
    stage.until("four are written", || stage.files("us") == 4).await;
    stage.upload(&them, 'a', 10).await.unwrap();
    assert_eq!(stage.files("us"), 4, "nobody else waits for them");
    for (call, pieces) in under_way {
        drop(pieces);
        timeout(PATIENCE, call.answer()).await.unwrap().unwrap();
    }
    assert_eq!(stage.files("us"), 5);
}

#[tokio::test]
async fn uploads_count_as_stored_and_make_room_once_no_build_comes_for_them() {
    let stage = Stage::new(Quota { stored_bytes: Some(1000), ..Quota::NONE });
    let us = stage.caller("us").await;
    stage.upload(&us, 'a', 2000).await.unwrap();
    assert!(stage.stored(&us).await >= 2000);
    let refused = stage.upload(&us, 'b', 1).await;
    assert!(matches!(refused, Err(Error::Exceeded(Exceeded { quota: Resource::Stored, .. }))), "{refused:?}");
    stage.clock.advance(SignedDuration::from_hours(2));
    assert!(stage.stored(&us).await < 1000);
    stage.runtime.call(ask(&us, Place::New(None)), Ensure).await.unwrap().answer().await.unwrap();
}

#[tokio::test]
async fn old_uploads_go_though_their_tenant_never_comes_back() {
    let stage = Stage::new(Quota::NONE);
    for tenant in ["us", "them"] {
        stage.upload(&stage.caller(tenant).await, 'a', 1000).await.unwrap();
    }
    let uploads = async |dry_run| {
        let kinds = stage.runtime.collect(dry_run).await.unwrap().kinds;
        let of_uploads = kinds.into_iter().find(|kind| kind.kind == "uploads").unwrap();
        (of_uploads.count, of_uploads.bytes, of_uploads.kept)
    };
    assert_eq!(uploads(false).await, (0, 0, 2));
    stage.clock.advance(SignedDuration::from_hours(8 * 24));
    assert_eq!(uploads(true).await, (2, 2000, 0));
    assert_eq!(stage.files("us"), 1, "a dry run changes nothing");
    assert_eq!(uploads(false).await, (2, 2000, 0));
    assert_eq!(stage.files("us") + stage.files("them"), 0);
    assert_eq!(uploads(false).await, (0, 0, 0));
}
