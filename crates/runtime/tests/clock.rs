//! A clock that jumps: what is recorded stays in order, and what is to end ends.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::sync::Arc;

use cabana_runtime::{
    Ask, Clock, Credential, Error, Place, Role, Runtime, Scope, Settings, Tenant, Time, WantedKey,
    acts::sandbox::{Become, Ensure, Shape},
};
use cabana_store::{Durability, Store};
use cabana_testkit::Fake;
use jiff::SignedDuration;

struct Stage {
    _dir: tempfile::TempDir,
    runtime: Runtime,
    clock: Clock,
}

fn stage() -> Stage {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Durability::Kill).unwrap();
    let clock = Clock::at("2026-01-01T12:00:00Z".parse::<Time>().unwrap());
    let settings = Settings { sandbox: Fake::spec(), ..Settings::default() };
    let runtime = Runtime::new(Arc::new(Fake::new()), store, settings, clock.clone());
    Stage { _dir: dir, runtime, clock }
}

impl Stage {
    async fn key(&self, expires: Option<Time>) -> String {
        let issued = self
            .runtime
            .access()
            .issue(WantedKey { expires, ..WantedKey::new(Tenant::default(), Role::Use, "test") })
            .await;
        issued.unwrap().text
    }

    async fn ask(&self, key: &str) -> Ask {
        let caller = self.runtime.access().admit(Credential(key)).await.unwrap();
        Ask { caller, place: Place::Scope(Scope::fixed("one").unwrap(), None), key: None, lease: None, front: "test" }
    }
}

#[tokio::test]
async fn a_key_ends_when_its_time_has_come_and_not_before() {
    let stage = stage();
    let end = stage.clock.now() + SignedDuration::from_hours(2);
    let key = stage.key(Some(end)).await;
    for (jump, opens) in [(1, true), (-3, true), (3, true), (1, false), (-1, true)] {
        stage.clock.advance(SignedDuration::from_hours(jump));
        let admitted = stage.runtime.access().admit(Credential(&key)).await;
        assert_eq!(admitted.is_ok(), opens, "at {}", stage.clock.now());
        if let Err(error) = admitted {
            assert!(matches!(error, Error::Unauthorized));
        }
    }
}

#[tokio::test]
async fn calls_and_their_ledger_stay_in_order_whatever_the_clock_says() {
    let stage = stage();
    let key = stage.key(None).await;
    for hours in [0, -1, 2, -24, 1] {
        stage.clock.advance(SignedDuration::from_hours(hours));
        let made = stage.runtime.call(stage.ask(&key).await, Ensure).await.unwrap().answer().await.unwrap();
        let place = Place::Sandbox(made.sandbox);
        let stop = Ask { place, ..stage.ask(&key).await };
        stage.runtime.call(stop, Become(Shape::Stopped)).await.unwrap().answer().await.unwrap();
    }
    let Ask { caller, .. } = stage.ask(&key).await;
    let rows = stage.runtime.ledger(&caller, 0, 100).await.unwrap().0;
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().zip(1..).all(|(row, seq)| row.seq == seq));
    let head = stage.runtime.ledger_head(&caller).await.unwrap().unwrap();
    let whole = cabana_store::ledger::verify(rows.into_iter(), None, Some(&head));
    assert_eq!(whole.unwrap(), head);
}
