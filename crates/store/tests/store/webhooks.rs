//! Webhooks: what they are to be told is written with the change itself, in order, and within bounds.

use cabana_model::{EventFilter, KeyId, Life, Phase, SandboxId, SandboxState, TaskState, Tenant, WebhookId};
use cabana_store::{By, Moved, NewWebhook, Store, TaskEnd, Transition, Webhook, Which};
use serde_json::Value;
use uuid::Uuid;

use crate::stage::{Stage, at, call, claim, entry, task, tenant};

async fn hook(store: &Store, tenant: &Tenant, events: &[&str]) -> Webhook {
    let new = NewWebhook {
        tenant: tenant.clone(),
        id: WebhookId::now(),
        key: KeyId::now(),
        url: "https://example.com/hook".into(),
        secret: "whsec_x".into(),
        events: EventFilter::new(events.iter().map(|event| (*event).to_owned()).collect()).unwrap(),
        at: at(0),
    };
    store.add_webhook(new, 16).await.unwrap().unwrap()
}

/// What waits for it, oldest first.
async fn waiting(store: &Store, hook: &Webhook) -> Vec<(i64, String)> {
    let mut all = store.deliveries(hook.id, 2000).await.unwrap();
    all.reverse();
    all.into_iter().filter(|one| one.ended.is_none()).map(|one| (one.number, one.kind)).collect()
}

async fn now(store: &Store, hook: &Webhook) -> Webhook {
    store.webhook(&hook.tenant, hook.id).await.unwrap().unwrap()
}

fn transition(physical: &SandboxId, version: u64, to: Life) -> Transition {
    let (physical, why) = (physical.clone(), format!("why {}", to.state));
    Transition { physical, version, to, why, at: at(2), active: at(2), due: None, by: By::Itself }
}

/// A sandbox that runs, stops and is deleted.
async fn live_and_die(store: &Store, tenant: &Tenant) {
    let claim = claim(tenant, 1);
    let physical = claim.physical.clone();
    store.claim(claim).await.unwrap();
    let settled = |state| Life { state, phase: None };
    let stopping = Life { state: SandboxState::Stopping, phase: Some(Phase::Stop) };
    let all = [settled(SandboxState::Running), stopping, settled(SandboxState::Stopped), Life::DOOMED];
    for (version, to) in (1..).zip(all) {
        let moved = store.transition(transition(&physical, version, to)).await.unwrap();
        assert!(matches!(moved, Moved::To(_)), "{to:?}");
    }
    store.remove(&physical).await.unwrap();
}

#[tokio::test]
async fn each_change_is_written_down_for_whoever_wants_to_hear_of_it() {
    let stage = Stage::new();
    let (one, other) = (tenant("one"), tenant("other"));
    let all = hook(&stage.store, &one, &["sandbox.*", "task.*"]).await;
    let some = hook(&stage.store, &one, &["sandbox.stopped"]).await;
    let theirs = hook(&stage.store, &other, &["sandbox.*"]).await;
    live_and_die(&stage.store, &one).await;
    let call = call(&one);
    let task = task(&call, &claim(&one, 0).id);
    stage.store.add_task(task.clone()).await.unwrap();
    let end = TaskEnd { id: task.id, state: TaskState::Succeeded, exit: None, inline: None, at: at(3) };
    let entry = cabana_store::Entry { sandbox: Some(task.sandbox.clone()), ..entry(&call) };
    assert!(stage.store.end_task(end.clone(), entry.clone()).await.unwrap());
    assert!(!stage.store.end_task(end, entry).await.unwrap(), "the second time nothing is told");
    let stage = stage.again().await;
    let told = ["sandbox.created", "sandbox.running", "sandbox.stopped", "sandbox.deleted", "task.ended"];
    let kinds = |waiting: Vec<(i64, String)>| waiting.into_iter().map(|(_, kind)| kind).collect::<Vec<_>>();
    assert_eq!(kinds(waiting(&stage.store, &all).await), told);
    assert_eq!(kinds(waiting(&stage.store, &some).await), ["sandbox.stopped"]);
    assert!(waiting(&stage.store, &theirs).await.is_empty(), "another tenant hears nothing of it");
    let stopped = stage.store.next_delivery(&one, some.id).await.unwrap().unwrap();
    let body: Value = serde_json::from_str(&stopped.body).unwrap();
    assert_eq!((&body["type"], &body["reason"]), (&"sandbox.stopped".into(), &"why stopped".into()));
    assert_eq!(body["id"], stopped.event.as_str());
}

#[tokio::test]
async fn a_change_that_did_not_happen_is_not_told() {
    let stage = Stage::new();
    let one = tenant("one");
    let all = hook(&stage.store, &one, &["sandbox.*"]).await;
    let new = claim(&one, 1);
    stage.store.claim(new.clone()).await.unwrap();
    // Another one with the same id, a version that is old, and a state that does not lead there.
    let twice = cabana_store::Claim { physical: SandboxId::random(), ..new.clone() };
    assert!(stage.store.claim(twice).await.is_err());
    let running = Life { state: SandboxState::Running, phase: None };
    let pausing = Life { state: SandboxState::Pausing, phase: Some(Phase::Pause) };
    for (version, to) in [(7, running), (1, pausing)] {
        let next = transition(&new.physical, version, to);
        assert_eq!(stage.store.transition(next).await.unwrap(), Moved::Stale);
    }
    assert_eq!(waiting(&stage.store, &all).await, [(1, "sandbox.created".to_owned())]);
}

