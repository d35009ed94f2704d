use cabana_model::{Code, KeyId, Role};
use cabana_store::{Entry, Error, NewKey};
use futures_util::future::join_all;

use crate::stage::{Stage, at, call, chain, claim, done, entry, tenant};

fn key(name: &str, digest: u8) -> NewKey {
    NewKey {
        id: KeyId::now(),
        tenant: tenant(name),
        role: Role::Use,
        name: "laptop".into(),
        subject: Some("ann".into()),
        any_subject: true,
        digest: [digest; 32],
        created: at(0),
        expires: Some(at(100)),
    }
}

#[tokio::test]
async fn a_key_is_found_by_its_digest_also_when_it_is_revoked() {
    let Stage { store, dir: _dir } = Stage::new();
    let new = key("a", 1);
    let (us, row) = (tenant("a"), |second| Entry { at: at(second), ..entry(&call(&tenant("a"))) });
    let made = store.add_key(new.clone(), Some(row(1))).await.unwrap();
    assert_eq!((made.id, made.role, made.subject.as_deref()), (new.id, Role::Use, Some("ann")));
    assert!(made.any_subject);
    assert_eq!((made.expires, made.revoked), (Some(at(100)), None));
    assert_eq!(store.key(&[1; 32]).await.unwrap(), Some(made));
    assert_eq!(store.key(&[2; 32]).await.unwrap(), None);

    let revoked = store.revoke_key(new.id, row(7)).await.unwrap().unwrap();
    assert_eq!(revoked.revoked, Some(at(7)));
    assert_eq!(store.revoke_key(new.id, row(9)).await.unwrap().unwrap().revoked, Some(at(7)), "the first time counts");
    assert_eq!(store.key(&[1; 32]).await.unwrap(), Some(revoked));
    assert_eq!(store.revoke_key(KeyId::now(), row(9)).await.unwrap(), None);
    assert_eq!(chain(&store, &us).await.len(), 2, "one for each change that was made");
}

#[tokio::test]
async fn a_tenant_sees_its_own_keys() {
    let stage = Stage::new();
    for (name, digest) in [("a", 1), ("b", 2), ("a", 3)] {
        stage.store.add_key(key(name, digest), None).await.unwrap();
    }
    let stage = stage.again().await;
    assert_eq!(stage.store.keys(Some(&tenant("a"))).await.unwrap().len(), 2);
    assert_eq!(stage.store.keys(None).await.unwrap().len(), 3);
}

#[tokio::test]
async fn one_that_fails_takes_none_of_its_batch_along() {
    let Stage { store, dir: _dir } = Stage::new();
    let first = key("a", 0);
    store.add_key(first.clone(), None).await.unwrap();
    let us = tenant("a");
    let twice = claim(&us, 0);
    store.claim(twice.clone()).await.unwrap();
    // More than one batch of them, and each third fails: by the same key, the same sandbox, a call that is not open.
    let work = (0..600_u32).map(|n| {
        let (store, us, first, twice) = (&store, &us, &first, &twice);
        async move {
            match n % 6 {
                0 => store.add_key(first.clone(), None).await.map(drop),
                2 => store.claim(twice.clone()).await.map(drop),
                4 => store.record(done(&call(us))).await,
                _ => store.note(entry(&call(us))).await,
            }
        }
    });
    for (n, result) in join_all(work).await.into_iter().enumerate() {
        match n % 6 {
            0 | 2 | 4 => assert!(matches!(result, Err(Error::Refused(_))), "{n}: {result:?}"),
            _ => assert_eq!(result, Ok(()), "{n}"),
        }
    }
    let rows = chain(&store, &us).await;
    assert_eq!(rows.len(), 300);
    assert_eq!(cabana_store::ledger::verify(rows.into_iter(), None, None).unwrap().seq, 300);
    assert_eq!(store.keys(None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_closed_store_says_so_and_has_written_what_was_asked_before() {
    let stage = Stage::new();
    let us = tenant("a");
    let others = stage.store.clone();
    let waiting = join_all((0..100).map(|_| stage.store.note(entry(&call(&us)))));
    let (answers, ()) = tokio::join!(waiting, stage.store.clone().close());
    assert!(answers.iter().all(Result::is_ok), "they were asked before");
    let refused = others.note(entry(&call(&us))).await.unwrap_err();
    assert_eq!(refused.code(), Code::StoreUnavailable);
    assert_eq!(chain(&stage.again().await.store, &us).await.len(), 100);
}
