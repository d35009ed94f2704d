//! What goes after a while: nothing else goes with it, and what a kill leaves half done is finished.

use bytes::Bytes;
use cabana_model::{Outcome, SandboxId, TaskState};
use cabana_store::{
    Done, Dropped, Durability, Entry, Error, Inline, LedgerRow, OutputFile, Outputs, OverId, Store, Stream, TaskEnd,
    Used, UsedKind,
    ledger::{Broken, DROP, verify},
};
use proptest::prelude::*;

use crate::stage::{Stage, at, call, chain, done, entry, task, tenant};

const DAY: i64 = 86_400;

/// Three rows a day, for so many days.
async fn days(stage: &Stage, tenant_name: &str, count: i64) {
    let us = tenant(tenant_name);
    for row in 0..3 * count {
        let entry = Entry { at: at(row / 3 * DAY + row % 3), ..entry(&call(&us)) };
        stage.store.note(entry).await.unwrap();
    }
}

async fn drop_before(store: &Store, tenant_name: &str, day: i64) -> bool {
    let us = tenant(tenant_name);
    let Some(older) = store.ledger_before(&us, at(day * DAY)).await.unwrap() else { return false };
    let entry = Entry { verb: DROP.into(), argv: older.argv(), at: at(day * DAY), ..entry(&call(&us)) };
    store.drop_ledger(older, entry).await.unwrap();
    true
}

/// As whoever checks an export does it.
fn verified(rows: &[LedgerRow], dropped: Option<&Dropped>) -> Result<u64, Broken> {
    let tip = verify(rows.iter().cloned(), dropped.map(|dropped| dropped.upto.clone()), None)?;
    match dropped {
        Some(dropped) if !rows.iter().any(|row| dropped.is_said_by(row)) => {
            Err(Broken::Unsaid { after: dropped.upto.seq })
        }
        _ => Ok(tip.seq),
    }
}

#[tokio::test]
async fn the_oldest_days_of_a_ledger_go_and_the_rest_is_verified_from_there() {
    let mut stage = Stage::new();
    days(&stage, "a", 10).await;
    days(&stage, "b", 2).await;
    let us = tenant("a");
    assert!(drop_before(&stage.store, "a", 4).await);
    for swept in [false, true] {
        if swept {
            stage.store.sweep_ledger(&us).await.unwrap();
        }
        let (rows, dropped) = stage.store.ledger_page(&us, 0, 1000).await.unwrap();
        let dropped = dropped.unwrap();
        assert_eq!((dropped.upto.seq, dropped.rows, rows[0].seq, rows.len()), (12, 12, 13, 19));
        assert_eq!(verified(&rows, Some(&dropped)), Ok(31));
        assert_eq!(rows[18].verb, DROP);
        stage = stage.again().await; // as after a kill in between
    }
    assert_eq!(chain(&stage.store, &tenant("b")).await.len(), 6, "others have their own");
    assert_eq!(stage.store.tenants().await.unwrap().len(), 2);

    assert!(!drop_before(&stage.store, "a", 4).await, "they are gone");
    assert!(drop_before(&stage.store, "a", 1000).await, "all of it, but for what says so");
    stage.store.sweep_ledger(&us).await.unwrap();
    let (rows, dropped) = stage.store.ledger_page(&us, 0, 1000).await.unwrap();
    assert_eq!(verified(&rows, dropped.as_ref()), Ok(32));
    assert_eq!((rows.len(), dropped.unwrap().rows), (1, 31));
    assert!(!drop_before(&stage.store, "a", 2000).await, "what says that others went is not dropped for itself");
    stage.store.note(entry(&call(&us))).await.unwrap();
    assert_eq!(stage.store.ledger_head(&us).await.unwrap().unwrap().seq, 33, "the chain goes on");
}

#[tokio::test]
async fn a_ledger_is_dropped_no_further_than_its_first_young_row() {
    let stage = Stage::new();
    let us = tenant("a");
    // A clock that was wrong for a while: what comes after it stays with it.
    for day in [0, 1, 50, 2, 3] {
        stage.store.note(Entry { at: at(day * DAY), ..entry(&call(&us)) }).await.unwrap();
    }
    assert!(drop_before(&stage.store, "a", 10).await);
    let rows = chain(&stage.store, &us).await;
    assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [3, 4, 5, 6]);
    let older = cabana_store::Older { first: 1, upto: Default::default(), bytes: 0 };
    let twice = stage.store.drop_ledger(older, entry(&call(&us))).await;
    assert!(matches!(twice, Err(Error::Refused(_))), "a drop follows the one before: {twice:?}");
}

