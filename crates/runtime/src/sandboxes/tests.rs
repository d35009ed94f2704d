//! Who stands in line for one sandbox, and what its lease is, whichever answer comes first.

use std::{sync::Arc, time::Duration};

use cabana_model::{Code, Lifecycle, Role, Tenant, Time};
use cabana_store::{Durability, Lease, Record, Store, Token};
use cabana_testkit::Fake;
use futures_util::future::join;

use super::{Slot, Wanted, slot::PARSED_AT_ONCE};
use crate::{
    Ask, Call, Caller, Clock, Credential, Place, Result, Runtime, Scope, Settings, WantedKey,
    acts::{
        lease::{Release, Renew, Take},
        sandbox::{Become, Change, Changed, Ensure, Shape},
    },
};

struct Stage {
    _dir: tempfile::TempDir,
    runtime: Runtime,
    caller: Caller,
    slot: Arc<Slot>,
}

impl Stage {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        let settings = Settings { sandbox: Fake::spec(), ..Settings::default() };
        let clock = Clock::at("2026-01-01T12:00:00Z".parse::<Time>().unwrap());
        let runtime = Runtime::new(Arc::new(Fake::new()), store, settings, clock);
        let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Use, "test")).await.unwrap();
        let caller = runtime.access().admit(Credential(&issued.text)).await.unwrap();
        let place = Place::Scope(Scope::fixed("one").unwrap(), None);
        let ask = Ask { caller: caller.clone(), place, key: None, lease: None, front: "test" };
        let made = runtime.call(ask, Ensure).await.unwrap().answer().await.unwrap();
        let slot = runtime.0.sandboxes.of_id(&caller, &made.sandbox).await.unwrap();
        Self { _dir: dir, runtime, caller, slot }
    }

    fn ask(&self, lease: Option<Token>) -> Ask {
        let place = Place::Sandbox(self.slot.record().id.clone());
        Ask { caller: self.caller.clone(), place, key: None, lease, front: "test" }
    }

    /// It stands in line when this returns.
    async fn queued(&self, lease: Option<Token>, change: Change) -> Call<Changed> {
        let (before, _) = self.slot.changing.waiting();
        let call = self.runtime.call(self.ask(lease), change).await.unwrap();
        self.until_waiting(|in_line, _| in_line > before).await;
        call
    }

    async fn until_waiting(&self, holds: impl Fn(usize, usize) -> bool) {
        let looking = async {
            while let (in_line, ending) = self.slot.changing.waiting()
                && !holds(in_line, ending)
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), looking).await.expect("it stands in line");
    }

    async fn lease(&self, holder: &str) -> Result<Token> {
        let take = Take { holder: holder.into(), lasts: Duration::from_secs(600), patience: Duration::ZERO };
        Ok(self.runtime.call(self.ask(None), take).await?.answer().await?.token)
    }

    async fn stored(&self) -> Record {
        self.runtime.store().by_physical(&self.slot.record().physical).await.unwrap().unwrap()
    }
}

fn env(value: &str) -> Change {
    Change { env: Some([("A".to_owned(), value.to_owned())].into()), ..Change::default() }
}

#[tokio::test]
async fn a_change_in_line_takes_back_nothing_of_those_before_it() {
    let stage = Stage::new().await;
    let change = |lifecycle| Change { lifecycle: Some(lifecycle), ..Change::default() };
    let under_way = stage.slot.changing.lock().await;
    let idle = stage.queued(None, change(Lifecycle { idle_sec: Some(70), ..Lifecycle::default() })).await;
    let hard = stage.queued(None, change(Lifecycle { hard_sec: Some(80), ..Lifecycle::default() })).await;
    let env = stage.queued(None, env("x")).await;
    drop(under_way);
    for changed in [idle.answer().await, hard.answer().await, env.answer().await] {
        changed.unwrap();
    }
    let Wanted { lifecycle, env, .. } = Wanted::of(&stage.stored().await).unwrap();
    assert_eq!((lifecycle.idle_sec, lifecycle.hard_sec, &*env["A"]), (Some(70), Some(80), "x"));
}

