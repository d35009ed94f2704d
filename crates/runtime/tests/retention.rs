//! What goes after a while, with a clock that the test moves: never something that is needed or young, and a dry run says what
//! the next pass does.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use cabana_runtime::{
    AboutSnapshot, Ask, CallId, Caller, Channel, Clock, Collected, Credential, IdempotencyKey, Outcome, Place,
    Retention, Role, Runtime, SandboxId, Scope, Settings, TaskId, TaskState, Tenant, Time, Wanted, WantedKey,
    acts::{
        sandbox::{Become, Ensure, Shape},
        snapshot::Take,
        template::Add,
    },
};
use cabana_sandbox::{Base, Overrides, Provider, SandboxSpec};
use cabana_store::{Done, Durability, Entry, NewCall, NewTask, Store, TaskEnd};
use cabana_testkit::Fake;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::SignedDuration;

const DAY: SignedDuration = SignedDuration::from_hours(24);

struct Stage {
    dir: tempfile::TempDir,
    fake: Fake,
    runtime: Runtime,
    clock: Clock,
    caller: Caller,
}

impl Stage {
    async fn new(retention: Retention) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Kill).unwrap();
        // The files of outputs have times of the machine.
        let (fake, clock) = (Fake::new(), Clock::at(Time::now()));
        let settings = Settings { sandbox: Fake::spec(), retention, ..Settings::default() };
        let runtime = Runtime::new(Arc::new(fake.clone()), store, settings, clock.clone());
        let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Admin, "test")).await.unwrap();
        let caller = runtime.access().admit(Credential(&issued.text)).await.unwrap();
        Self { dir, fake, runtime, clock, caller }
    }

    fn ask(&self, place: Place) -> Ask {
        Ask { caller: self.caller.clone(), place, key: None, lease: None, front: "test" }
    }

    fn later(&self, days: i32) {
        self.clock.advance(DAY * days);
    }

    async fn ensure(&self, scope: &str, base: Option<Base>) -> SandboxId {
        let wanted = base.map(|base| Wanted {
            sandbox: SandboxSpec { base, ..Fake::spec() },
            env: BTreeMap::new(),
            lifecycle: Default::default(),
            dialect: None,
            profile: None,
            mounts: Default::default(),
            labels: BTreeMap::new(),
            notes: BTreeMap::new(),
            once: false,
            snapshot: None,
        });
        let place = Place::Scope(Scope::fixed(scope).unwrap(), wanted);
        self.runtime.call(self.ask(place), Ensure).await.unwrap().answer().await.unwrap().sandbox
    }

    async fn delete(&self, sandbox: SandboxId) {
        let ask = self.ask(Place::Sandbox(sandbox));
        self.runtime.call(ask, Become(Shape::Deleted)).await.unwrap().answer().await.unwrap();
    }

    /// A dry run and a pass: both say the same.
    async fn pass(&self) -> BTreeMap<String, u64> {
        let dry = self.runtime.collect(true).await.unwrap();
        let done = self.runtime.collect(false).await.unwrap();
        assert_eq!(dry, Collected { dry_run: true, ..done.clone() });
        let again = self.runtime.collect(true).await.unwrap();
        assert!(again.kinds.iter().all(|kind| kind.count == 0), "{again:?}");
        done.kinds.into_iter().filter(|kind| kind.count > 0).map(|kind| (kind.kind, kind.count)).collect()
    }

    fn entry(&self, call: CallId) -> Entry {
        Entry {
            tenant: self.caller.tenant.clone(),
            key: self.caller.key,
            sandbox: None,
            call,
            verb: "exec".into(),
            argv: Vec::new(),
            input_digest: None,
            output_digest: None,
            outcome: "answered".into(),
            exit: Some(0),
            duration_ms: 0,
            policy: None,
            at: self.clock.now(),
        }
    }

    async fn reserve(&self, once: Option<[u8; 32]>) -> CallId {
        let id = CallId::now();
        let call = NewCall {
            id,
            tenant: self.caller.tenant.clone(),
            key: self.caller.key,
            sandbox: None,
            user: None,
            made: false,
            verb: "exec",
            front: "test",
            digest: [0; 32],
            once,
            argv: Vec::new(),
            at: self.clock.now(),
        };
        self.runtime.store().reserve(call).await.unwrap();
        id
    }

    /// A command that has said so much, and ended.
    async fn said(&self, bytes: usize, once: Option<[u8; 32]>) -> CallId {
        let id = self.reserve(once).await;
        self.end(id, bytes).await;
        id
    }

    async fn end(&self, id: CallId, bytes: usize) {
        let log = self.runtime.store().outputs().begin(id.uuid(), u64::MAX);
        log.push(Channel::Stdout, vec![b'x'; bytes].into()).await.unwrap();
        let done = Done {
            id,
            outcome: Outcome::Answered(Bytes::from_static(b"{}")),
            output: log.end().inline,
            entry: self.entry(id),
        };
        self.runtime.store().record(done).await.unwrap();
    }

    async fn output(&self, id: CallId) -> Option<usize> {
        match self.runtime.call_output(&self.caller, id).await {
            Ok(log) => Some(log.lengths().0 as usize),
            Err(error) => {
                assert_eq!(error.code(), cabana_runtime::Code::OutputGone, "{error}");
                None
            }
        }
    }

    fn files(&self) -> usize {
        let folders = std::fs::read_dir(self.dir.path().join("outputs")).unwrap();
        folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
    }

    async fn snapshots(&self) -> usize {
        self.fake.snapshots().await.unwrap().try_collect::<Vec<_>>().await.unwrap().len()
    }
}

