use cabana_model::{Amounts, BOUNDLESS, KeyId, Quota, SandboxId};
use cabana_store::{
    AboutSnapshot, Admitted, Claim, Entry, Error, Held, NewCall, NewSnapshot, OverId, Owner, Said, SnapshotStep,
    ledger::DROP,
};
use futures_util::future::join_all;

use crate::stage::{Stage, at, call, chain, claim, done, entry, tenant};

fn sums(sandboxes: u128, disk_bytes: u128, stored_bytes: u128) -> Amounts {
    Amounts { sandboxes, disk_bytes, stored_bytes, ..Amounts::default() }
}

#[tokio::test]
async fn sums_follow_what_is_claimed_changed_and_removed_and_survive_a_restart() {
    let stage = Stage::new();
    let (us, key, other) = (tenant("us"), KeyId::now(), KeyId::now());
    let claim_by = |key, disk| Claim { key, disk, ..claim(&us, 0) };
    let first = claim_by(key, Some(100));
    for claim in [first.clone(), claim_by(key, None), claim_by(other, Some(7))] {
        stage.store.claim(claim).await.unwrap();
    }
    stage.store.claim(claim(&tenant("them"), 0)).await.unwrap();
    let held = stage.store.held(&us, Some(key)).await.unwrap();
    assert_eq!(held, Held { tenant: sums(3, BOUNDLESS + 107, 0), key: sums(2, BOUNDLESS + 100, 0) });

    stage.store.set_stored(&first.physical, 40).await.unwrap();
    stage.store.set_stored(&first.physical, 50).await.unwrap();
    stage.store.change_spec(&first.physical, 1, "{}".into(), Some(30), at(9)).await.unwrap().unwrap();
    let stage = stage.again().await;
    let held = stage.store.held(&us, Some(key)).await.unwrap();
    assert_eq!(held, Held { tenant: sums(3, BOUNDLESS + 37, 50), key: sums(2, BOUNDLESS + 30, 50) });

    stage.store.remove(&first.physical).await.unwrap();
    let held = stage.store.held(&us, Some(key)).await.unwrap();
    assert_eq!(held, Held { tenant: sums(2, BOUNDLESS + 7, 0), key: sums(1, BOUNDLESS, 0) });
    assert_eq!(stage.store.held(&tenant("nobody"), Some(key)).await.unwrap(), Held::default());
}

#[tokio::test]
async fn no_number_of_huge_disks_is_too_large_for_a_sum() {
    let stage = Stage::new();
    let us = tenant("us");
    for _ in 0..3 {
        stage.store.claim(Claim { disk: Some(u64::MAX), ..claim(&us, 0) }).await.unwrap();
    }
    assert_eq!(stage.store.held(&us, None).await.unwrap().tenant.disk_bytes, 3 * BOUNDLESS);
}

