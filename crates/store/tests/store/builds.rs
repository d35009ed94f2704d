//! Templates of tenants, their builds and tags, and the snapshots that go with the last of them.

use cabana_model::{BuildId, BuildState, KeyId, SnapshotId, TemplateId, Tenant, Time};
use cabana_store::{
    AboutSnapshot, Built, Entry, KeptLayers, Layer, LeftBuild, ListedBuild, NewBuild, NewSnapshot, SnapshotStep, Store,
};
use uuid::Uuid;

use crate::stage::{call, done, entry, open, tenant};

fn at(second: i64) -> Time {
    Time::from_second(1_700_000_000 + second).unwrap()
}

async fn ask(store: &Store, tenant: &Tenant, name: &str, tags: &[&str]) -> (TemplateId, BuildId) {
    let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    let id = BuildId::now();
    let new = NewBuild { tenant: tenant.clone(), id, name: name.into(), tags, about: "{}".into(), at: at(0) };
    (store.claim_build(new, 3).await.unwrap().unwrap().0, id)
}

/// A snapshot that a build made for itself.
async fn snapshot(store: &Store, tenant: &Tenant) -> SnapshotId {
    let call = call(tenant);
    store.reserve(call.clone()).await.unwrap();
    let id = SnapshotId::from(Uuid::now_v7());
    let about = AboutSnapshot { built: true, ..AboutSnapshot::default() };
    let sandbox = cabana_model::SandboxId::new("sandbox00").unwrap();
    let new = NewSnapshot { tenant: tenant.clone(), id, physical: id, sandbox, about, at: at(0) };
    store.claim_snapshot(new).await.unwrap();
    store.record_snapshot(done(&call), SnapshotStep::Ready(id)).await.unwrap();
    id
}

async fn ready(store: &Store, tenant: &Tenant, build: BuildId, snapshot: SnapshotId) {
    assert!(store.begin_build(tenant, build, KeyId::now()).await.unwrap());
    let came = Ok(("{}".into(), Some(snapshot)));
    let built = Built { tenant: tenant.clone(), id: build, came, log: "[]".into(), at: at(1) };
    assert!(store.end_build(built, entry(&call(tenant))).await.unwrap());
}

fn layer(snapshot: SnapshotId) -> Layer {
    Layer { snapshot, about: "{}".into() }
}

const ALL: KeptLayers = KeptLayers { most: 100, since: Time::MIN };

#[tokio::test]
async fn a_template_has_so_many_tags_and_those_that_it_has_may_move() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one) = (open(dir.path()), tenant("one"));
    let (template, id) = ask(&store, &one, "x", &["default"]).await;
    ready(&store, &one, id, snapshot(&store, &one).await).await;
    let build = store.build(&one, id).await.unwrap().unwrap();
    let tag = async |tags: &[&str]| {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        store.tag_build(&one, &build, tags, 3, at(2)).await.unwrap()
    };
    assert!(tag(&["a", "b", "a"]).await);
    assert!(!tag(&["a", "c"]).await && tag(&["a", "b", "default"]).await);
    assert_eq!(store.build_tags(&one, template).await.unwrap().len(), 3);
    assert_eq!(store.untag(&one, template, vec!["b".into()]).await.unwrap(), 1);
    assert!(tag(&["c"]).await);
}

