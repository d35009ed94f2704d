//! Quotas: held where things begin, whoever asks at once, and given back when things end.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cabana_model::{Amounts, Exceeded, Quota, Resource, VolumeName};
use cabana_runtime::{
    Act, Ask, CallId, Caller, Clock, Code, Credential, Cx, Error, IdempotencyKey, Needs, Owner, Page, Place, Result,
    Role, Runtime, SandboxId, SandboxState, Scope, Settings, Standing, Tenant, Time, Wanted, WantedKey, Which,
    acts::{
        files::{Alter, At, Step, Write},
        purge::Purge,
        sandbox::{Become, Change, Ensure, Shape},
        volume,
    },
};
use cabana_sandbox::{Limits, Provider, SandboxSpec, State, WriteMode};
use cabana_store::{Claim, Durability, Store};
use cabana_testkit::Fake;
use futures_util::{FutureExt, StreamExt, TryStreamExt, future::join_all, stream, stream::FuturesUnordered};
use jiff::SignedDuration;
use tokio::{sync::Semaphore, time::timeout};

struct Stage {
    _dir: tempfile::TempDir,
    fake: Fake,
    runtime: Runtime,
    clock: Clock,
    caller: Caller,
}

const NONE: Quota = Quota::NONE;
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

impl Stage {
    async fn new(quota: Quota) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        let (fake, clock) = (Fake::new(), Clock::at("2026-01-01T12:00:00Z".parse::<Time>().unwrap()));
        let runtime = open(&fake, store, &clock, NONE);
        let caller = caller(&runtime).await;
        let stage = Self { _dir: dir, fake, runtime, clock, caller };
        stage.set(quota).await.unwrap();
        stage
    }

    fn owner(&self) -> Owner {
        Owner { tenant: self.caller.tenant.clone(), key: None }
    }

    async fn set(&self, quota: Quota) -> Result<Standing> {
        self.runtime.set_quota(&self.caller, self.owner(), Some(quota), false).await
    }

    async fn used(&self) -> Amounts {
        self.runtime.standing(self.owner()).await.unwrap().used
    }

    /// As the next server does.
    async fn again(self) -> Self {
        let runtime = open(&self.fake, self.runtime.store().clone(), &self.clock, NONE);
        runtime.recover().await.unwrap().finished().await;
        Self { runtime, ..self }
    }

    fn ask(&self, place: Place) -> Ask {
        Ask { caller: self.caller.clone(), place, key: None, lease: None, front: "test" }
    }

    async fn ensure(&self, name: &str) -> Result<SandboxId> {
        self.ensure_as(name, None).await
    }

    async fn ensure_as(&self, name: &str, wanted: Option<Wanted>) -> Result<SandboxId> {
        let ask = self.ask(Place::Scope(Scope::fixed(name).unwrap(), wanted));
        Ok(self.runtime.call(ask, Ensure).await?.answer().await?.sandbox)
    }

    async fn new_one(&self, limits: Limits) -> Result<SandboxId> {
        let ask = self.ask(Place::New(Some(wanted(limits))));
        Ok(self.runtime.call(ask, Ensure).await?.answer().await?.sandbox)
    }

    async fn become_(&self, sandbox: &SandboxId, shape: Shape) {
        let ask = self.ask(Place::Sandbox(sandbox.clone()));
        self.runtime.call(ask, Become(shape)).await.unwrap().answer().await.unwrap();
    }

    async fn records(&self) -> usize {
        self.runtime.sandbox_list(&self.caller, None, Page::first(1000)).await.unwrap().len()
    }

    async fn write(&self, sandbox: &SandboxId, bytes: usize) -> Result<()> {
        let body = stream::iter([Ok(Bytes::from(vec![7; bytes]))]).boxed();
        let (at, mode) = (At::new("file"), WriteMode::Replace);
        let write = Write { at, mode, perm: None, len: None, parents: false, tags: None, body, held: 0 };
        self.runtime.call(self.ask(Place::Sandbox(sandbox.clone())), write).await?.answer().await.map(drop)
    }
}

fn open(fake: &Fake, store: Store, clock: &Clock, quota: Quota) -> Runtime {
    let settings = Settings { sandbox: Fake::spec(), quota, ..Settings::default() };
    Runtime::new(Arc::new(fake.clone()), store, settings, clock.clone())
}

