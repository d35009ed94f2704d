use std::{collections::HashSet, sync::Arc};

use cabana_model::{Life, Phase, SandboxId, SandboxState, Scope, Time};
use cabana_store::{
    BegunPage, By, Claim, Claimed, DueSandbox, Error, Lease, Moved, Page, Record, Store, Token, Transition, Which,
};
use futures_util::{TryStreamExt, future::join_all};

use crate::stage::{Stage, at, call, claim, task, tenant};

fn made(claimed: Claimed) -> Record {
    match claimed {
        Claimed::Made(record) => record,
        Claimed::There(record) => panic!("{record:?} was there"),
        Claimed::Taken => panic!("another one has its id"),
    }
}

fn to(record: &Record, state: SandboxState, second: i64) -> Transition {
    let phase = match state {
        SandboxState::Deleting => Some(Phase::Destroy),
        SandboxState::Stopping => Some(Phase::Stop),
        SandboxState::Provisioning => Some(Phase::Make),
        _ => None,
    };
    Transition {
        physical: record.physical.clone(),
        version: record.version,
        to: Life { state, phase },
        why: format!("a test wants it {state}"),
        at: at(second),
        active: at(0),
        due: None,
        by: By::Somebody(None),
    }
}

async fn moved(store: &Store, transition: Transition) -> Record {
    match store.transition(transition).await.unwrap() {
        Moved::To(record) => *record,
        other => panic!("{other:?}"),
    }
}

async fn restless(store: &Store) -> Vec<Record> {
    store.restless_sandboxes().try_collect().await.unwrap()
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
            Claimed::Taken => panic!("another one has its id"),
        })
        .collect();
    assert_eq!(ids.len(), 1, "all have the same");
    assert_eq!(restless(&store).await.len(), 1);
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
    assert_eq!(store.by_chat(&tenant("a"), "app", "chat").await.unwrap(), std::slice::from_ref(&a));
    assert_eq!(store.by_chat(&tenant("a"), "app", "other").await.unwrap(), []);
    assert_eq!(store.sandbox(&tenant("c"), &id).await.unwrap(), None);
    assert_eq!(a.scope.unwrap().chat(), Some(("app".to_owned(), "chat".to_owned())));
}

#[tokio::test]
async fn a_scope_whose_computed_id_has_other_parts_has_none_as_long_as_those_have_theirs() {
    let Stage { store, dir: _dir } = Stage::new();
    let of = |name: &str, user, chat| {
        let scope = Scope::chat_of("shop", user, chat).unwrap();
        Claim { id: scope.sandbox_id().unwrap(), scope: Some(scope), ..claim(&tenant(name), 0) }
    };
    let one = || of("a", "alice", "smith-7");
    let other = || of("a", "alice-smith", "7");
    assert_eq!(one().id, other().id);
    let first = made(store.claim(one()).await.unwrap());
    let mut record = first.clone();
    let states = [SandboxState::Running, SandboxState::Stopping, SandboxState::Stopped, SandboxState::Deleting];
    for (second, next) in (1..).zip(states) {
        assert_eq!(store.claim(other()).await.unwrap(), Claimed::Taken, "{:?}", record.state);
        record = moved(&store, to(&record, next, second)).await;
        let Claimed::There(again) = store.claim(one()).await.unwrap() else { panic!("it is there") };
        assert_eq!(again, record);
    }
    assert_eq!(store.claim(other()).await.unwrap(), Claimed::Taken, "it is not gone yet");
    made(store.claim(of("b", "alice-smith", "7")).await.unwrap());
    store.remove(&first.physical).await.unwrap();
    let second = made(store.claim(other()).await.unwrap());
    assert_eq!(second.id, first.id);
    assert_eq!(store.claim(one()).await.unwrap(), Claimed::Taken, "the other way round");
}

#[tokio::test]
async fn without_a_scope_each_claim_makes_one() {
    let Stage { store, dir: _dir } = Stage::new();
    for _ in 0..3 {
        made(store.claim(claim(&tenant("a"), 0)).await.unwrap());
    }
    assert_eq!(restless(&store).await.len(), 3);
}