#[tokio::test]
async fn what_arrived_is_done_once_and_the_last_of_it_is_kept() {
    let stage = Stage::new();
    let one = tenant("one");
    let all = hook(&stage.store, &one, &["sandbox.*"]).await;
    for _ in 0..10 {
        live_and_die(&stage.store, &one).await;
    }
    for number in 1..=30 {
        let next = stage.store.next_delivery(&one, all.id).await.unwrap().unwrap();
        assert_eq!(next.number, number);
        stage.store.put_off(all.id, number, 1, "500".into(), at(9)).await.unwrap();
        for _ in 0..2 {
            stage.store.delivered(&one, all.id, number, 2, "204 No Content".into(), at(10)).await.unwrap();
        }
    }
    let hook = now(&stage.store, &all).await;
    assert_eq!((hook.delivered, hook.dropped), (30, 0));
    assert_eq!(stage.store.deliveries(all.id, 1000).await.unwrap().len(), 10 + 20);
}

#[tokio::test]
async fn where_too_many_wait_the_oldest_makes_room_and_what_may_be_lost_takes_half() {
    let stage = Stage::new();
    let one = tenant("one");
    let all = hook(&stage.store, &one, &["sandbox.*", "network.denied"]).await;
    let offer = || stage.store.offer(&one, Uuid::now_v7(), "network.denied", "{}".into(), at(1));
    for _ in 0..600 {
        offer().await.unwrap();
    }
    assert_eq!(waiting(&stage.store, &all).await.len(), 500);
    assert_eq!(now(&stage.store, &all).await.dropped, 100);
    for _ in 0..150 {
        live_and_die(&stage.store, &one).await;
    }
    let waits = waiting(&stage.store, &all).await;
    assert_eq!(waits.len(), 1000);
    assert_eq!(waits.iter().filter(|(_, kind)| kind.starts_with("sandbox.")).count(), 600, "no change was lost");
    assert!(waits.windows(2).all(|two| two[0].0 + 1 == two[1].0));
    assert_eq!(now(&stage.store, &all).await.dropped, 200);
    // One that was dropped while it was sent stays dropped.
    stage.store.delivered(&one, all.id, 1, 1, "200 OK".into(), at(2)).await.unwrap();
    assert_eq!(now(&stage.store, &all).await.delivered, 0);
}

#[tokio::test]
async fn one_that_is_disabled_or_removed_hears_nothing_more() {
    let stage = Stage::new();
    let one = tenant("one");
    let (a, b) = (hook(&stage.store, &one, &["sandbox.*"]).await, hook(&stage.store, &one, &["sandbox.*"]).await);
    live_and_die(&stage.store, &one).await;
    stage.store.disable_webhook(&one, a.id, "it is gone".into(), at(5)).await.unwrap();
    stage.store.disable_webhook(&one, a.id, "again".into(), at(6)).await.unwrap();
    assert!(!stage.store.remove_webhook(&tenant("other"), b.id).await.unwrap(), "it is not theirs");
    assert!(stage.store.remove_webhook(&one, b.id).await.unwrap());
    assert!(!stage.store.remove_webhook(&one, b.id).await.unwrap());
    live_and_die(&stage.store, &one).await;
    let stage = stage.again().await;
    live_and_die(&stage.store, &one).await;
    let a = now(&stage.store, &a).await;
    assert_eq!((a.disabled.clone(), a.dropped), (Some((at(5), "it is gone".into())), 4));
    assert_eq!(stage.store.next_delivery(&one, a.id).await.unwrap(), None);
    for hook in [&a, &b] {
        assert!(stage.store.deliveries(hook.id, 10).await.unwrap().is_empty());
    }
    assert!(stage.store.live_webhooks().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_tenant_has_so_many_and_no_more() {
    let stage = Stage::new();
    let one = tenant("one");
    for _ in 0..2 {
        hook(&stage.store, &one, &["task.*"]).await;
    }
    let new = |tenant: &str| NewWebhook {
        tenant: Tenant::new(tenant).unwrap(),
        id: WebhookId::now(),
        key: KeyId::now(),
        url: "https://example.com".into(),
        secret: "s".into(),
        events: EventFilter::default(),
        at: at(1),
    };
    assert!(stage.store.add_webhook(new("one"), 2).await.unwrap().is_none());
    assert!(stage.store.add_webhook(new("two"), 2).await.unwrap().is_some());
    assert_eq!(stage.store.webhooks(&one).await.unwrap().len(), 2);
}

#[tokio::test]
async fn those_that_go_together_are_told_of_one_by_one() {
    let stage = Stage::new();
    let one = tenant("one");
    let all = hook(&stage.store, &one, &["sandbox.deleted"]).await;
    for second in 0..3 {
        stage.store.claim(claim(&one, second)).await.unwrap();
    }
    stage.store.claim(claim(&tenant("other"), 0)).await.unwrap();
    for doomed in [3, 0] {
        assert_eq!(stage.store.doom(&one, None, Which::All, "together", at(9)).await.unwrap(), doomed);
    }
    assert_eq!(waiting(&stage.store, &all).await.len(), 3);
}