#[tokio::test]
async fn what_is_done_to_a_chain_that_begins_later_is_found() {
    let stage = Stage::new();
    days(&stage, "a", 10).await;
    drop_before(&stage.store, "a", 4).await;
    let (rows, dropped) = stage.store.ledger_page(&tenant("a"), 0, 1000).await.unwrap();
    let dropped = dropped.unwrap();
    let changed = |at: usize| {
        let mut rows = rows.clone();
        rows[at].argv.push("x".into());
        rows
    };
    assert_eq!(verified(&changed(3), Some(&dropped)), Err(Broken::Changed { seq: 16 }));
    assert_eq!(verified(&rows[1..], Some(&dropped)), Err(Broken::Missing { after: 12 }));
    assert_eq!(verified(&rows, None), Err(Broken::Missing { after: 0 }), "cut without a word");
    // Further than the chain says.
    let forged = Dropped { upto: cabana_store::Head { seq: 15, hash: rows[2].hash }, ..dropped.clone() };
    assert_eq!(verified(&rows[3..], Some(&forged)), Err(Broken::Unsaid { after: 15 }));
    let mut other = dropped.clone();
    other.upto.hash[0] ^= 1;
    assert_eq!(verified(&rows, Some(&other)), Err(Broken::Unlinked { seq: 13 }));
    // Cut off at its end, with what said so.
    assert_eq!(verified(&rows[..18], Some(&dropped)), Err(Broken::Unsaid { after: 12 }));
}

async fn ended(stage: &Stage, name: &str, second: i64, once: bool) -> OverId {
    let mut call = call(&tenant(name));
    call.once = once.then(|| call.id.uuid().as_u128().to_le_bytes()).map(|half| {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&half);
        key
    });
    stage.store.reserve(call.clone()).await.unwrap();
    let said = Inline { stdout: Bytes::from_static(b"said"), stderr: Bytes::new() };
    let done = Done { output: Some(said), entry: Entry { at: at(second), ..entry(&call) }, ..done(&call) };
    stage.store.record(done).await.unwrap();
    OverId::Call(call.tenant, call.id.uuid())
}

#[tokio::test]
async fn what_was_said_goes_a_page_at_a_time_and_rows_stay() {
    let stage = Stage::new();
    let mut all = Vec::new();
    for n in 0..10 {
        all.push(ended(&stage, if n % 2 == 0 { "a" } else { "b" }, n / 3, n == 4).await);
    }
    let us = call(&tenant("a"));
    let started = task(&us, &SandboxId::random());
    stage.store.reserve(us.clone()).await.unwrap();
    stage.store.add_task(started.clone()).await.unwrap();
    let said = Some(Inline { stdout: Bytes::from_static(b"12345"), stderr: Bytes::from_static(b"6") });
    let end = TaskEnd { id: started.id, state: TaskState::Succeeded, exit: None, inline: said, at: at(1) };
    stage.store.end_task(end, entry(&us)).await.unwrap();

    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = stage.store.said_before(at(3), after, 2).await.unwrap();
        let Some(last) = page.last().cloned() else { break };
        seen.extend(page);
        after = Some(last);
    }
    let mut found: Vec<_> = seen.iter().map(|over| over.id.clone()).collect();
    found.sort();
    let task_id = OverId::Task(started.tenant.clone(), started.id.uuid());
    let mut expected: Vec<_> = all[..9].iter().cloned().chain([task_id.clone()]).collect();
    expected.sort();
    assert_eq!(found, expected, "each once");
    assert_eq!(seen.iter().find(|over| over.id == task_id).unwrap().bytes, 6);
    assert!(seen.iter().all(|over| over.keyed == (over.id == all[4])));

    stage.store.forget_said(found).await.unwrap();
    let left = stage.store.said_before(at(3), None, 100).await.unwrap();
    assert_eq!(left.iter().map(|over| &over.id).collect::<Vec<_>>(), [&all[4]], "whoever repeats it is answered");
    let row = stage.store.call(&tenant("a"), all[0].uuid().into()).await.unwrap().unwrap();
    assert_eq!((row.inline, row.outcome), (None, Some(Outcome::Answered(Bytes::new()))));
    let row = stage.store.task(&started.tenant, started.id).await.unwrap().unwrap();
    assert_eq!((row.inline, row.state), (None, TaskState::Succeeded));
}

#[tokio::test]
async fn rows_go_that_have_ended_and_that_no_key_leads_to() {
    let stage = Stage::new();
    let us = tenant("a");
    let (plain, keyed) = (ended(&stage, "a", 1, false).await, ended(&stage, "a", 1, true).await);
    let open = call(&us);
    stage.store.reserve(open.clone()).await.unwrap();
    let started = task(&open, &SandboxId::random());
    stage.store.add_task(started.clone()).await.unwrap();
    let found = stage.store.oldest(&us, false, None, 100).await.unwrap();
    let ids: Vec<_> = found.iter().map(|over| over.id.clone()).collect();
    let of_open = OverId::Call(us.clone(), open.id.uuid());
    assert_eq!(ids, [plain.clone(), keyed.clone(), of_open.clone()]);
    let of_task = OverId::Task(us.clone(), started.id.uuid());
    stage.store.forget_over(vec![plain.clone(), keyed.clone(), of_open.clone(), of_task.clone()]).await.unwrap();
    let left = stage.store.oldest(&us, false, None, 100).await.unwrap();
    assert_eq!(left.into_iter().map(|over| over.id).collect::<Vec<_>>(), [keyed, of_open]);
    assert_eq!(stage.store.oldest(&us, true, None, 100).await.unwrap()[0].id, of_task);
    assert_eq!(stage.store.over_by_number(vec![plain.uuid()]).await.unwrap(), []);
    let both = stage.store.over_by_number(vec![started.id.uuid(), open.id.uuid()]).await.unwrap();
    assert_eq!(both.len(), 2);
}