#[tokio::test]
async fn a_known_spec_is_read_again_only_where_the_version_has_changed() {
    let Stage { store, dir: _dir } = Stage::new();
    let first = made(store.claim(Claim { spec: "first".into(), ..claim(&tenant("a"), 0) }).await.unwrap());
    let again = async |record: &Record| {
        let by_id = store.sandbox_again(&first.tenant, &first.id, record.known_spec()).await.unwrap().unwrap();
        let by_physical = store.by_physical_again(&first.physical, record.known_spec()).await.unwrap().unwrap();
        assert_eq!(by_id, by_physical);
        assert_eq!(Some(&by_id), store.by_physical(&first.physical).await.unwrap().as_ref(), "as it is in the store");
        assert_eq!(Arc::ptr_eq(&by_id.spec, &record.spec), by_id.version == record.version);
        by_id
    };
    assert_eq!(again(&first).await, first);
    // What changes without a version is seen all the same.
    store.touch(&first.physical, at(5)).await.unwrap();
    store.set_due(&first.physical, 1, Some(at(7))).await.unwrap();
    let lease = Lease { token: Token::from_u128(1), holder: "one".into(), until: at(60) };
    store.take_lease(&first.physical, lease.clone(), at(5)).await.unwrap();
    let touched = again(&first).await;
    assert_eq!((touched.active, touched.due, touched.lease.as_ref()), (at(5), Some(at(7)), Some(&lease)));
    let running = Transition { by: By::Itself, ..to(&first, SandboxState::Running, 1) };
    let running = moved(&store, running).await;
    assert_eq!(again(&first).await.state, SandboxState::Running);
    let changed = store.change_spec(&first.physical, running.version, "second".into(), None, at(9)).await.unwrap();
    for known in [&first, &running, &changed.unwrap()] {
        assert_eq!(&*again(known).await.spec, "second");
    }
    let other = made(store.claim(Claim { spec: "other".into(), ..claim(&tenant("a"), 0) }).await.unwrap());
    assert_eq!(other.version, first.version);
    assert_eq!(&*again(&other).await.spec, "second", "what is known of another sandbox is no spec of this one");
    store.remove(&first.physical).await.unwrap();
    assert_eq!(store.by_physical_again(&first.physical, first.known_spec()).await.unwrap(), None);
}

#[tokio::test]
async fn of_two_who_saw_the_same_version_one_changes_it() {
    let Stage { store, dir: _dir } = Stage::new();
    let record = made(store.claim(claim(&tenant("a"), 0)).await.unwrap());
    let running = moved(&store, to(&record, SandboxState::Running, 1)).await;
    assert_eq!((running.state, running.version, running.changed), (SandboxState::Running, 2, at(1)));
    assert_eq!(running.why, "a test wants it running");
    assert_eq!(store.transition(to(&record, SandboxState::Deleting, 1)).await.unwrap(), Moved::Stale, "an old version");
    assert_eq!(
        store.change_spec(&record.physical, 1, "new".into(), None, at(9)).await.unwrap(),
        None,
        "an old version"
    );
    let changed = store.change_spec(&record.physical, 2, "new".into(), None, at(9)).await.unwrap().unwrap();
    assert_eq!((&*changed.spec, changed.version), ("new", 3));
    assert_eq!(
        store.transition(to(&changed, SandboxState::Provisioning, 1)).await.unwrap(),
        Moved::Stale,
        "no such way"
    );
    let deleting = moved(&store, to(&changed, SandboxState::Deleting, 2)).await;
    assert_eq!(
        store.transition(to(&deleting, SandboxState::Running, 3)).await.unwrap(),
        Moved::Stale,
        "deleted stays so"
    );
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
            moved(&store, to(&record, SandboxState::Running, n)).await;
        }
    }
    made(store.claim(claim(&tenant("b"), 3)).await.unwrap());
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let part = store.sandboxes(&us, None, None, Page { limit: 4, after }).await.unwrap();
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
    let running = store.sandboxes(&us, None, Some(SandboxState::Running), Page::first(100)).await.unwrap();
    assert_eq!(running.len(), 13);
    for bad in ["", "x", "1-", "1-../../x", "x-aaaaaaaa"] {
        let page = Page { limit: 1, after: Some(bad.into()) };
        assert_eq!(store.sandboxes(&us, None, None, page).await, Err(Error::Cursor), "{bad:?}");
    }
}

