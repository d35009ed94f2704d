use bytes::Bytes;
use cabana_model::{Code, Outcome, SandboxId};
use cabana_store::{Done, Error, Inline, NewCall, Page, Reserved};
use futures_util::future::join_all;

use crate::stage::{Stage, at, call, chain, done, entry, tenant};

#[tokio::test]
async fn the_same_key_is_fresh_then_running_then_done_and_conflicts_with_another_request() {
    let stage = Stage::new();
    let us = tenant("a");
    let first = NewCall { once: Some([7; 32]), ..call(&us) };
    let again = || NewCall { once: Some([7; 32]), ..call(&us) };
    let other = || NewCall { digest: [2; 32], ..again() };
    assert_eq!(stage.store.reserve(first.clone()).await.unwrap(), Reserved::Fresh);
    assert_eq!(stage.store.reserve(again()).await.unwrap(), Reserved::Running(first.id));
    assert_eq!(stage.store.reserve(other()).await.unwrap(), Reserved::Conflict);
    let elsewhere = NewCall { tenant: tenant("b"), ..again() };
    assert_eq!(stage.store.reserve(elsewhere).await.unwrap(), Reserved::Fresh, "another tenant's keys are its own");

    let ended = done(&first);
    stage.store.record(ended.clone()).await.unwrap();
    let Stage { store, dir: _dir } = stage.again().await;
    assert_eq!(store.reserve(again()).await.unwrap(), Reserved::Done(first.id, ended.outcome));
    assert_eq!(store.reserve(other()).await.unwrap(), Reserved::Conflict);
    assert_eq!(store.calls(&us, None, None, Page::first(10)).await.unwrap().len(), 1, "the others left no row");
}

#[tokio::test]
async fn of_many_with_one_key_one_is_fresh() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let calls = join_all((0..100).map(|_| store.reserve(NewCall { once: Some([7; 32]), ..call(&us) }))).await;
    assert_eq!(calls.iter().filter(|reserved| **reserved == Ok(Reserved::Fresh)).count(), 1);
    assert_eq!(calls.iter().filter(|reserved| matches!(reserved, Ok(Reserved::Running(_)))).count(), 99);
}

#[tokio::test]
async fn every_outcome_reads_back_with_its_ledger_row() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let outcomes = [
        Outcome::Answered(Bytes::from_static(b"{}")),
        Outcome::Failed { code: Code::NoSpace, message: "the disk é".into() },
        Outcome::Cancelled,
        Outcome::Unknown,
    ];
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let call = NewCall { sandbox: Some(SandboxId::random()), ..call(&us) };
        store.reserve(call.clone()).await.unwrap();
        let open = store.call(&us, call.id).await.unwrap().unwrap();
        assert_eq!((open.ended, open.outcome, open.inline), (None, None, None));
        assert_eq!(store.open_calls().await.unwrap().len(), 1);
        let output = (n % 2 == 0).then(|| Inline { stdout: Bytes::from_static(b"\xff\0"), stderr: Bytes::new() });
        store.record(Done { outcome: outcome.clone(), output: output.clone(), ..done(&call) }).await.unwrap();
        let ended = store.call(&us, call.id).await.unwrap().unwrap();
        assert_eq!((ended.ended, ended.outcome, ended.inline), (Some(at(1)), Some(outcome), output));
        assert_eq!((ended.argv, ended.verb.as_str(), ended.front.as_str()), (call.argv, "exec", "rest"));
        assert_eq!((ended.sandbox, ended.key, ended.reserved), (call.sandbox, call.key, at(0)));
        assert!(store.open_calls().await.unwrap().is_empty());
        assert_eq!(chain(&store, &us).await.last().unwrap().call, call.id);
    }
}

