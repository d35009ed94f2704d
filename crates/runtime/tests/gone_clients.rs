//! Clients that go away while their call is being accepted.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cabana_runtime::{
    Act, Ask, Caller, Clock, Code, Credential, Cx, IdempotencyKey, Needs, Place, Result, Role, Runtime, Settings,
    Tenant, Time, WantedKey, acts::sandbox::Ensure,
};
use cabana_store::{Durability, Page, Store};
use cabana_testkit::Fake;
use futures_util::{FutureExt, future::join_all};
use tokio::time::timeout;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stage {
    _dir: tempfile::TempDir,
    runtime: Runtime,
    caller: Caller,
}

impl Stage {
    /// Each write waits for the disk, so a client can go away before it is done.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        let settings = Settings { sandbox: Fake::spec(), ..Settings::default() };
        let runtime = Runtime::new(Arc::new(Fake::new()), store, settings, Clock::at(Time::now()));
        let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Use, "test")).await.unwrap();
        let caller = runtime.access().admit(Credential(&issued.text)).await.unwrap();
        Self { _dir: dir, runtime, caller }
    }

    fn ask(&self, place: Place, key: usize) -> Ask {
        let key = Some(IdempotencyKey::new(key.to_string().as_bytes()));
        Ask { caller: self.caller.clone(), place, key, lease: None, front: "test" }
    }

    async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        let waited = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
    }

    async fn sandboxes(&self) -> usize {
        let page = Page { after: None, limit: 100 };
        self.runtime.sandbox_list(&self.caller, None, page).await.unwrap().len()
    }
}

/// Counts how often it was run.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Act for Count {
    const VERB: &'static str = "test.count";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, _cx: Cx) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn a_call_whose_client_goes_away_while_it_is_reserved_goes_on_and_the_same_key_finds_it() {
    let (stage, count) = (Stage::new().await, Count::default());
    let call = |key| stage.runtime.call(stage.ask(Place::Nowhere, key), count.clone());
    // The store may be fast now and then.
    let key = (0..).find(|key| call(*key).now_or_never().is_none()).unwrap();
    call(key).await.unwrap().answer().await.unwrap();
    stage.until("no call is under way", async || stage.runtime.load().1 == 0).await;
    assert_eq!(count.0.load(Ordering::SeqCst), key + 1, "each ran once");
}

#[tokio::test]
async fn a_sandbox_whose_client_goes_away_while_it_is_claimed_is_there_once() {
    let stage = Stage::new().await;
    let make = |key| stage.runtime.call(stage.ask(Place::New(None), key), Ensure);
    let key = (0..).find(|key| make(*key).now_or_never().is_none()).unwrap();
    make(key).await.unwrap().answer().await.unwrap();
    stage.until("no call is under way", async || stage.runtime.load().1 == 0).await;
    stage.until("each is there once", async || stage.sandboxes().await == key + 1).await;
}

#[tokio::test]
async fn one_that_is_there_for_its_call_alone_goes_with_it_when_its_client_goes() {
    let stage = Stage::new().await;
    let ensure = |key| stage.runtime.call(stage.ask(Place::Once(None), key), Ensure);
    let key = (0..).find(|key| ensure(*key).now_or_never().is_none()).unwrap();
    ensure(key).await.unwrap().answer().await.unwrap();
    stage.until("none is left", async || stage.runtime.load().1 == 0 && stage.sandboxes().await == 0).await;
}

/// Does not end by itself.
struct Wait;

impl Act for Wait {
    const VERB: &'static str = "test.wait";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.cancel.cancelled().await;
        Ok(())
    }
}

#[tokio::test]
async fn a_tenant_has_so_many_calls_under_way_and_another_finds_room() {
    const MOST: usize = 16_384;
    let stage = Stage::new().await;
    let ask = |caller: &Caller| Ask { key: None, caller: caller.clone(), ..stage.ask(Place::Nowhere, 0) };
    let mut waiting = Vec::new();
    while waiting.len() < MOST {
        let some = (0..1024).map(|_| stage.runtime.call(ask(&stage.caller), Wait));
        waiting.extend(join_all(some).await.into_iter().map(Result::unwrap));
    }
    let late = stage.runtime.call(ask(&stage.caller), Wait).await;
    assert!(late.is_err_and(|error| error.code() == Code::ServerBusy));
    let other = Caller { tenant: Tenant::new("other").unwrap(), ..stage.caller.clone() };
    for call in [stage.runtime.call(ask(&other), Wait).await.unwrap(), waiting.pop().unwrap()] {
        call.cancel();
        call.answer().await.unwrap();
    }
    drop(stage.runtime.call(ask(&stage.caller), Wait).await.unwrap());
}