fn went(kinds: &[(&str, u64)]) -> BTreeMap<String, u64> {
    kinds.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
}

const SMALL: usize = 100;
const LARGE: usize = 40 << 10;

#[tokio::test]
async fn outputs_go_after_their_time_and_calls_after_theirs() {
    let retention = Retention { outputs: Some(DAY * 30), calls: Some(DAY * 90), ..Retention::default() };
    let stage = Stage::new(retention).await;
    let (small, large) = (stage.said(SMALL, None).await, stage.said(LARGE, None).await);
    let open = stage.reserve(None).await;
    stage.later(29);
    let young = stage.said(LARGE, None).await;
    assert_eq!(stage.pass().await, went(&[]));
    stage.later(2);
    assert_eq!(stage.pass().await, went(&[("outputs", 2)]));
    assert_eq!((stage.output(small).await, stage.output(large).await), (None, None));
    assert_eq!((stage.output(young).await, stage.files()), (Some(LARGE), 3));
    let row = stage.runtime.call_row(&stage.caller, large).await.unwrap();
    assert!(matches!(row.outcome, Some(Outcome::Answered(_))), "that it was there can be asked");
    stage.later(60);
    assert_eq!(stage.pass().await, went(&[("calls", 2), ("outputs", 1)]));
    for (id, is_there) in [(small, false), (large, false), (young, true), (open, true)] {
        assert_eq!(stage.runtime.call_row(&stage.caller, id).await.is_ok(), is_there);
    }
    // What ends late is kept from then on, however long ago it said something.
    stage.end(open, LARGE).await;
    assert_eq!(stage.pass().await, went(&[]));
    assert_eq!(stage.output(open).await, Some(LARGE));
}

#[tokio::test]
async fn what_a_key_leads_to_stays_as_long_as_the_key_is_known() {
    let retention = Retention { outputs: Some(DAY / 24), calls: Some(DAY / 24), ..Retention::default() };
    let stage = Stage::new(retention).await;
    let key = IdempotencyKey::new(b"again");
    let scope = || Place::Scope(Scope::fixed("one").unwrap(), None);
    let ensure = async || {
        let ask = Ask { key: Some(key), ..stage.ask(scope()) };
        stage.runtime.call(ask, Ensure).await.unwrap().answer().await.unwrap()
    };
    let first = ensure().await;
    let said = stage.said(LARGE, Some([7; 32])).await;
    stage.later(1);
    assert_eq!(stage.pass().await, went(&[]));
    assert_eq!((ensure().await, stage.output(said).await), (first, Some(LARGE)));
    stage.runtime.store().forget_keys(stage.clock.now()).await.unwrap();
    assert_eq!(stage.pass().await, went(&[("calls", 2), ("outputs", 1)]));
    assert_eq!(stage.files(), 0);
}