#[tokio::test]
async fn a_call_ends_once() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let ours = call(&us);
    store.reserve(ours.clone()).await.unwrap();
    assert!(matches!(store.reserve(ours.clone()).await, Err(Error::Refused(_))), "an id twice");
    store.record(done(&ours)).await.unwrap();
    let second = Done { outcome: Outcome::Cancelled, ..done(&ours) };
    assert!(matches!(store.record(second).await, Err(Error::Refused(_))));
    let ended = store.call(&us, ours.id).await.unwrap().unwrap();
    assert_eq!(ended.outcome, Some(done(&ours).outcome));
    assert_eq!(chain(&store, &us).await.len(), 1, "and has one ledger row");
    assert_eq!(store.call(&tenant("b"), ours.id).await.unwrap(), None, "it is nobody else's");
}

#[tokio::test]
async fn keys_are_forgotten_by_their_age() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let once = |n: u32| {
        let mut once = [0; 32];
        once[..4].copy_from_slice(&n.to_le_bytes());
        Some(once)
    };
    // More than are forgotten at once.
    let keyed = |n: u32| NewCall { once: once(n), at: at(n.into()), ..call(&us) };
    for reserved in join_all((0..1200).map(|n| store.reserve(keyed(n)))).await {
        assert_eq!(reserved, Ok(Reserved::Fresh));
    }
    assert_eq!(store.forget_keys(at(1100)).await.unwrap(), 1100);
    assert_eq!(store.forget_keys(at(1100)).await.unwrap(), 0);
    assert_eq!(store.reserve(keyed(1099)).await.unwrap(), Reserved::Fresh);
    assert!(matches!(store.reserve(keyed(1100)).await.unwrap(), Reserved::Running(_)));
}

#[tokio::test]
async fn a_page_of_long_rows_ends_sooner_and_says_that_there_is_more() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    for _ in 0..10 {
        let call = NewCall { argv: vec!["x".repeat(1 << 20)], ..call(&us) };
        store.reserve(call.clone()).await.unwrap();
        store.record(done(&call)).await.unwrap();
    }
    let (mut pages, mut page) = (Vec::new(), Page::first(1000));
    loop {
        let rows = store.calls(&us, None, None, page.clone()).await.unwrap();
        pages.push(rows.len());
        if !page.is_full(&rows) {
            break;
        }
        page.after = rows.last().map(|row| row.cursor());
    }
    assert_eq!(pages, [4, 4, 2]);
    let (mut pages, mut after) = (Vec::new(), 0);
    while let Some(last) = {
        let rows = store.ledger(&us, after, 1000).await.unwrap();
        pages.push(rows.len());
        rows.last().map(|row| row.seq)
    } {
        after = last;
    }
    assert_eq!(pages, [4, 4, 2, 0]);
}

#[tokio::test]
async fn calls_are_listed_newest_first_by_tenant_and_by_sandbox() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let boxes = [SandboxId::random(), SandboxId::random()];
    let mut made = Vec::new();
    for n in 0..30 {
        let call = NewCall { sandbox: Some(boxes[n % 2].clone()), ..call(&us) };
        store.reserve(call.clone()).await.unwrap();
        made.push(call.id);
    }
    store.reserve(call(&tenant("b"))).await.unwrap();
    made.reverse();
    for (sandbox, expected) in [
        (None, made.clone()),
        (Some(&boxes[0]), made.iter().copied().skip(1).step_by(2).collect()),
        (Some(&boxes[1]), made.iter().copied().step_by(2).collect()),
    ] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let part = store.calls(&us, None, sandbox, Page { limit: 7, after }).await.unwrap();
            let Some(last) = part.last() else { break };
            after = Some(last.cursor());
            seen.extend(part.into_iter().map(|call| call.id));
        }
        assert_eq!(seen, expected);
    }
    let page = Page { limit: 7, after: Some("task_0".into()) };
    assert_eq!(store.calls(&us, None, None, page).await, Err(Error::Cursor));
}

#[tokio::test]
async fn a_note_is_a_ledger_row_alone() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let read = call(&us);
    store.note(entry(&read)).await.unwrap();
    assert_eq!(chain(&store, &us).await.len(), 1);
    assert_eq!(store.call(&us, read.id).await.unwrap(), None);
}