#[tokio::test]
async fn a_tag_leads_to_the_newest_build_that_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one, other) = (open(dir.path()), tenant("one"), tenant("other"));
    let (template, first) = ask(&store, &one, "x", &["default", "v1"]).await;
    assert!(store.tagged(&one, template, "v1").await.unwrap().is_none(), "it is not ready yet");
    ready(&store, &one, first, snapshot(&store, &one).await).await;
    let (same, second) = ask(&store, &one, "x", &["default"]).await;
    assert_eq!(same, template, "a name is one template");
    ready(&store, &one, second, snapshot(&store, &one).await).await;
    let led = async |tag: &str| store.tagged(&one, template, tag).await.unwrap().map(|build| build.id);
    assert_eq!((led("default").await, led("v1").await), (Some(second), Some(first)));
    assert!(!store.begin_build(&one, second, KeyId::now()).await.unwrap(), "it was begun before");
    for build in store.builds(&one, template).await.unwrap() {
        // All that a list reads of one: nothing that is long.
        let ListedBuild { id, state, about, created, ended } = build;
        let whole = store.build(&one, id).await.unwrap().unwrap();
        assert_eq!((state, &about, created, ended), (BuildState::Ready, &whole.about, whole.created, whole.ended));
        assert_eq!((whole.made.as_deref(), whole.log.as_deref()), (Some("{}"), Some("[]")));
    }
    assert_eq!(store.untag(&one, template, vec!["v1".into(), "none".into()]).await.unwrap(), 1);
    assert_eq!(led("v1").await, None);
    assert!(store.own_template(&other, template).await.unwrap().is_none());
    assert!(store.build(&other, first).await.unwrap().is_none());
    assert!(store.remove_own_template(&other, template).await.unwrap().is_none());
}

#[tokio::test]
async fn a_snapshot_goes_with_the_last_that_refers_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one) = (open(dir.path()), tenant("one"));
    let shared = snapshot(&store, &one).await;
    let (first, build) = ask(&store, &one, "x", &[]).await;
    ready(&store, &one, build, shared).await;
    let (second, build) = ask(&store, &one, "y", &[]).await;
    ready(&store, &one, build, shared).await;
    assert!(store.add_layer(&one, BuildId::now(), [1; 32], layer(shared), at(0), ALL).await.unwrap().is_empty());
    assert_eq!(store.remove_own_template(&one, first).await.unwrap(), Some(vec![]));
    let newer = snapshot(&store, &one).await;
    assert!(
        store.add_layer(&one, BuildId::now(), [1; 32], layer(newer), at(1), ALL).await.unwrap().is_empty(),
        "a build has it still"
    );
    assert_eq!(
        store.remove_own_template(&one, second).await.unwrap(),
        Some(vec![shared, newer]),
        "the last one takes all"
    );
    assert_eq!(store.loose_snapshots().await.unwrap(), [(one.clone(), shared), (one.clone(), newer)]);
    assert!(
        store.snapshots(&one, None, None, cabana_store::Page::first(10)).await.unwrap().is_empty(),
        "none is in a list"
    );
}

#[tokio::test]
async fn layers_are_bounded_by_number_and_age() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one) = (open(dir.path()), tenant("one"));
    let mut all = Vec::new();
    for number in 0..4 {
        let snapshot = snapshot(&store, &one).await;
        all.push(snapshot);
        let kept = KeptLayers { most: 3, since: Time::MIN };
        let gone = store
            .add_layer(&one, BuildId::now(), [number; 32], layer(snapshot), at(number.into()), kept)
            .await
            .unwrap();
        assert_eq!(gone, if number < 3 { vec![] } else { vec![all[0]] });
    }
    assert_eq!(
        store.layer(&one, BuildId::now(), [1; 32], at(100)).await.unwrap(),
        Some(layer(all[1])),
        "it counts as used from now on"
    );
    assert!(store.layer(&tenant("other"), BuildId::now(), [1; 32], at(100)).await.unwrap().is_none());
    let (snapshot, kept) = (snapshot(&store, &one).await, KeptLayers { most: 100, since: at(50) });
    let gone = store.add_layer(&one, BuildId::now(), [9; 32], layer(snapshot), at(101), kept).await.unwrap();
    assert_eq!(gone, [all[2], all[3]]);
    assert!(store.layer(&one, BuildId::now(), [2; 32], at(102)).await.unwrap().is_none());
}