#[tokio::test]
async fn a_task_keeps_its_call_and_its_output_until_its_own_time() {
    let retention = Retention { outputs: Some(DAY * 10), calls: Some(DAY * 10), ..Retention::default() };
    let stage = Stage::new(retention).await;
    let call = stage.said(0, None).await;
    let id = TaskId::from(call.uuid());
    let (tenant, key) = (stage.caller.tenant.clone(), stage.caller.key);
    let sandbox = SandboxId::random();
    let (argv, at) = (Vec::new(), stage.clock.now());
    let task = NewTask { id, tenant: tenant.clone(), call, key, sandbox, argv, about: None, at };
    stage.runtime.store().add_task(task).await.unwrap();
    let log = stage.runtime.store().outputs().begin(id.uuid(), u64::MAX);
    log.push(Channel::Stdout, vec![b'x'; LARGE].into()).await.unwrap();
    stage.later(30);
    assert_eq!(stage.pass().await, went(&[]), "it goes on");
    let end = TaskEnd { id, state: TaskState::Succeeded, exit: None, inline: log.end().inline, at: stage.clock.now() };
    stage.runtime.store().end_task(end, stage.entry(call)).await.unwrap();
    stage.later(9);
    assert_eq!(stage.pass().await, went(&[]), "it has just ended");
    stage.later(2);
    assert_eq!(stage.pass().await, went(&[("calls", 2), ("outputs", 1)]));
    assert_eq!(stage.files(), 0);
}

#[tokio::test]
async fn files_that_are_nobodys_go_and_a_pass_that_was_killed_is_finished() {
    let stage = Stage::new(Retention { outputs: Some(DAY), ..Retention::default() }).await;
    let log = stage.runtime.store().outputs().begin(CallId::now().uuid(), u64::MAX);
    log.push(Channel::Stderr, vec![b'x'; LARGE].into()).await.unwrap();
    log.end();
    // The files of this one are gone, and its row does not say so.
    let half = stage.said(LARGE, None).await;
    stage.runtime.store().outputs().remove(half.uuid()).await.unwrap();
    assert_eq!(stage.pass().await, went(&[]));
    stage.later(2);
    assert_eq!(stage.pass().await, went(&[("outputs", 1)]));
    assert_eq!((stage.files(), stage.output(half).await), (0, None));
}

#[tokio::test]
async fn old_days_of_ledgers_go_and_are_on_record() {
    let stage = Stage::new(Retention { ledger: Some(DAY * 7), ..Retention::default() }).await;
    for _ in 0..10 {
        stage.said(SMALL, None).await;
        stage.said(SMALL, None).await;
        stage.later(1);
    }
    let gone = stage.pass().await;
    assert_eq!(gone, went(&[("ledger", 6)]), "the days before the last seven whole ones");
    let (rows, dropped) = stage.runtime.ledger(&stage.caller, 0, 1000).await.unwrap();
    let dropped = dropped.unwrap();
    assert_eq!((dropped.upto.seq, rows[0].seq, rows.len()), (6, 7, 15));
    let last = rows.last().unwrap().clone();
    assert!(dropped.is_said_by(&last), "{last:?}");
    assert_eq!(last.argv[..2], ["1", "6"]);
    let tip = cabana_store::ledger::verify(rows.into_iter(), Some(dropped.upto), None).unwrap();
    assert_eq!(Some(tip), stage.runtime.ledger_head(&stage.caller).await.unwrap());
    // A tenant that does nothing more comes to rest.
    stage.later(100);
    assert_eq!(stage.pass().await, went(&[("ledger", 15)]));
    stage.later(100);
    assert_eq!(stage.pass().await, went(&[]));
}

