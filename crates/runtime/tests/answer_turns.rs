//! Answers that wait, because their tenant's clients do not take what they were told before.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{sync::Arc, time::Duration};

use cabana_runtime::{
    Act, Ask, Caller, Clock, Code, Credential, Cx, IdempotencyKey, Needs, Place, Quota, Result, Role, Runtime,
    Settings, Tenant, Time, WantedKey,
};
use cabana_store::{Durability, Store};
use cabana_testkit::Fake;
use futures_util::FutureExt;
use tokio::{sync::Semaphore, time::timeout};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// What one tenant may have of answers.
const SHARE: usize = 64 << 20;

struct Stage {
    _dir: tempfile::TempDir,
    runtime: Runtime,
    caller: Caller,
}

impl Stage {
    async fn new(quota: Quota) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        let settings = Settings { sandbox: Fake::spec(), quota, ..Settings::default() };
        let runtime = Runtime::new(Arc::new(Fake::new()), store, settings, Clock::at(Time::now()));
        let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Use, "test")).await.unwrap();
        let caller = runtime.access().admit(Credential(&issued.text)).await.unwrap();
        Self { _dir: dir, runtime, caller }
    }

    fn ask(&self, key: Option<&str>) -> Ask {
        let key = key.map(|key| IdempotencyKey::new(key.as_bytes()));
        Ask { caller: self.caller.clone(), place: Place::Nowhere, key, lease: None, front: "test" }
    }
}

/// Answers at length once it may.
#[derive(Clone)]
struct Say(Arc<Semaphore>);

fn long() -> String {
    "word ".repeat(4 << 10)
}

impl Act for Say {
    const VERB: &'static str = "test.say";
    type Answer = String;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, _: Cx) -> Result<String> {
        let _may = self.0.acquire().await;
        Ok(long())
    }
}

#[tokio::test]
async fn who_owes_too_much_is_told_what_was_done_one_at_a_time_and_another_tenant_at_once() {
    let stage = Stage::new(Quota::default()).await;
    let (runtime, tenant) = (&stage.runtime, &stage.caller.tenant);
    let may = Arc::new(Semaphore::new(1));
    let mut calls = Vec::new();
    for _ in 0..3 {
        let call = runtime.call(stage.ask(None), Say(may.clone())).await.unwrap();
        runtime.ended_call(&stage.caller, call.id()).await.unwrap();
        calls.push(Box::pin(call.answer_in_turn(runtime, tenant)));
    }
    let mut untaken = runtime.list_memory(tenant).owed();
    assert!(untaken.grow(2 * SHARE), "it is owed");
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none(), "nothing is made of it yet");
    }
    assert!(runtime.answer_turn(&Tenant::new("other").unwrap()).now_or_never().is_some());
    drop(calls.remove(0)); // the client of the first in the queue goes away
    assert!(calls.iter_mut().all(|call| call.as_mut().now_or_never().is_none()));
    untaken.clear();
    let [second, mut third] = calls.try_into().ok().unwrap();
    let (answer, turn) = timeout(PATIENCE, second).await.expect("its turn comes").unwrap();
    assert_eq!(answer, long(), "as it was recorded");
    assert!(third.as_mut().now_or_never().is_none(), "what the one before makes is not charged yet");
    drop(turn);
    assert_eq!(timeout(PATIENCE, third).await.expect("its turn comes").unwrap().0, long());
    assert!(runtime.answer_turn(tenant).now_or_never().is_some());
}

#[tokio::test]
async fn who_repeats_a_call_counts_until_it_is_answered_and_is_refused_where_there_is_no_room() {
    let stage = Stage::new(Quota { concurrent_calls: Some(2), ..Quota::default() }).await;
    let (runtime, tenant) = (&stage.runtime, &stage.caller.tenant);
    let may = Arc::new(Semaphore::new(0));
    let call = |key| runtime.call(stage.ask(key), Say(may.clone()));
    let first = call(Some("key")).await.unwrap();
    let repeated = call(Some("key")).await.unwrap();
    assert_eq!(repeated.id(), first.id());
    assert!(call(None).await.is_err_and(|error| error.code() == Code::QuotaExceeded), "both count");
    let beyond = call(Some("key")).await.unwrap();
    assert_eq!(beyond.id(), first.id(), "the same key finds the same call, whatever the quota");
    let mut untaken = runtime.list_memory(tenant).owed();
    assert!(untaken.grow(2 * SHARE), "it is owed");
    may.add_permits(1);
    assert_eq!(first.answer().await.unwrap(), long(), "what was done is told");
    assert!(repeated.answer().await.is_err_and(|error| error.code() == Code::ServerBusy));
    assert!(beyond.answer_in_turn(runtime, tenant).await.is_err_and(|error| error.code() == Code::ServerBusy));
    untaken.clear();
    assert_eq!(call(Some("key")).await.unwrap().answer().await.unwrap(), long(), "it may be asked again");
    let others = [call(None).await.unwrap(), call(None).await.unwrap()]; // nothing counts any more
    for other in others {
        assert_eq!(other.answer().await.unwrap(), long());
    }
}

#[tokio::test]
async fn a_tenant_has_so_many_requests_under_way_and_another_finds_room() {
    const MOST: usize = 4096;
    let stage = Stage::new(Quota::default()).await;
    let [many, few] = ["many", "few"].map(|name| Tenant::new(name).unwrap());
    let mut held: Vec<_> = (0..MOST).map(|_| stage.runtime.request_place(&many).unwrap()).collect();
    assert!(stage.runtime.request_place(&many).is_err_and(|error| error.code() == Code::ServerBusy));
    assert!(stage.runtime.request_place(&few).is_ok());
    held.pop();
    assert!(stage.runtime.request_place(&many).is_ok());
}