#[tokio::test]
async fn the_last_use_is_what_is_known() {
    let mut stage = Stage::new();
    for second in [5, 9, 7] {
        let used = Used { kind: UsedKind::Template, name: "debian".into(), at: at(second) };
        stage.store.note_use(used).await.unwrap();
    }
    stage = stage.again().await;
    let uses = stage.store.uses().await.unwrap();
    assert_eq!(uses, [Used { kind: UsedKind::Template, name: "debian".into(), at: at(9) }]);
    stage.store.forget_use(UsedKind::Snapshot, "debian").await.unwrap();
    assert_eq!(stage.store.uses().await.unwrap().len(), 1);
    stage.store.forget_use(UsedKind::Template, "debian").await.unwrap();
    assert_eq!(stage.store.uses().await.unwrap(), []);
}

#[tokio::test]
async fn a_copy_of_the_database_has_all_that_was_acknowledged_and_leaves_nothing() {
    let stage = Stage::new();
    let us = tenant("a");
    for round in 1..=5_u64 {
        for _ in 0..20 {
            stage.store.note(entry(&call(&us))).await.unwrap();
        }
        let (mut file, more) = tokio::join!(stage.store.copy_database(), async {
            for _ in 0..20 {
                stage.store.note(entry(&call(&us))).await.unwrap();
            }
        });
        let () = more;
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("db")).unwrap();
        let mut into = std::fs::File::create(dir.path().join("db/cabana.db")).unwrap();
        std::io::copy(file.as_mut().unwrap(), &mut into).unwrap();
        let copy = Store::open(dir.path(), Durability::Kill).unwrap();
        let rows = chain(&copy, &us).await;
        assert!(rows.len() as u64 >= 40 * (round - 1) + 20, "{} in round {round}", rows.len());
        assert_eq!(verified(&rows, None), Ok(rows.len() as u64));
        copy.note(entry(&call(&us))).await.unwrap();
    }
    let names = || std::fs::read_dir(stage.dir.path().join("db")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names().all(|name| !name.to_str().unwrap().starts_with('.')));
    std::fs::write(stage.dir.path().join("db/.copy-left"), "by a kill").unwrap();
    let stage = stage.again().await;
    assert!(!stage.dir.path().join("db/.copy-left").exists());
}

#[tokio::test]
async fn stored_outputs_are_found_by_their_folders() {
    let stage = Stage::new();
    let mut made = Vec::new();
    for _ in 0..20 {
        let id = uuid::Uuid::now_v7();
        let log = stage.store.outputs().begin(id, u64::MAX);
        log.push(Stream::Stdout, vec![b'x'; 40 << 10].into()).await.unwrap();
        log.end();
        made.push(id);
    }
    std::fs::write(stage.dir.path().join("outputs").join("stranger"), "").unwrap();
    let mut found = Vec::new();
    for folder in Outputs::folders() {
        for stored in stage.store.outputs().stored(folder).await.unwrap() {
            assert!(stored.bytes > 40 << 10);
            found.push(stored.id);
        }
        for file in stage.store.outputs().files(folder).await.unwrap() {
            assert_eq!(OutputFile::new(file.as_str()), Some(file.clone()));
            assert!(stage.store.outputs().open_file(&file).unwrap().is_some());
            assert!(stage.store.outputs().create_file(&file).is_err(), "it is there");
        }
    }
    found.sort();
    made.sort();
    assert_eq!(found, made);
}

proptest! {
    #[test]
    fn no_name_of_an_output_leads_anywhere_else(name in "\\PC{0,60}|[0-9a-f./]{0,60}") {
        if let Some(file) = OutputFile::new(&name) {
            prop_assert_eq!(file.as_str().len(), 3 + 32 + if name.ends_with("runs") { 5 } else { 4 });
            prop_assert_eq!(file.as_str().matches('/').count(), 1);
        }
    }
}

#[test]
fn names_of_outputs_are_of_one_form() {
    let id = "0199a1e36ddd427372ba516dbc9344fa";
    assert!(OutputFile::new(&format!("fa/{id}.out")).is_some());
    for bad in [
        format!("fb/{id}.out"),
        format!("../fa/{id}.out"),
        format!("fa/{id}.txt"),
        format!("fa/../{id}.out"),
        format!("FA/{}.out", id.to_uppercase()),
        format!("/{id}.out"),
        format!("a/{id}.out"),
        format!("fa/{id}"),
        String::new(),
    ] {
        assert_eq!(OutputFile::new(&bad), None, "{bad}");
    }
}