#[tokio::test]
async fn a_snapshot_goes_when_nothing_was_made_from_it_for_long() {
    let stage = Stage::new(Retention { snapshots: Some(DAY * 10), ..Retention::default() }).await;
    let sandbox = stage.ensure("one", None).await;
    let take = async || {
        let taken = stage
            .runtime
            .call(stage.ask(Place::Sandbox(sandbox.clone())), Take { about: AboutSnapshot::default() })
            .await
            .unwrap();
        taken.answer().await.unwrap().snapshot
    };
    let (used, unused) = (take().await, take().await);
    stage.later(9);
    let place = Place::New(Some(Wanted {
        sandbox: Fake::spec(),
        env: BTreeMap::new(),
        lifecycle: Default::default(),
        dialect: None,
        profile: None,
        mounts: Default::default(),
        labels: BTreeMap::new(),
        notes: BTreeMap::new(),
        once: false,
        snapshot: Some(used),
    }));
    let fork = stage.runtime.call(stage.ask(place), Ensure).await.unwrap().answer().await.unwrap().sandbox;
    stage.later(2);
    assert_eq!(stage.pass().await, went(&[("snapshots", 1)]));
    assert!(stage.runtime.snapshot(&stage.caller, unused).await.is_err());
    let (rows, _) = stage.runtime.ledger(&stage.caller, 0, 1000).await.unwrap();
    assert_eq!(rows.last().unwrap().argv, [unused.to_string(), "retention".to_owned()]);
    stage.later(30);
    assert_eq!((stage.pass().await, stage.snapshots().await), (went(&[]), 1), "a sandbox is made from it");
    stage.delete(fork).await;
    stage.later(9);
    assert_eq!(stage.pass().await, went(&[]), "it was in use until nine days ago");
    stage.later(2);
    assert_eq!((stage.pass().await, stage.snapshots().await), (went(&[("snapshots", 1)]), 0));
}

#[tokio::test]
async fn a_template_goes_when_nothing_was_made_from_it_for_long() {
    let stage = Stage::new(Retention { templates: Some(DAY * 10), ..Retention::default() }).await;
    for name in ["used", "once", "unused"] {
        let tar = Bytes::from(vec![0; 1024]); // an empty archive
        let add = Add { name: name.into(), wishes: Overrides::default(), body: stream::iter([Ok(tar)]).boxed() };
        stage.runtime.call(stage.ask(Place::Nowhere), add).await.unwrap().answer().await.unwrap();
    }
    let named = |name: &str| Some(Base::Named(name.to_owned()));
    stage.later(400); // all of them are old
    stage.ensure("one", named("used")).await;
    let once = stage.ensure("two", named("once")).await;
    stage.delete(once).await;
    assert_eq!(stage.pass().await, went(&[("templates", 1)]));
    stage.later(11);
    assert_eq!(stage.pass().await, went(&[("templates", 1)]), "the one that was used for a moment");
    let left = stage.runtime.templates().await.unwrap();
    assert_eq!(left.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["used"]);
}

#[tokio::test]
async fn archives_of_nobody_go_and_others_stay() {
    let stage = Stage::new(Retention::default()).await;
    let sandbox = stage.ensure("one", None).await;
    let physical = stage.runtime.sandbox(&stage.caller, &sandbox).await.unwrap().physical;
    let blobs = stage.runtime.store().blobs();
    for id in [&physical, &SandboxId::random()] {
        let body = stream::iter([Ok::<_, cabana_store::Error>(Bytes::from_static(b"saved"))]);
        assert_eq!(blobs.keep(id, body).await.unwrap(), 5);
    }
    assert_eq!(stage.pass().await, went(&[("blobs", 1)]));
    assert_eq!(blobs.all().await.unwrap(), [(physical, 5)]);
}

#[tokio::test]
async fn without_a_time_nothing_goes() {
    let stage = Stage::new(Retention::default()).await;
    stage.said(SMALL, None).await;
    stage.said(LARGE, None).await;
    stage.ensure("one", None).await;
    stage.later(30_000);
    assert_eq!(stage.pass().await, went(&[]));
    assert_eq!(stage.files(), 3);
}