/// With so many bytes.
fn long(tenant: &cabana_model::Tenant, second: i64, bytes: usize) -> Claim {
    Claim { spec: "x".repeat(bytes), ..claim(tenant, second) }
}

#[tokio::test]
async fn a_page_of_long_records_ends_sooner_and_says_that_there_is_more() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    for n in 0..10 {
        made(store.claim(long(&us, n, 1 << 20)).await.unwrap());
    }
    let (mut pages, mut page) = (Vec::new(), Page::first(1000));
    loop {
        let rows = store.sandboxes(&us, None, None, page.clone()).await.unwrap();
        pages.push(rows.len());
        if !page.is_full(&rows) {
            break;
        }
        page.after = rows.last().map(|row| row.cursor());
    }
    assert_eq!(pages, [4, 4, 2]);
    assert_eq!(restless(&store).await.len(), 10, "in parts, too, none is left out");
    let (mut specs, mut after) = (Vec::new(), None);
    loop {
        let part = store.specs(after, 1000).await.unwrap();
        specs.push(part.len());
        let Some((last, _)) = part.last() else { break };
        after = Some(last.clone());
    }
    assert_eq!(specs, [4, 4, 2, 0]);
}

#[tokio::test]
async fn a_list_by_start_has_those_of_some_states_in_both_orders() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let mut begun = Vec::new();
    for n in 0..12 {
        // Some at the same moment, some that never ran; those that were made first began last.
        let record = made(store.claim(long(&us, n / 3, 600 << 10)).await.unwrap());
        let record = match n % 2 {
            0 => moved(&store, to(&record, SandboxState::Running, 100 - n)).await,
            _ => record,
        };
        begun.push(record.begun());
    }
    made(store.claim(claim(&tenant("b"), 3)).await.unwrap());
    begun.sort();
    let all = vec![SandboxState::Running, SandboxState::Provisioning];
    let list = async |newest_first, states: &[SandboxState], since| {
        let (mut seen, mut parts) = (Vec::new(), 0);
        let mut page = Some(BegunPage { limit: 1000, after: None, newest_first, since, states: states.to_vec() });
        while let Some(next) = page {
            let part = store.sandboxes_by_start(&us, None, next.clone()).await.unwrap();
            (page, parts) = (next.next(&part), parts + 1);
            seen.extend(part.iter().map(Record::begun));
        }
        (seen, parts)
    };
    assert_eq!(list(false, &all, None).await, (begun.clone(), 2));
    let running = list(true, &all[..1], None).await.0;
    assert_eq!(running.iter().map(|one| one.at).collect::<Vec<_>>(), [100, 98, 96, 94, 92, 90].map(at));
    assert_eq!(list(true, &all, Some(at(96))).await.0, running[..3]);
    begun.reverse();
    assert_eq!(list(true, &all, None).await.0, begun);
    assert_eq!(list(false, &[], None).await.0, []);
}

#[tokio::test]
async fn rows_that_cannot_be_read_keep_no_server_from_finding_the_rest() {
    let stage = Stage::new();
    let (us, sandbox) = (tenant("a"), SandboxId::random());
    for second in 0..2 {
        made(stage.store.claim(claim(&us, second)).await.unwrap());
        let call = call(&us);
        stage.store.reserve(call.clone()).await.unwrap();
        stage.store.add_task(task(&call, &sandbox)).await.unwrap();
    }
    stage.store.clone().close().await;
    let db = rusqlite::Connection::open(stage.dir.path().join("db/cabana.db")).unwrap();
    for (table, id, column) in [("sandboxes", "physical", "scope"), ("calls", "id", "argv"), ("tasks", "id", "argv")] {
        let sql = format!("UPDATE {table} SET {column} = '?' WHERE {id} = (SELECT min({id}) FROM {table})");
        assert_eq!(db.execute(&sql, []).unwrap(), 1);
    }
    drop(db);
    let Stage { store, dir: _dir } = stage.again().await;
    assert_eq!(restless(&store).await.len(), 1);
    assert_eq!(store.open_calls().await.unwrap().len(), 1);
    assert_eq!(store.open_tasks().await.unwrap().len(), 1);
}