#[tokio::test]
async fn a_snapshot_counts_as_much_as_its_sandbox_did() {
    let stage = Stage::new();
    let us = tenant("us");
    let sandbox = claim(&us, 0);
    stage.store.claim(sandbox.clone()).await.unwrap();
    stage.store.set_stored(&sandbox.physical, 60).await.unwrap();
    let (taking, physical) = (call(&us), cabana_model::SnapshotId::now());
    let id = cabana_model::SnapshotId::from(taking.id.uuid());
    let new = NewSnapshot {
        tenant: us.clone(),
        id,
        physical,
        sandbox: sandbox.id.clone(),
        about: AboutSnapshot::default(),
        at: at(0),
    };
    stage.store.claim_snapshot(new).await.unwrap();
    stage.store.remove(&sandbox.physical).await.unwrap();
    assert_eq!(stage.store.held(&us, None).await.unwrap().tenant, sums(0, 0, 60));
    stage.store.reserve(taking.clone()).await.unwrap();
    stage.store.record_snapshot(done(&taking), SnapshotStep::Gone(id)).await.unwrap();
    assert_eq!(stage.store.held(&us, None).await.unwrap().tenant, sums(0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_claims_at_once_as_many_are_made_as_are_admitted() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("us");
    let claims = (0..100).map(|_| {
        let (store, claim) = (store.clone(), claim(&us, 0));
        let admit = |held: Held| if held.tenant.sandboxes < 10 { Ok(()) } else { Err("full") };
        async move { store.claim_if(claim, admit).await.unwrap() }
    });
    let claimed = join_all(claims).await;
    let made = claimed.iter().filter(|claimed| matches!(claimed, Admitted::Made(_, ()))).count();
    let refused = claimed.iter().filter(|claimed| matches!(claimed, Admitted::Refused("full"))).count();
    assert_eq!((made, refused), (10, 90));
    assert_eq!(store.held(&us, None).await.unwrap().tenant.sandboxes, 10);
}

#[tokio::test]
async fn a_quota_is_set_replaced_and_taken_away_and_one_that_is_refused_leaves_the_last() {
    let stage = Stage::new();
    let own = Owner { tenant: tenant("us"), key: None };
    let of_key = Owner { key: Some(KeyId::now()), ..own.clone() };
    let quota = |running| Quota { running: Some(running), ..Quota::NONE };
    let yes = |_| Ok::<_, &str>(());
    for (owner, running) in [(&own, 1), (&of_key, 2), (&own, 3)] {
        stage.store.set_quota(owner, Some(quota(running)), entry(&call(&own.tenant)), yes).await.unwrap().unwrap();
    }
    let refused = stage.store.set_quota(&own, Some(quota(4)), entry(&call(&own.tenant)), |_| Err("no")).await.unwrap();
    assert_eq!(refused, Err("no"));
    let stage = stage.again().await;
    assert_eq!(stage.store.quotas().await.unwrap(), [(own.clone(), quota(3)), (of_key.clone(), quota(2))]);
    assert_eq!(chain(&stage.store, &own.tenant).await.len(), 3, "each has a row, and what was refused has none");
    stage.store.set_quota(&own, None, entry(&call(&own.tenant)), yes).await.unwrap().unwrap();
    assert_eq!(stage.store.quotas().await.unwrap(), [(of_key, quota(2))]);
}

#[tokio::test]
async fn what_was_said_is_summed_by_key() -> Result<(), Error> {
    let stage = Stage::new();
    let (us, key) = (tenant("us"), KeyId::now());
    let output = |text: &'static str| Some(cabana_store::Inline { stdout: text.into(), stderr: "!".into() });
    for (key, output) in [(key, output("four")), (key, output("")), (KeyId::now(), output("x")), (key, None)] {
        let call = NewCall { key, ..call(&us) };
        stage.store.reserve(call.clone()).await?;
        stage.store.record(cabana_store::Done { output, ..done(&call) }).await?;
    }
    let all = stage.store.said_by(&us).await?;
    let Said { bytes, files, .. } = all.iter().find(|said| said.key == key).unwrap();
    assert_eq!((*bytes, files.len()), (6, 1), "and one that is in files");
    assert_eq!(stage.store.said_by(&tenant("them")).await?, []);
    Ok(())
}

#[tokio::test]
async fn what_was_there_before_there_were_quotas_is_in_the_sums() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("db")).unwrap();
    let db = rusqlite::Connection::open(dir.path().join("db/cabana.db")).unwrap();
    for step in [include_str!("../../src/schema/1.sql"), include_str!("../../src/schema/2.sql")] {
        db.execute_batch(step).unwrap();
    }
    db.pragma_update(None, "user_version", 2).unwrap();
    let spec = |disk: &str| format!(r#"{{"sandbox":{{"limits":{{"disk":{disk}}}}}}}"#);
    for (number, spec) in
        [spec("100"), spec("20"), spec("null"), spec("9223372036854775807"), "{}".into()].iter().enumerate()
    {
        db.execute(
            "INSERT INTO sandboxes (physical, tenant, id, spec, state, why, created, changed, active, version)
             VALUES (?1, 'us', ?1, ?2, 'stopped', 'x', 0, 0, 0, 1)",
            rusqlite::params![format!("aaaaaaaaaaaaaaa{number}"), spec],
        )
        .unwrap();
    }
    drop(db);
    let store = crate::stage::open(dir.path());
    assert_eq!(store.held(&tenant("us"), None).await.unwrap().tenant, sums(5, 3 * BOUNDLESS + 120, 0));
    store.remove(&SandboxId::new("aaaaaaaaaaaaaaa0").unwrap()).await.unwrap();
    assert_eq!(store.held(&tenant("us"), None).await.unwrap().tenant, sums(4, 3 * BOUNDLESS + 20, 0));
    store.close().await;
}

#[tokio::test]
async fn what_is_recorded_of_calls_is_summed_and_goes_with_its_rows() {
    const LONG: u64 = 10_000;
    let stage = Stage::new();
    let us = tenant("us");
    let recorded = async |stage: &Stage| {
        let all = stage.store.recorded().await.unwrap();
        all.into_iter().find(|(whose, _)| *whose == us).map_or(0, |(_, bytes)| bytes)
    };
    let call = NewCall { argv: vec!["é".repeat(LONG as usize / 2)], ..call(&us) };
    stage.store.reserve(call.clone()).await.unwrap();
    assert!((LONG..LONG + 500).contains(&recorded(&stage).await), "it counts in bytes");
    stage.store.record(done(&call)).await.unwrap();
    let stage = stage.again().await;
    assert!((2 * LONG..2 * LONG + 2000).contains(&recorded(&stage).await));
    stage.store.forget_over(vec![OverId::Call(us.clone(), call.id.uuid())]).await.unwrap();
    assert!((LONG..LONG + 1000).contains(&recorded(&stage).await), "the ledger has it still");
    let older = stage.store.ledger_before(&us, at(100)).await.unwrap().unwrap();
    let said = Entry { verb: DROP.into(), argv: older.argv(), ..entry(&call) };
    stage.store.drop_ledger(older, said).await.unwrap();
    stage.store.sweep_ledger(&us).await.unwrap();
    assert!((1..1000).contains(&recorded(&stage).await), "what is left says that it went");
    assert_eq!(stage.store.recorded().await.unwrap().len(), 1, "nobody else has any");
}