async fn caller(runtime: &Runtime) -> Caller {
    let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Use, "test")).await.unwrap();
    runtime.access().admit(Credential(&issued.text)).await.unwrap()
}

fn wanted(limits: Limits) -> Wanted {
    let sandbox = SandboxSpec { limits, ..Fake::spec() };
    Wanted { sandbox, ..serde_json::from_str(EMPTY).unwrap() }
}

/// What has a default need not be said.
const EMPTY: &str = r#"{"sandbox":{"base":{"Named":"fake"},"limits":{"memory":null,"cpu_milli":null,"pids":null,"disk":null,
    "inodes":null,"open_files":null,"io":null,"output":null},"network":"Off","views":[],"user":null,"sudo":false,
    "lifetime":"Persistent"},"env":{},"once":false}"#;

fn exceeded<T>(result: Result<T>) -> Exceeded {
    match result.map(drop) {
        Err(Error::Exceeded(exceeded)) => exceeded,
        other => panic!("{other:?}"),
    }
}

/// How many of a hundred that come at once are let in.
async fn let_in<T>(asks: impl Iterator<Item = impl Future<Output = Result<T>>>, quota: Resource) -> usize {
    let all = join_all(asks).await;
    assert_eq!(all.len(), 100);
    let (good, bad): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert!(bad.into_iter().all(|refused| exceeded(refused).quota == quota));
    good.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn lb_13_quotas_are_held_where_a_session_gets_its_sandbox() {
    let stage = Stage::new(Quota { running: Some(10), ..NONE }).await;
    let names: Vec<String> = (0..100).map(|n| format!("s{n}")).collect();
    assert_eq!(let_in(names.iter().map(|name| stage.ensure(name)), Resource::Running).await, 10);
    assert_eq!((stage.used().await.running, stage.records().await), (10, 10), "and of the others nothing is left");
    // They are the same ten, however often they are asked for; nobody else gets in.
    assert_eq!(let_in(names.iter().map(|name| stage.ensure(name)), Resource::Running).await, 10);
    let refused = exceeded(stage.new_one(Limits::NONE).await);
    assert_eq!((refused.limit, refused.used, refused.wanted), (10, 10, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_who_ask_for_one_sandbox_at_once_all_get_it() {
    let stage = Stage::new(Quota { running: Some(1), sandboxes: Some(1), ..NONE }).await;
    let all = join_all((0..100).map(|_| stage.ensure("one"))).await;
    let ids: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert!(ids.iter().all(|id| *id == ids[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_in_all_count_also_when_they_rest_and_until_they_are_deleted() {
    let stage = Stage::new(Quota { sandboxes: Some(10), ..NONE }).await;
    assert_eq!(let_in((0..100).map(|_| stage.new_one(Limits::NONE)), Resource::Sandboxes).await, 10);
    let some = stage.ensure("one").await;
    assert_eq!(exceeded(some).quota, Resource::Sandboxes);
    let all = stage.runtime.sandbox_list(&stage.caller, None, Page::first(100)).await.unwrap();
    stage.become_(&all[0].id, Shape::Stopped).await;
    assert_eq!(exceeded(stage.ensure("one").await).used, 10);
    stage.become_(&all[0].id, Shape::Deleted).await;
    stage.ensure("one").await.unwrap();
}

#[tokio::test]
async fn a_place_is_given_back_by_a_stop_and_a_delete_and_not_by_a_pause() {
    let stage = Stage::new(Quota { running: Some(1), ..NONE }).await;
    let first = stage.ensure("one").await.unwrap();
    assert_eq!(exceeded(stage.ensure("two").await).quota, Resource::Running);
    stage.become_(&first, Shape::Stopped).await;
    let second = stage.ensure("two").await.unwrap();
    assert_eq!(exceeded(stage.ensure("one").await).quota, Resource::Running, "one that was there before is not woken");
    stage.become_(&second, Shape::Paused).await;
    assert_eq!(exceeded(stage.ensure("one").await).used, 1, "it has its memory still");
    stage.ensure("two").await.unwrap();
    stage.become_(&second, Shape::Deleted).await;
    stage.ensure("one").await.unwrap();
    assert_eq!(stage.used().await.running, 1);
}

#[tokio::test]
async fn the_next_server_counts_what_it_finds() {
    let quota = Quota { running: Some(3), sandboxes: Some(4), ..NONE };
    let stage = Stage::new(quota).await;
    let paused = stage.ensure("paused").await.unwrap();
    stage.ensure("running").await.unwrap();
    let stopped = stage.ensure("stopped").await.unwrap();
    stage.become_(&paused, Shape::Paused).await;
    stage.become_(&stopped, Shape::Stopped).await;
    let stage = stage.again().await;
    let used = stage.used().await;
    assert_eq!((used.running, used.sandboxes), (2, 3));
    assert_eq!(stage.runtime.standing(stage.owner()).await.unwrap().limits, quota);
    stage.ensure("stopped").await.unwrap();
    assert_eq!(exceeded(stage.ensure("another").await).quota, Resource::Running);
    stage.become_(&paused, Shape::Stopped).await;
    stage.ensure("another").await.unwrap();
    assert_eq!(exceeded(stage.ensure("a fifth").await).quota, Resource::Sandboxes);
}

#[tokio::test]
async fn a_key_has_a_quota_of_its_own_beside_its_tenants() {
    let stage = Stage::new(Quota { sandboxes: Some(3), ..NONE }).await;
    let other = caller(&stage.runtime).await;
    let of_key = Owner { key: Some(stage.caller.key), ..stage.owner() };
    let one = Quota { sandboxes: Some(1), concurrent_calls: Some(50), ..NONE };
    stage.runtime.set_quota(&stage.caller, of_key.clone(), Some(one), false).await.unwrap();
    stage.ensure("one").await.unwrap();
    let refused = exceeded(stage.ensure("two").await);
    assert_eq!((refused.limit, refused.used), (1, 1));
    let theirs = |name: &str| {
        let place = Place::Scope(Scope::fixed(name).unwrap(), None);
        let ask = Ask { caller: other.clone(), place, key: None, lease: None, front: "test" };
        async { stage.runtime.call(ask, Ensure).await?.answer().await }
    };
    theirs("one").await.unwrap(); // what is there is there for all keys of the tenant
    theirs("two").await.unwrap();
    theirs("three").await.unwrap();
    assert_eq!(exceeded(theirs("four").await).limit, 3);
    let standing = stage.runtime.standing(of_key.clone()).await.unwrap();
    assert_eq!((standing.used.sandboxes, standing.used.running), (1, 1));
    stage.runtime.set_quota(&stage.caller, of_key, None, false).await.unwrap();
    assert_eq!(exceeded(stage.ensure("four").await).limit, 3);
}

#[tokio::test]
async fn disks_are_summed_and_changed_within_the_quota_and_each_needs_a_limit() {
    const MIB: u64 = 1 << 20;
    let stage = Stage::new(Quota { disk_bytes: Some(10 * MIB), ..NONE }).await;
    let disk = |mib: u64| Limits { disk: Some(mib * MIB), ..Limits::NONE };
    let refused = exceeded(stage.new_one(Limits::NONE).await);
    assert!(refused.is_boundless() && refused.to_string().contains("limits.disk_bytes"), "{refused}");
    let first = stage.new_one(disk(4)).await.unwrap();
    let second = stage.new_one(disk(4)).await.unwrap();
    assert_eq!(exceeded(stage.new_one(disk(3)).await).used, u128::from(8 * MIB));
    let change = |sandbox: &SandboxId, limits| {
        let (ask, limits) = (stage.ask(Place::Sandbox(sandbox.clone())), Some(limits));
        let runtime = &stage.runtime;
        async move { runtime.call(ask, Change { limits, ..Change::default() }).await?.answer().await }
    };
    change(&first, disk(6)).await.unwrap();
    let told = change(&second, disk(5)).await.unwrap_err();
    assert_eq!(told.code(), Code::QuotaExceeded, "{told}");
    assert_eq!(stage.used().await.disk_bytes, u128::from(10 * MIB), "what was refused counts nothing");
    change(&first, disk(2)).await.unwrap();
    assert!(change(&first, Limits::NONE).await.is_err(), "nor can a limit be taken away");
    let (a, b) = tokio::join!(change(&first, disk(5)), change(&second, disk(6)));
    assert_eq!([a.is_ok(), b.is_ok()].iter().filter(|good| **good).count(), 1, "both would be too much");
    assert!(stage.used().await.disk_bytes <= u128::from(10 * MIB));
    stage.become_(&first, Shape::Deleted).await;
    stage.become_(&second, Shape::Deleted).await;
    stage.new_one(disk(10)).await.unwrap();
}

#[tokio::test]
async fn a_quota_below_what_is_in_use_is_refused_unless_it_is_forced() {
    let stage = Stage::new(NONE).await;
    let sandbox = stage.ensure("one").await.unwrap();
    stage.ensure("two").await.unwrap();
    for (quota, used) in [
        (Quota { running: Some(1), ..NONE }, 2),
        (Quota { sandboxes: Some(0), ..NONE }, 2),
        (Quota { disk_bytes: Some(1 << 40), ..NONE }, 2 * cabana_model::BOUNDLESS),
    ] {
        match stage.set(quota).await {
            Err(Error::BelowUse(below)) => assert_eq!(below.used, used),
            other => panic!("{other:?}"),
        }
        assert_eq!(stage.runtime.standing(stage.owner()).await.unwrap().limits, NONE, "the last one holds");
        assert_eq!(stage.runtime.store().quotas().await.unwrap(), []);
    }
    let one = Quota { running: Some(1), ..NONE };
    stage.runtime.set_quota(&stage.caller, stage.owner(), Some(one), true).await.unwrap();
    stage.ensure("one").await.unwrap(); // what runs goes on
    stage.become_(&sandbox, Shape::Stopped).await;
    assert_eq!(exceeded(stage.ensure("one").await).limit, 1);
    let huge = Quota { tasks: Some(u64::MAX), ..NONE };
    assert!(matches!(stage.set(huge).await, Err(Error::Invalid { .. })));
}

#[tokio::test]
async fn the_settings_hold_for_a_tenant_without_a_quota_and_fill_what_one_does_not_say() {
    let stage = Stage::new(NONE).await;
    let usual = Quota { sandboxes: Some(1), running: Some(7), ..NONE };
    let runtime = open(&stage.fake, stage.runtime.store().clone(), &stage.clock, usual);
    let stage = Stage { runtime, ..stage };
    stage.ensure("one").await.unwrap();
    assert_eq!(exceeded(stage.ensure("two").await).limit, 1);
    let standing = stage.set(Quota { sandboxes: Some(2), ..NONE }).await.unwrap();
    assert_eq!(standing.limits, Quota { sandboxes: Some(2), ..usual });
    stage.ensure("two").await.unwrap();
    assert!(matches!(
        stage.runtime.set_quota(&stage.caller, stage.owner(), None, false).await,
        Err(Error::BelowUse(_))
    ));
}

/// A call that takes until it may end.
struct Wait(Arc<Semaphore>);

impl Act for Wait {
    const VERB: &'static str = "wait";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, _: Cx) -> Result<()> {
        let _end = self.0.acquire().await;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_under_way_are_bounded_and_whoever_hears_of_an_end_may_begin_another() {
    let stage = Stage::new(Quota { concurrent_calls: Some(10), ..NONE }).await;
    let end = Arc::new(Semaphore::new(0));
    let begun = join_all((0..100).map(|_| stage.runtime.call(stage.ask(Place::Nowhere), Wait(end.clone())))).await;
    let (good, bad): (Vec<_>, Vec<_>) = begun.into_iter().partition(Result::is_ok);
    assert_eq!(good.len(), 10);
    assert!(bad.into_iter().all(|refused| exceeded(refused).quota == Resource::ConcurrentCalls));
    let calls = stage.runtime.call_list(&stage.caller, None, Page::first(1000)).await.unwrap();
    assert_eq!(calls.len(), 10, "what was refused leaves no row");
    end.add_permits(1000);
    for call in good {
        call.unwrap().answer().await.unwrap();
    }
    for _ in 0..50 {
        stage.runtime.call(stage.ask(Place::Nowhere), Wait(end.clone())).await.unwrap().answer().await.unwrap();
    }
    let at_one = Quota { concurrent_calls: Some(1), ..NONE };
    stage.set(at_one).await.unwrap();
    for _ in 0..50 {
        stage.runtime.call(stage.ask(Place::Nowhere), Wait(end.clone())).await.unwrap().answer().await.unwrap();
    }
}

#[tokio::test]
async fn calls_a_second_are_bounded_by_the_clock_and_a_flood_leaves_no_rows() {
    let stage = Stage::new(Quota { calls_per_sec: Some(5), ..NONE }).await;
    let end = Arc::new(Semaphore::new(1000));
    let flood = async || {
        let mut good = 0;
        for _ in 0..40 {
            match stage.runtime.call(stage.ask(Place::Nowhere), Wait(end.clone())).await {
                Ok(call) => call.answer().await.map(|()| good += 1).unwrap(),
                Err(error) => assert_eq!(error.code(), Code::RateLimited),
            }
        }
        good
    };
    assert_eq!(flood().await, 5);
    assert_eq!(flood().await, 0, "time stands still");
    stage.clock.advance(SignedDuration::from_millis(400));
    assert_eq!(flood().await, 2);
    stage.clock.advance(SignedDuration::from_hours(1));
    assert_eq!(flood().await, 5);
    stage.clock.advance(SignedDuration::from_hours(-1));
    assert_eq!(flood().await, 0);
    let rows = stage.runtime.ledger(&stage.caller, 0, 1000).await.unwrap().0;
    assert_eq!(rows.iter().filter(|row| row.verb == "quota.set").count(), 1);
    assert_eq!(rows.len(), 1 + 12);
    // And nobody else's are fewer.
    let issued = stage.runtime.access().issue(WantedKey::new(Tenant::new("them").unwrap(), Role::Use, "x")).await;
    let them = stage.runtime.access().admit(Credential(&issued.unwrap().text)).await.unwrap();
    for _ in 0..40 {
        let ask = Ask { caller: them.clone(), place: Place::Nowhere, key: None, lease: None, front: "test" };
        stage.runtime.call(ask, Wait(end.clone())).await.unwrap().answer().await.unwrap();
    }
}

#[tokio::test]
async fn a_repeated_call_gets_its_answer_though_the_quota_is_full_by_itself() {
    let stage = Stage::new(Quota { sandboxes: Some(1), ..NONE }).await;
    let ask = || Ask { key: Some(IdempotencyKey::new(b"once")), ..stage.ask(Place::New(None)) };
    let first = stage.runtime.call(ask(), Ensure).await.unwrap();
    let id: CallId = first.id();
    let made = first.answer().await.unwrap();
    let again = stage.runtime.call(ask(), Ensure).await.unwrap();
    assert_eq!((again.id(), again.answer().await.unwrap()), (id, made));
    let other = Ask { key: Some(IdempotencyKey::new(b"another")), ..stage.ask(Place::New(None)) };
    assert_eq!(exceeded(stage.runtime.call(other, Ensure).await).quota, Resource::Sandboxes);
}

#[tokio::test]
async fn who_stores_too_much_can_read_and_delete_and_store_nothing_more() {
    let stage = Stage::new(Quota { stored_bytes: Some(1000), ..NONE }).await;
    let sandbox = stage.ensure("one").await.unwrap();
    let other = stage.ensure("other").await.unwrap();
    stage.write(&sandbox, 2000).await.unwrap();
    stage.runtime.measure_stored().await.unwrap();
    assert!(stage.used().await.stored_bytes >= 2000);
    assert_eq!(exceeded(stage.write(&sandbox, 1).await).quota, Resource::Stored);
    assert_eq!(exceeded(stage.ensure("two").await).quota, Resource::Stored);
    assert_eq!(exceeded(stage.new_one(Limits::NONE).await).quota, Resource::Stored);
    stage.ensure("one").await.unwrap(); // what is there is there
    // A stop changes nothing, and a restart neither.
    stage.become_(&sandbox, Shape::Stopped).await;
    let stage = stage.again().await;
    stage.runtime.measure_stored().await.unwrap();
    assert_eq!(exceeded(stage.write(&other, 1).await).quota, Resource::Stored);
    let remove = Alter { at: At::new("file"), step: Step::Remove { tree: false } };
    stage.runtime.call(stage.ask(Place::Sandbox(sandbox)), remove).await.unwrap().answer().await.unwrap();
    stage.runtime.measure_stored().await.unwrap();
    stage.write(&other, 10).await.unwrap();
    stage.ensure("two").await.unwrap();
}

#[tokio::test]
async fn a_volume_whose_measuring_stands_still_holds_up_no_other_tenant() {
    let quota = Quota { stored_bytes: Some(1_000_000), ..NONE };
    let mut stage = Stage::new(quota).await;
    let of_default = stage.caller.clone();
    let name = VolumeName::new("held").unwrap();
    stage.runtime.call(stage.ask(Place::Nowhere), volume::Create(name.clone())).await.unwrap().answer().await.unwrap();
    // One comes before that tenant, and one after it.
    let mut others = Vec::new();
    for tenant in ["a", "z"] {
        let tenant = Tenant::new(tenant).unwrap();
        let issued = stage.runtime.access().issue(WantedKey::new(tenant, Role::Use, "test")).await.unwrap();
        stage.caller = stage.runtime.access().admit(Credential(&issued.text)).await.unwrap();
        stage.set(quota).await.unwrap();
        let sandbox = stage.ensure("one").await.unwrap();
        stage.write(&sandbox, 2000).await.unwrap();
        others.push((stage.caller.clone(), sandbox));
    }
    stage.fake.hold_volumes();
    let measured = timeout(PATIENCE, stage.runtime.measure_stored()).await;
    measured.expect("it waits for the volume").unwrap();
    assert_eq!(stage.fake.volume_measurements(), 1, "the control: it stands still");
    for (caller, sandbox) in &others {
        stage.caller = caller.clone();
        assert!(stage.used().await.stored_bytes >= 2000);
        stage.write(sandbox, 5000).await.unwrap();
    }
    // The next pass leaves alone what still stands.
    timeout(PATIENCE, stage.runtime.measure_stored()).await.expect("it waits for the volume").unwrap();
    assert!(stage.used().await.stored_bytes >= 5000);
    assert_eq!(stage.fake.volume_measurements(), 1);
    // Who asks for its size again and again has no thread for each.
    let volume = stage.runtime.volume(&of_default.tenant, &name).await.unwrap();
    let mut asking: FuturesUnordered<_> = (0..10).map(|_| stage.runtime.volume_usage(&volume)).collect();
    while stage.fake.volume_measurements() < 2 {
        assert!(asking.next().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert!(asking.next().now_or_never().is_none());
    tokio::task::yield_now().await;
    assert_eq!(stage.fake.volume_measurements(), 2);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_files_that_take_long_to_measure() {
    let stage = Stage::new(Quota { stored_bytes: Some(1_000_000), ..NONE }).await;
    let sandbox = stage.ensure("one").await.unwrap();
    stage.write(&sandbox, 5000).await.unwrap();
    let held = stage.fake.hold_usage().await;
    timeout(PATIENCE, stage.become_(&sandbox, Shape::Stopped)).await.expect("it waits for the files");
    stage.ensure("one").await.unwrap();
    timeout(PATIENCE, stage.become_(&sandbox, Shape::Stopped)).await.expect("it waits for the files");
    assert_eq!(stage.used().await.stored_bytes, 0, "the control: they were not measured");
    // They are measured all the same: who is slow to measure stores no less.
    drop(held);
    let measured = async {
        while stage.used().await.stored_bytes < 5000 {
            tokio::task::yield_now().await;
            stage.runtime.measure_stored().await.unwrap();
        }
    };
    timeout(PATIENCE, measured).await.expect("its files count");
}

#[tokio::test]
async fn a_volume_that_cannot_be_measured_counts_as_before() {
    let stage = Stage::new(Quota { stored_bytes: Some(1_000_000), ..NONE }).await;
    let name = VolumeName::new("large").unwrap();
    stage.runtime.call(stage.ask(Place::Nowhere), volume::Create(name)).await.unwrap().answer().await.unwrap();
    for (size, counted) in [(Some(700_000), 700_000), (None, 700_000), (Some(800_000), 800_000), (Some(5), 5)] {
        stage.fake.set_volume_size(size);
        stage.runtime.measure_stored().await.unwrap();
        assert_eq!(stage.used().await.stored_bytes, counted, "{size:?}");
    }
}

#[tokio::test]
async fn what_a_crash_left_half_made_waits_until_there_is_room_for_it() {
    let stage = Stage::new(Quota { running: Some(1), ..NONE }).await;
    let (one, two) = (stage.ensure("one").await.unwrap(), SandboxId::random());
    let claim = Claim {
        tenant: stage.caller.tenant.clone(),
        scope: Some(Scope::fixed("two").unwrap()),
        id: two.clone(),
        physical: two.clone(),
        spec: serde_json::to_string(&wanted(Limits::NONE)).unwrap(),
        key: stage.caller.key,
        user: None,
        disk: None,
        at: stage.clock.now(),
    };
    stage.runtime.store().claim(claim).await.unwrap();
    let stage = stage.again().await;
    let state = async || stage.runtime.sandbox(&stage.caller, &two).await.unwrap().state;
    for _ in 0..2 {
        stage.runtime.reap().await.unwrap();
        assert_eq!((state().await, stage.used().await.running), (SandboxState::Provisioning, 1));
        stage.clock.advance(SignedDuration::from_mins(1));
    }
    stage.become_(&one, Shape::Stopped).await;
    stage.runtime.reap().await.unwrap();
    assert_eq!((state().await, stage.used().await.running), (SandboxState::Running, 1));
}

#[tokio::test]
async fn what_is_to_go_counts_until_it_has_gone_whichever_server_sees_that() {
    let stage = Stage::new(Quota { running: Some(1), ..NONE }).await;
    stage.ensure("one").await.unwrap();
    stage.fake.be_away(u64::MAX);
    stage.runtime.call(stage.ask(Place::Nowhere), Purge(Which::All)).await.unwrap().answer().await.unwrap();
    let stage = stage.again().await;
    stage.runtime.reap().await.unwrap();
    assert_eq!(stage.used().await.running, 1);
    assert_eq!(exceeded(stage.ensure("two").await).quota, Resource::Running);
    stage.fake.be_away(0);
    stage.clock.advance(SignedDuration::from_hours(1));
    stage.runtime.reap().await.unwrap();
    assert_eq!(stage.used().await.running, 0);
    stage.ensure("two").await.unwrap();
}

/// What comes next, from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

impl Stage {
    /// Does something to the sandbox of this name, if there is one. What cannot be done is not.
    async fn perhaps(&self, name: &str, shape: Shape) {
        let scope = Scope::fixed(name).unwrap();
        if let Some(record) = self.runtime.store().by_scope(&self.caller.tenant, &scope).await.unwrap()
            && let Ok(call) = self.runtime.call(self.ask(Place::Sandbox(record.id)), Become(shape)).await
        {
            let _ = call.answer().await;
        }
    }

    /// What there is: sandboxes, those of them that run or are paused, and the limits of their disks.
    async fn there(&self) -> (u128, u128, u128) {
        let records = self.runtime.sandbox_list(&self.caller, None, Page::first(1000)).await.unwrap();
        let disk = |spec: &str| serde_json::from_str::<Wanted>(spec).unwrap().sandbox.limits.disk.unwrap();
        let disks = records.iter().map(|record| u128::from(disk(&record.spec))).sum();
        let states: Vec<_> = self.fake.list().await.unwrap().try_collect().await.unwrap();
        let awake = states.iter().filter(|(_, state)| *state != State::Stopped).count();
        (records.len() as u128, awake as u128, disks)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_at_once_no_quota_is_exceeded_and_the_sums_are_what_is_there() {
    const MIB: u64 = 1 << 20;
    let quota = Quota { running: Some(4), sandboxes: Some(7), disk_bytes: Some(15 * MIB), ..NONE };
    let (mut stage, mut chance) = (Stage::new(quota).await, Chance(7));
    for round in 0..60 {
        let steps: Vec<(u64, u64)> = (0..12).map(|_| (chance.below(7), chance.below(10))).collect();
        let doing = steps.iter().map(async |(what, which)| {
            let name = format!("s{which}");
            match what {
                0..=3 => {
                    let limits = Limits { disk: Some((1 + which % 4) * MIB), ..Limits::NONE };
                    drop(stage.ensure_as(&name, Some(wanted(limits))).await);
                }
                4 => stage.perhaps(&name, Shape::Stopped).await,
                5 => stage.perhaps(&name, Shape::Paused).await,
                _ => stage.perhaps(&name, Shape::Deleted).await,
            }
        });
        join_all(doing).await;
        if round % 10 == 9 {
            stage = stage.again().await;
        }
        let (used, there) = (stage.used().await, stage.there().await);
        assert_eq!((used.sandboxes, used.running, used.disk_bytes), there, "round {round}");
        assert_eq!(quota.below(&used), None, "round {round}");
    }
    for which in 0..10 {
        stage.perhaps(&format!("s{which}"), Shape::Deleted).await;
    }
    // What was recorded of the calls stays.
    let used = Amounts { ledger_bytes: 0, ..stage.used().await };
    assert_eq!((used, stage.there().await), (Amounts::default(), (0, 0, 0)));
}