#[tokio::test]
async fn a_build_holds_what_it_goes_on_from() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one) = (open(dir.path()), tenant("one"));
    let (_, build) = ask(&store, &one, "x", &[]).await;
    store.begin_build(&one, build, KeyId::now()).await.unwrap();
    let (first, second) = (snapshot(&store, &one).await, snapshot(&store, &one).await);
    store.add_layer(&one, build, [1; 32], layer(first), at(0), ALL).await.unwrap();
    let one_alone = KeptLayers { most: 1, since: Time::MIN };
    let gone = store.add_layer(&one, BuildId::now(), [2; 32], layer(second), at(1), one_alone).await.unwrap();
    assert!(gone.is_empty(), "the layer went, and its files did not");
    assert!(store.layer(&one, build, [1; 32], at(2)).await.unwrap().is_none());
    let noted = call(&one);
    store.fail_builds("left", at(3), move |_| entry(&noted)).await.unwrap();
    assert_eq!(store.loose_snapshots().await.unwrap(), [(one, first)]);
}

#[tokio::test]
async fn a_tenant_has_so_many_templates_and_each_so_many_builds() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one) = (open(dir.path()), tenant("one"));
    let (template, kept) = ask(&store, &one, "a", &["default"]).await;
    ready(&store, &one, kept, snapshot(&store, &one).await).await;
    ask(&store, &one, "b", &[]).await;
    ask(&store, &one, "c", &[]).await;
    let (tenant, id) = (one.clone(), BuildId::now());
    let new = NewBuild { tenant, id, name: "d".into(), tags: vec![], about: "{}".into(), at: at(0) };
    assert!(store.claim_build(new, 3).await.unwrap().is_none());
    for _ in 0..50 {
        ask(&store, &one, "a", &[]).await;
    }
    let builds = store.builds(&one, template).await.unwrap();
    assert!(builds.len() <= 22 && builds.iter().any(|build| build.id == kept), "{}", builds.len());
    let listed = store.listed_templates(&one).await.unwrap();
    let names: Vec<_> = listed.iter().map(|listed| listed.template.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let id = |build: &Option<ListedBuild>| build.as_ref().map(|build| build.id);
    assert_eq!((id(&listed[0].newest), id(&listed[0].ready)), (Some(builds[0].id), Some(kept)));
    assert_eq!((listed[0].builds as usize, id(&listed[1].ready)), (builds.len(), None));
    assert_eq!(store.listed_template(&one, template).await.unwrap().as_ref(), listed.first());
    let other = Tenant::new("other").unwrap();
    assert_eq!(
        (store.listed_templates(&other).await.unwrap(), store.listed_template(&other, template).await.unwrap()),
        (vec![], None)
    );
}

#[tokio::test]
async fn what_was_under_way_has_failed_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one) = (open(dir.path()), tenant("one"));
    let (_, build) = ask(&store, &one, "x", &["default"]).await;
    let key = KeyId::now();
    store.begin_build(&one, build, key).await.unwrap();
    store.close().await;
    let store = open(dir.path());
    let fail = async || {
        let noted = call(&one);
        let row =
            move |left: &LeftBuild| Entry { key: left.key.unwrap(), argv: vec![left.id.to_string()], ..entry(&noted) };
        store.fail_builds("it was left", at(9), row).await.unwrap()
    };
    assert_eq!((fail().await, fail().await), (1, 0));
    let (rows, _) = store.ledger_page(&one, 0, 100).await.unwrap();
    let of_build: Vec<_> = rows.iter().filter(|row| row.argv == [build.to_string()]).collect();
    assert_eq!((of_build.len(), of_build[0].key), (1, key), "one row of its end, with the key that began it");
    let found = store.build(&one, build).await.unwrap().unwrap();
    assert_eq!((found.state, found.reason.as_deref()), (BuildState::Failed, Some("it was left")));
    let late = Built { tenant: one.clone(), id: build, came: Ok(("{}".into(), None)), log: "[]".into(), at: at(10) };
    assert!(!store.end_build(late, entry(&call(&one))).await.unwrap(), "what came of it later counts no more");
    assert!(store.build_tags(&one, found.template).await.unwrap().is_empty());
}