#[tokio::test]
async fn a_long_record_is_parsed_off_the_workers_and_not_again_after_a_change() {
    let stage = Stage::new().await;
    let long = Change { note: Some(("test".into(), "x".repeat(PARSED_AT_ONCE).into())), ..Change::default() };
    stage.runtime.call(stage.ask(None), long).await.unwrap().answer().await.unwrap();
    let known = stage.slot.parsed(&stage.slot.record()).expect("the record was written from it");
    let stored = stage.stored().await;
    assert_eq!(known.notes, Wanted::of(&stored).unwrap().notes);
    stage.slot.set_record(Record { spec: format!("{} ", stored.spec).into(), ..stored });
    assert!(stage.slot.parsed(&stage.slot.record()).is_none(), "the control");
    stage.runtime.call(stage.ask(None), Release(Token::from_u128(1))).await.unwrap().answer().await.unwrap_err();
    assert!(stage.slot.parsed(&stage.slot.record()).is_some(), "before a call needs it");
}

#[tokio::test]
async fn a_stop_that_is_refused_for_a_lease_leaves_the_holders_changes_in_line() {
    let stage = Stage::new().await;
    let token = stage.lease("holder").await.unwrap();
    let under_way = stage.slot.changing.lock().await;
    let change = stage.queued(Some(token), env("x")).await;
    let stop = stage.runtime.call(stage.ask(None), Become(Shape::Stopped)).await.unwrap();
    stage.until_waiting(|in_line, _| in_line == 2).await;
    drop(under_way);
    change.answer().await.unwrap();
    assert_eq!(stop.answer().await.unwrap_err().code(), Code::SandboxBusy);
    // The holder's own stop overtakes them.
    let under_way = stage.slot.changing.lock().await;
    let change = stage.queued(Some(token), env("y")).await;
    let stop = stage.runtime.call(stage.ask(Some(token)), Become(Shape::Stopped)).await.unwrap();
    stage.until_waiting(|_, ending| ending == 1).await;
    drop(under_way);
    assert_eq!(change.answer().await.unwrap_err().code(), Code::SandboxGone);
    stop.answer().await.unwrap();
}

#[tokio::test]
async fn a_record_that_comes_late_does_not_bring_back_a_lease() {
    let stage = Stage::new().await;
    let token = stage.lease("first").await.unwrap();
    let late = stage.stored().await;
    assert_eq!(late.lease.as_ref().map(|lease| lease.token), Some(token), "the control");
    stage.runtime.call(stage.ask(None), Release(token)).await.unwrap().answer().await.unwrap();
    stage.slot.set_record(late);
    assert_eq!(stage.slot.record().lease, None);
    let token = stage.lease("second").await.unwrap();
    assert!(stage.runtime.0.sandboxes.holds(&stage.slot, token).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_lease_that_is_known_is_the_one_that_is_recorded() {
    let stage = Stage::new().await;
    for round in 0..200 {
        let Ok(token) = stage.lease("holder").await else { panic!("round {round}: nobody has it") };
        let lasts = Duration::from_secs(700);
        let renew = async { stage.runtime.call(stage.ask(None), Renew { token, lasts }).await.unwrap().answer().await };
        let release = async { stage.runtime.call(stage.ask(None), Release(token)).await.unwrap().answer().await };
        let others = join(stage.lease("another"), stage.lease("a third"));
        let (_, released, (another, third)) = tokio::join!(renew, release, others);
        released.unwrap();
        let told = |lease: Option<Lease>| lease.map(|lease| lease.token);
        let (known, stored) = (told(stage.slot.record().lease.clone()), told(stage.stored().await.lease));
        assert_eq!((round, known), (round, stored));
        let taken: Vec<_> = [another, third].into_iter().flatten().collect();
        assert_eq!(stored.into_iter().collect::<Vec<_>>(), taken, "round {round}");
        for token in taken {
            stage.runtime.call(stage.ask(None), Release(token)).await.unwrap().answer().await.unwrap();
        }
    }
}
