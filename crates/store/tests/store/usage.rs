use std::collections::BTreeMap;

use cabana_model::{Tenant, Time};
use cabana_store::{Done, Entry, Store, Usage};
use proptest::prelude::*;

use crate::stage::{Stage, call, chain, done, tenant};

async fn usage(store: &Store, tenant: &Tenant) -> Vec<Usage> {
    store.usage(tenant, "0000-01-01".into(), "9999-12-31".into()).await.unwrap()
}

/// One that ended then.
async fn ended(store: &Store, tenant: &Tenant, verb: &'static str, outcome: &str, ms: u64, at: Time) {
    let call = cabana_store::NewCall { verb, ..call(tenant) };
    store.reserve(call.clone()).await.unwrap();
    let Done { entry, .. } = done(&call);
    let entry = Entry { outcome: outcome.into(), duration_ms: ms, at, ..entry };
    store.record(Done { entry, ..done(&call) }).await.unwrap();
}

#[tokio::test]
async fn each_row_is_counted_once_on_its_day_whenever_somebody_asks() {
    let stage = Stage::new();
    let (us, them) = (tenant("us"), tenant("them"));
    let late: Time = "2026-03-01T23:59:59.999999Z".parse().unwrap();
    let next: Time = "2026-03-02T00:00:00Z".parse().unwrap();
    ended(&stage.store, &us, "exec", "answered", 5, late).await;
    ended(&stage.store, &us, "exec", "no_space", 7, late).await;
    let row =
        |day: &str, verb: &str, calls, failed, ms| Usage { day: day.into(), verb: verb.into(), calls, failed, ms };
    for _ in 0..2 {
        assert_eq!(usage(&stage.store, &us).await, [row("2026-03-01", "exec", 2, 1, 12)]);
    }
    ended(&stage.store, &us, "exec", "answered", 1, next).await;
    ended(&stage.store, &us, "task", "succeeded", 2, next).await;
    ended(&stage.store, &us, "task", "unknown", 0, next).await;
    ended(&stage.store, &them, "exec", "answered", 99, next).await;
    let stage = stage.again().await;
    let second = [row("2026-03-02", "exec", 1, 0, 1), row("2026-03-02", "task", 2, 1, 2)];
    let all = [vec![row("2026-03-01", "exec", 2, 1, 12)], second.to_vec()].concat();
    assert_eq!(usage(&stage.store, &us).await, all);
    let one_day = stage.store.usage(&us, "2026-03-02".into(), "2026-03-02".into()).await.unwrap();
    assert_eq!(one_day, second);
    assert_eq!(usage(&stage.store, &them).await, [row("2026-03-02", "exec", 1, 0, 99)], "and nothing of ours");
    assert_eq!(usage(&stage.store, &tenant("nobody")).await, []);
}

#[tokio::test]
async fn what_was_done_stays_counted_when_its_rows_go() {
    let stage = Stage::new();
    let us = tenant("us");
    for day in 0..3 {
        ended(&stage.store, &us, "exec", "answered", 5, Time::from_second(1_800_000_000 + day * 86_400).unwrap()).await;
    }
    let counted = Time::from_second(1_800_000_000 + 86_400).unwrap();
    let older = stage.store.ledger_before(&us, counted).await.unwrap().unwrap();
    let Done { entry, .. } = done(&call(&us));
    stage.store.drop_ledger(older, Entry { verb: "ledger.drop".into(), ..entry }).await.unwrap();
    stage.store.sweep_ledger(&us).await.unwrap();
    assert_eq!(chain(&stage.store, &us).await.len(), 3, "two of the calls, and that the first was dropped");
    let calls: u64 = usage(&stage.store, &us).await.iter().filter(|row| row.verb == "exec").map(|row| row.calls).sum();
    assert_eq!(calls, 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// More rows than are counted at a time, with questions and restarts in between.
    #[test]
    fn usage_says_what_the_ledger_says(steps in prop::collection::vec((0..3usize, 0..4i64, any::<bool>(), 0..60u32), 5..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut stage, us) = (Stage::new(), tenant("us"));
            for (verb, day, failed, many) in steps {
                let verb = ["exec", "file.read", "task"][verb];
                let at = Time::from_second(1_800_000_000 + day * 86_400).unwrap();
                for ms in 0..many {
                    let outcome = if failed { "failed" } else { "answered" };
                    ended(&stage.store, &us, verb, outcome, ms.into(), at).await;
                }
                match many % 3 {
                    0 => drop(usage(&stage.store, &us).await),
                    1 => stage = stage.again().await,
                    _ => {}
                }
            }
            let mut wanted: BTreeMap<(String, String), (u64, u64, u64)> = BTreeMap::new();
            for row in chain(&stage.store, &us).await {
                let sums = wanted.entry((row.time.to_string()[..10].to_owned(), row.verb)).or_default();
                *sums = (sums.0 + 1, sums.1 + u64::from(row.outcome != "answered"), sums.2 + row.duration_ms);
            }
            let told = usage(&stage.store, &us).await.into_iter().map(|row| ((row.day, row.verb), (row.calls, row.failed, row.ms)));
            assert_eq!(told.collect::<BTreeMap<_, _>>(), wanted);
        });
    }
}
