use cabana_model::{SandboxId, SandboxState, Scope};
use cabana_store::{Claim, Claimed, Error, Page, Record, Transition};
use futures_util::future::join_all;

use crate::stage::{Stage, at, claim, tenant};

fn made(claimed: Claimed) -> Record {
    match claimed {
        Claimed::Made(record) => record,
        Claimed::There(record) => panic!("{record:?} was there"),
    }
}

fn to(record: &Record, to: SandboxState, second: i64) -> Transition {
    let why = format!("a test wants it {to}");
    Transition { physical: record.physical.clone(), version: record.version, to, why, at: at(second) }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_claims_for_one_scope_one_makes_it() {
    let Stage { store, dir: _dir } = Stage::new();
    let scope = Scope::chat_of("app", "user", "chat").unwrap();
    let claims = (0..100).map(|_| {
        let claim = Claim { scope: Some(scope.clone()), ..claim(&tenant("a"), 0) };
        let store = store.clone();
        tokio::task::spawn_blocking(move || tokio::runtime::Handle::current().block_on(store.claim(claim)))
    });
    let claimed: Vec<Claimed> = join_all(claims).await.into_iter().map(|claimed| claimed.unwrap().unwrap()).collect();
    assert_eq!(claimed.iter().filter(|claimed| matches!(claimed, Claimed::Made(_))).count(), 1);
    let ids: std::collections::BTreeSet<SandboxId> = claimed
        .into_iter()
        .map(|claimed| match claimed {
            Claimed::Made(record) | Claimed::There(record) => record.physical,
        })
        .collect();
    assert_eq!(ids.len(), 1, "all have the same");
    assert_eq!(store.all_sandboxes().await.unwrap().len(), 1);
}

#[tokio::test]
async fn tenants_with_the_same_scope_and_id_do_not_meet() {
    let stage = Stage::new();
    let scope = Scope::chat_of("app", "user", "chat").unwrap();
    let id = scope.sandbox_id().unwrap();
    let claim_of = |name| Claim { scope: Some(scope.clone()), id: id.clone(), ..claim(&tenant(name), 0) };
    let a = made(stage.store.claim(claim_of("a")).await.unwrap());
    let b = made(stage.store.claim(claim_of("b")).await.unwrap());
    assert_eq!((&a.id, &a.state, a.version), (&id, &SandboxState::Provisioning, 1));
    assert_ne!(a.physical, b.physical);
    let Stage { store, dir: _dir } = stage.again().await;
    assert_eq!(store.sandbox(&tenant("a"), &id).await.unwrap().as_ref(), Some(&a));
    assert_eq!(store.by_scope(&tenant("b"), &scope).await.unwrap().as_ref(), Some(&b));
    assert_eq!(store.by_chat(&tenant("a"), "app", "chat").await.unwrap().as_ref(), Some(&a));
    assert_eq!(store.by_chat(&tenant("a"), "app", "other").await.unwrap(), None);
    assert_eq!(store.sandbox(&tenant("c"), &id).await.unwrap(), None);
    assert_eq!(a.scope.unwrap().chat(), Some(("app", "chat")));
}

#[tokio::test]
async fn without_a_scope_each_claim_makes_one() {
    let Stage { store, dir: _dir } = Stage::new();
    for _ in 0..3 {
        made(store.claim(claim(&tenant("a"), 0)).await.unwrap());
    }
    assert_eq!(store.all_sandboxes().await.unwrap().len(), 3);
}

#[tokio::test]
async fn of_two_who_saw_the_same_version_one_changes_it() {
    let Stage { store, dir: _dir } = Stage::new();
    let record = made(store.claim(claim(&tenant("a"), 0)).await.unwrap());
    let running = store.transition(to(&record, SandboxState::Running, 1)).await.unwrap().unwrap();
    assert_eq!((running.state, running.version, running.changed), (SandboxState::Running, 2, at(1)));
    assert_eq!(running.why, "a test wants it running");
    assert_eq!(store.transition(to(&record, SandboxState::Deleting, 1)).await.unwrap(), None, "an old version");
    assert_eq!(store.change_spec(&record.physical, 1, "new".into()).await.unwrap(), None, "an old version");
    let changed = store.change_spec(&record.physical, 2, "new".into()).await.unwrap().unwrap();
    assert_eq!((changed.spec.as_str(), changed.version), ("new", 3));
    assert_eq!(store.transition(to(&changed, SandboxState::Provisioning, 1)).await.unwrap(), None, "no such way");
    let deleting = store.transition(to(&changed, SandboxState::Deleting, 2)).await.unwrap().unwrap();
    assert_eq!(store.transition(to(&deleting, SandboxState::Running, 3)).await.unwrap(), None, "deleted stays so");
    store.remove(&record.physical).await.unwrap();
    assert_eq!(store.sandbox(&tenant("a"), &record.id).await.unwrap(), None);
}

#[tokio::test]
async fn use_is_noted_and_never_goes_back() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let record = made(store.claim(claim(&us, 0)).await.unwrap());
    for (second, noted) in [(5, 5), (5, 5), (6, 6), (2, 6), (9, 9)] {
        store.touch(&record.physical, at(second)).await.unwrap();
        let read = store.sandbox(&us, &record.id).await.unwrap().unwrap();
        assert_eq!((read.active, read.version), (at(noted), 1), "a use is no change");
    }
}

#[tokio::test]
async fn a_list_read_in_parts_has_each_one_once_newest_first() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let mut all = Vec::new();
    for n in 0..25 {
        // Some at the same moment.
        let record = made(store.claim(claim(&us, n / 4)).await.unwrap());
        all.push(record.id.clone());
        if n % 2 == 0 {
            store.transition(to(&record, SandboxState::Running, n)).await.unwrap().unwrap();
        }
    }
    made(store.claim(claim(&tenant("b"), 3)).await.unwrap());
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let part = store.sandboxes(&us, None, Page { limit: 4, after }).await.unwrap();
        let Some(last) = part.last() else { break };
        after = Some(last.cursor());
        assert!(!last.cursor().contains(last.physical.as_str()), "the physical id stays inside");
        seen.extend(part);
    }
    assert!(seen.windows(2).all(|pair| pair[0].created >= pair[1].created));
    let mut ids: Vec<_> = seen.into_iter().map(|record| record.id).collect();
    ids.sort();
    all.sort();
    assert_eq!(ids, all);
    let running = store.sandboxes(&us, Some(SandboxState::Running), Page::first(100)).await.unwrap();
    assert_eq!(running.len(), 13);
    for bad in ["", "x", "1-", "1-../../x", "x-aaaaaaaa"] {
        let page = Page { limit: 1, after: Some(bad.into()) };
        assert_eq!(store.sandboxes(&us, None, page).await, Err(Error::Cursor), "{bad:?}");
    }
}