/// An attack makes specs long; then a sort, or a look at each row, would read all of them for a page of one.
#[tokio::test]
async fn lists_by_start_and_of_what_is_due_find_their_order_in_an_index() {
    let stage = Stage::new();
    stage.store.close().await;
    let db = rusqlite::Connection::open(stage.dir.path().join("db/cabana.db")).unwrap();
    let plan = |sql: &str| {
        let mut statement = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = statement.query_map([], |row| row.get::<_, String>("detail")).unwrap();
        steps.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    };
    for order in ["ASC", "DESC"] {
        let is_after = if order == "ASC" { ">" } else { "<" };
        let by_start = plan(&format!(
            "SELECT * FROM sandboxes WHERE tenant = 'a' AND (coalesce(started, created), id) {is_after} (7, 'x')
             AND coalesce(started, created) >= 3 AND state IN ('running')
             ORDER BY coalesce(started, created) {order}, id {order} LIMIT 9"
        ));
        assert!(by_start.contains("sandboxes_begun") && !by_start.contains("TEMP B-TREE"), "{by_start}");
    }
    let due = plan(
        "SELECT physical, tenant, due FROM sandboxes WHERE due <= 9 AND (due, physical) > (3, 'x')
         ORDER BY due, physical LIMIT 9",
    );
    assert!(due.contains("COVERING INDEX sandboxes_due") && !due.contains("TEMP B-TREE"), "{due}");
}

#[tokio::test]
async fn fe_27_a_lease_is_renewed_and_given_back_by_its_token_alone() {
    let Stage { store, dir: _dir } = Stage::new();
    let record = made(store.claim(claim(&tenant("a"), 0)).await.unwrap());
    let lease = |holder: &str, until| Lease { token: uuid::Uuid::new_v4(), holder: holder.into(), until: at(until) };
    let (one, two) = (lease("one", 10), lease("two", 10));
    assert_eq!(store.take_lease(&record.physical, one.clone(), at(0)).await.unwrap(), Some(one.clone()));
    assert_eq!(store.take_lease(&record.physical, two.clone(), at(9)).await.unwrap(), Some(one.clone()), "it is taken");
    assert_eq!(store.renew_lease(&record.physical, two.token, at(9), at(99)).await.unwrap(), None);
    assert!(!store.end_lease(&record.physical, two.token, at(9)).await.unwrap());
    let renewed = store.renew_lease(&record.physical, one.token, at(9), at(20)).await.unwrap().unwrap();
    assert_eq!((renewed.token, renewed.until), (one.token, at(20)));

    let running = moved(&store, Transition { by: By::Itself, ..to(&record, SandboxState::Running, 10) }).await;
    let stop = to(&running, SandboxState::Stopping, 11);
    assert_eq!(store.transition(stop.clone()).await.unwrap(), Moved::Busy(renewed.clone()));
    let stale = Transition { by: By::Somebody(Some(two.token)), ..stop.clone() };
    assert_eq!(store.transition(stale).await.unwrap(), Moved::Busy(renewed));
    moved(&store, Transition { by: By::Somebody(Some(one.token)), ..stop }).await;

    assert_eq!(store.renew_lease(&record.physical, one.token, at(20), at(99)).await.unwrap(), None, "it has ended");
    let later = Lease { until: at(30), ..two.clone() };
    assert_eq!(store.take_lease(&record.physical, later.clone(), at(20)).await.unwrap(), Some(later));
    assert!(!store.end_lease(&record.physical, one.token, at(21)).await.unwrap(), "another one's stays");
    assert!(store.end_lease(&record.physical, two.token, at(21)).await.unwrap());
    assert_eq!(store.take_lease(&SandboxId::random(), two, at(0)).await.unwrap(), None, "there is no such sandbox");
}

#[tokio::test]
async fn those_that_are_due_come_in_order_and_a_new_rule_makes_all_due() {
    let stage = Stage::new();
    let us = tenant("a");
    for (n, due) in [(1, Some(30)), (2, None), (3, Some(10)), (4, Some(20))] {
        let record = made(stage.store.claim(claim(&us, n)).await.unwrap());
        stage.store.set_due(&record.physical, record.version, due.map(at)).await.unwrap();
        stage.store.set_due(&record.physical, record.version + 1, Some(at(0))).await.unwrap(); // of another version
    }
    let due = |now, most| stage.store.due_sandboxes(now, None, most);
    let seconds = |found: Vec<DueSandbox>| found.iter().map(|one| one.due.as_second()).collect::<Vec<_>>();
    assert_eq!(stage.store.next_due(HashSet::new()).await.unwrap(), Some(at(10)));
    let first = due(at(10), 1).await.unwrap().into_iter().map(|record| record.physical).collect();
    assert_eq!(stage.store.next_due(first).await.unwrap(), Some(at(20)), "beside the first");
    assert_eq!(seconds(due(at(9), 10).await.unwrap()), [] as [i64; 0]);
    assert_eq!(seconds(due(at(25), 10).await.unwrap()), [at(10).as_second(), at(20).as_second()]);
    assert_eq!(due(at(99), 1).await.unwrap().len(), 1);
    stage.store.due_by("a rule").await.unwrap();
    assert_eq!(due(Time::UNIX_EPOCH, 10).await.unwrap().len(), 4);
    // A part at a time, each has all of them once, though all are due at one moment.
    let (mut seen, mut after) = (HashSet::new(), None);
    while let [one] = &stage.store.due_sandboxes(Time::UNIX_EPOCH, after, 1).await.unwrap()[..] {
        assert!(seen.insert(one.physical.clone()));
        after = Some(one.clone());
    }
    assert_eq!(seen.len(), 4);
    for physical in seen {
        let record = stage.store.by_physical(&physical).await.unwrap().unwrap();
        stage.store.set_due(&record.physical, record.version, None).await.unwrap();
    }
    let stage = stage.again().await;
    stage.store.due_by("a rule").await.unwrap();
    assert_eq!(stage.store.next_due(HashSet::new()).await.unwrap(), None, "the rule is known");
}

#[tokio::test]
async fn fp_06_a_chat_an_app_or_a_tenant_goes_at_once() {
    let Stage { store, dir: _dir } = Stage::new();
    let (a, b) = (tenant("a"), tenant("b"));
    for (tenant, app, chat) in [(&a, "x", "1"), (&a, "x", "2"), (&a, "y", "1"), (&b, "x", "1")] {
        let scope = Some(Scope::chat_of(app, "user", chat).unwrap());
        made(store.claim(Claim { scope, ..claim(tenant, 0) }).await.unwrap());
    }
    made(store.claim(claim(&a, 0)).await.unwrap());
    let doom = |tenant, which| store.doom(tenant, None, which, "a test", at(5));
    assert_eq!(doom(&a, Which::Chat { app: "x".into(), chat: "1".into() }).await.unwrap(), 1);
    assert_eq!(doom(&a, Which::App("x".into())).await.unwrap(), 1, "one went before");
    assert_eq!(doom(&a, Which::App("z".into())).await.unwrap(), 0);
    assert_eq!(doom(&a, Which::All).await.unwrap(), 2);
    let due = store.due_sandboxes(Time::UNIX_EPOCH, None, 10).await.unwrap();
    assert_eq!(due.len(), 4);
    for one in due {
        let record = store.by_physical(&one.physical).await.unwrap().unwrap();
        assert!(record.life() == Life::DOOMED && record.tenant == a && one.tenant == a);
    }
}
