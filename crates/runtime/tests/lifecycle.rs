//! When sandboxes rest and go, on a provider in memory and a clock that the test moves.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cabana_runtime::{
    Action, Ask, Caller, Clock, Code, Credential, Event, Heard, IdempotencyKey, Lifecycle, Page, Place, Reaped, Record,
    Role, Runtime, SandboxState, Scope, Settings, Tenant, Time, WantedKey, Which,
    acts::{
        files::{At, Part, Read, Write},
        purge::Purge,
        sandbox::{Become, Change, Ensure, Shape, Wake},
    },
};
use cabana_sandbox::WriteMode;
use cabana_store::{Durability, Store};
use cabana_testkit::Fake;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::SignedDuration;
use tokio::{sync::mpsc, task::JoinSet};

struct Stage {
    dir: tempfile::TempDir,
    fake: Fake,
    runtime: Runtime,
    clock: Clock,
    caller: Caller,
}

fn open(dir: &tempfile::TempDir, fake: &Fake, clock: &Clock, lifecycle: &Lifecycle) -> Runtime {
    let store = Store::open(dir.path(), Durability::Kill).unwrap();
    let settings = Settings { sandbox: Fake::spec(), lifecycle: lifecycle.clone(), ..Settings::default() };
    Runtime::new(Arc::new(fake.clone()), store, settings, clock.clone())
}

impl Stage {
    async fn new(lifecycle: Lifecycle) -> Self {
        let (dir, fake) = (tempfile::tempdir().unwrap(), Fake::new());
        let clock = Clock::at("2026-01-01T12:00:00Z".parse::<Time>().unwrap());
        let runtime = open(&dir, &fake, &clock, &lifecycle);
        let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Use, "test")).await.unwrap();
        let caller = runtime.access().admit(Credential(&issued.text)).await.unwrap();
        Self { dir, fake, runtime, clock, caller }
    }

    /// The next server, with these settings. The one before let everything go as it was.
    async fn again(self, lifecycle: Lifecycle) -> Self {
        let Self { dir, fake, runtime, clock, caller } = self;
        let store = runtime.store().clone();
        drop(runtime);
        store.close().await;
        let runtime = open(&dir, &fake, &clock, &lifecycle);
        runtime.recover().await.unwrap().finished().await;
        Self { dir, fake, runtime, clock, caller }
    }

    fn ask(&self, scope: &str) -> Ask {
        let place = Place::Scope(Scope::fixed(scope).unwrap(), None);
        Ask { caller: self.caller.clone(), place, key: None, lease: None, front: "test" }
    }

    async fn ensure(&self, scope: &str) -> Record {
        let ensured = self.runtime.call(self.ask(scope), Ensure).await.unwrap().answer().await.unwrap();
        self.runtime.sandbox(&self.caller, &ensured.sandbox).await.unwrap()
    }

    async fn record(&self, scope: &str) -> Option<Record> {
        self.runtime.store().by_scope(&self.caller.tenant, &Scope::fixed(scope).unwrap()).await.unwrap()
    }

    async fn state(&self, scope: &str) -> SandboxState {
        self.record(scope).await.unwrap().state
    }

    async fn pass(&self, seconds: i64) -> Reaped {
        self.clock.advance(SignedDuration::from_secs(seconds));
        self.runtime.reap().await.unwrap()
    }

    fn write(&self, body: cabana_sandbox::Stream<Bytes>) -> Write {
        let at = At::new("file");
        Write { at, mode: WriteMode::Replace, perm: None, len: None, parents: false, tags: None, body, held: 0 }
    }

    async fn wrote(&self, scope: &str, text: &str) {
        let body = stream::iter([Ok(Bytes::from(text.to_owned()))]).boxed();
        self.runtime.call(self.ask(scope), self.write(body)).await.unwrap().answer().await.unwrap();
    }

    async fn reads(&self, scope: &str) -> String {
        let read = Read { at: At::new("file"), part: Part::Whole };
        let (_, opened) = self.runtime.look(self.ask(scope), read).await.unwrap();
        let parts: Vec<Bytes> = opened.body.try_collect().await.unwrap();
        String::from_utf8(parts.concat()).unwrap()
    }
}

fn idle(seconds: u64) -> Lifecycle {
    Lifecycle { idle_sec: Some(seconds), ..Lifecycle::default() }
}

#[tokio::test]
async fn a_call_that_takes_long_is_work_and_its_end_is_a_use() {
    let stage = Stage::new(idle(60)).await;
    stage.ensure("one").await;
    let (send, receive) = mpsc::channel::<Bytes>(1);
    let body = stream::unfold(receive, |mut receive| async { receive.recv().await.map(|bytes| (Ok(bytes), receive)) });
    let call = stage.runtime.call(stage.ask("one"), stage.write(body.boxed())).await.unwrap();
    send.send(Bytes::from_static(b"half ")).await.unwrap();
    assert_eq!(stage.pass(1000).await.stopped, 0, "a call is under way");
    assert_eq!(stage.pass(1000).await.stopped, 0);
    send.send(Bytes::from_static(b"whole")).await.unwrap();
    drop(send);
    call.answer().await.unwrap();
    assert_eq!(stage.pass(59).await.stopped, 0, "it was used a moment ago");
    assert_eq!(stage.pass(1).await.stopped, 1);
    assert_eq!(stage.reads("one").await, "half whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_hurt_by_a_stop_for_idleness_that_comes_at_the_same_moment() {
    let stage = Stage::new(idle(60)).await;
    for round in 0..300 {
        stage.clock.advance(SignedDuration::from_secs(61));
        let text = round.to_string();
        // The call comes a little later in each round: before the stop, in each of its steps, after it.
        let begun = Instant::now();
        let wrote = async {
            while begun.elapsed() < Duration::from_micros(5 * round) {
                tokio::task::yield_now().await;
            }
            stage.wrote("one", &text).await;
        };
        let (reaped, ()) = tokio::join!(stage.runtime.reap(), wrote);
        reaped.unwrap();
        assert_eq!(stage.reads("one").await, text);
    }
    assert_eq!(stage.pass(61).await.stopped, 1, "with nothing beside it");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_given_more_time_while_its_end_comes_goes_on() {
    let stage = Stage::new(Lifecycle { on_expire: Some(Action::Stop), ..Lifecycle::default() }).await;
    stage.ensure("one").await;
    for round in 0..300 {
        let until = |seconds| stage.clock.now() + SignedDuration::from_secs(seconds);
        let lifecycle = Lifecycle { expires_at: Some(until(10)), ..Lifecycle::default() };
        let change = Change { lifecycle: Some(lifecycle), ..Change::default() };
        stage.runtime.call(stage.ask("one"), change).await.unwrap().answer().await.unwrap();
        stage.clock.advance(SignedDuration::from_secs(11));
        // As above: before its end, in each step of it, after it.
        let begun = Instant::now();
        let given = async {
            while begun.elapsed() < Duration::from_micros(5 * round) {
                tokio::task::yield_now().await;
            }
            stage.runtime.call(stage.ask("one"), Wake { until: until(60) }).await.unwrap().answer().await.unwrap();
        };
        let (reaped, ()) = tokio::join!(stage.runtime.reap(), given);
        reaped.unwrap();
        assert_eq!((round, stage.state("one").await), (round, SandboxState::Running));
        stage.pass(59).await;
        assert_eq!((round, stage.state("one").await), (round, SandboxState::Running));
    }
    assert_eq!(stage.pass(1).await.stopped, 1, "its new end is one");
}

#[tokio::test]
async fn what_fails_is_tried_again_later_each_time_until_it_is_done() {
    let stage = Stage::new(idle(60)).await;
    let record = stage.ensure("one").await;
    stage.fake.be_away(12);
    assert_eq!(stage.pass(60).await.failed, 1);
    let mut waits = Vec::new();
    loop {
        let record = stage.record("one").await.unwrap();
        if record.state == SandboxState::Stopped {
            break;
        }
        assert_eq!((record.state, record.trouble.is_some()), (SandboxState::Stopping, true));
        assert_eq!(stage.pass(0).await.looked_at, 0, "not before its time");
        let wait = record.due.unwrap().duration_since(stage.clock.now()).as_secs();
        waits.push(wait);
        stage.pass(wait).await;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
    assert_eq!(stage.record("one").await.unwrap().tries, 0);
    assert_eq!(stage.ensure("one").await.id, record.id);

    stage.fake.be_away(3);
    let delete = Ask { place: Place::Sandbox(record.id.clone()), ..stage.ask("one") };
    let deleted = stage.runtime.call(delete, Become(Shape::Deleted)).await.unwrap().answer().await;
    assert!(deleted.is_err(), "it could not be done yet");
    assert!(stage.runtime.sandbox(&stage.caller, &record.id).await.is_err(), "it is gone for everybody");
    for _ in 0..4 {
        stage.pass(600).await;
    }
    assert_eq!(stage.record("one").await, None);
}

#[tokio::test]
async fn one_that_was_to_stop_and_could_not_serves_the_next_call() {
    let stage = Stage::new(idle(60)).await;
    stage.wrote("one", "kept").await;
    stage.fake.be_away(1);
    stage.pass(60).await;
    assert_eq!(stage.state("one").await, SandboxState::Stopping);
    assert_eq!(stage.reads("one").await, "kept");
    assert_eq!(stage.state("one").await, SandboxState::Running);
}

#[tokio::test]
async fn what_a_crash_left_undone_is_done_by_the_next_server() {
    let stage = Stage::new(Lifecycle { archive_after_sec: Some(100), ..idle(60) }).await;
    for scope in ["stops", "goes", "rests"] {
        stage.wrote(scope, scope).await;
    }
    let goes = stage.record("goes").await.unwrap();
    stage.fake.be_away(u64::MAX);
    stage.pass(60).await;
    let doom = Ask { place: Place::Nowhere, ..stage.ask("goes") };
    let purged = stage.runtime.call(doom, Purge(Which::All)).await.unwrap().answer().await.unwrap();
    assert_eq!(purged.sandboxes, 3);
    assert!(stage.runtime.sandbox(&stage.caller, &goes.id).await.is_err(), "at once");
    stage.fake.be_away(0);
    let stage = stage.again(idle(60)).await;
    stage.runtime.reap().await.unwrap();
    for scope in ["stops", "goes", "rests"] {
        assert_eq!(stage.record(scope).await, None);
    }
    stage.wrote("goes", "anew").await;
    assert_eq!(stage.reads("goes").await, "anew");
}

impl Stage {
    /// The server is gone, without a word, and another one begins.
    async fn killed(self) -> Self {
        let Self { dir, fake, runtime, clock, caller } = self;
        runtime.leave();
        runtime.store().clone().close().await;
        let fake = fake.of_next_server();
        let runtime = open(&dir, &fake, &clock, &Lifecycle::default());
        runtime.recover().await.unwrap().finished().await;
        Self { dir, fake, runtime, clock, caller }
    }

    /// A new one that belongs to no scope.
    fn make(&self, key: Option<&str>) -> Ask {
        let key = key.map(|key| IdempotencyKey::new(key.as_bytes()));
        Ask { place: Place::New(None), key, ..self.ask("none") }
    }

    async fn claimed(&self, many: usize) -> Vec<Record> {
        until(|| async {
            let all = self.runtime.sandbox_list(&self.caller, None, Page::first(10)).await.unwrap();
            (all.len() == many).then_some(all)
        })
        .await
    }
}

async fn until<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let asked = async {
        loop {
            match ask().await {
                Some(answer) => return answer,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.expect("it comes in time")
}

#[tokio::test]
async fn who_may_only_read_keeps_none_from_its_rest() {
    let stage = Stage::new(idle(60)).await;
    stage.wrote("one", "text").await;
    let sandbox = stage.record("one").await.unwrap().id;
    let looks = |role| Ask {
        caller: Caller { role, ..stage.caller.clone() },
        place: Place::Sandbox(sandbox.clone()),
        ..stage.ask("one")
    };
    let look = || Read { at: At::new("file"), part: Part::Whole };
    stage.pass(50).await;
    stage.runtime.look(looks(Role::Use), look()).await.unwrap();
    stage.pass(50).await;
    assert_eq!(stage.state("one").await, SandboxState::Running, "the control: who may use it has used it");
    let reading = stage.runtime.look(looks(Role::Read), look()).await.unwrap();
    stage.pass(11).await;
    assert_eq!(stage.state("one").await, SandboxState::Stopped, "though it is being read");
    drop(reading);
}

/// Whether the sandbox was there by then, or only its record.
#[tokio::test]
async fn a_create_that_a_crash_interrupted_is_answered_with_its_sandbox_where_it_can_be_asked_for_again() {
    for is_made in [false, true] {
        let stage = Stage::new(Lifecycle::default()).await;
        let _held = stage.fake.hold_begin().await;
        let (first, nobodys) = (stage.make(Some("key")), stage.make(None));
        let _calls =
            (stage.runtime.call(first, Ensure).await.unwrap(), stage.runtime.call(nobodys, Ensure).await.unwrap());
        let claimed = stage.claimed(2).await;
        if is_made {
            for record in &claimed {
                stage.fake.make(&record.physical);
            }
        }
        let stage = stage.killed().await;
        let again = stage.runtime.call(stage.make(Some("key")), Ensure).await.unwrap().answer().await.unwrap();
        assert!(again.created && claimed.iter().any(|record| record.id == again.sandbox), "{again:?}");
        stage.runtime.reap().await.unwrap();
        let left = stage.claimed(1).await;
        assert_eq!(left[0].id, again.sandbox, "what nobody can ask for goes");
        let at = |place| Ask { place, ..stage.ask("none") };
        let used = stage.runtime.call(at(Place::Sandbox(again.sandbox)), Ensure).await.unwrap().answer().await;
        assert!(!used.unwrap().created);
        until(|| async { (stage.fake.count() == 1).then_some(()) }).await;
    }
}

/// Who saw it in a list may use it by then.
#[tokio::test]
async fn a_create_that_a_crash_interrupted_takes_nothing_from_who_uses_its_sandbox_already() {
    let stage = Stage::new(Lifecycle::default()).await;
    let _held = stage.fake.hold_begin().await;
    let _making = stage.runtime.call(stage.make(None), Ensure).await.unwrap();
    let record = stage.claimed(1).await.remove(0);
    let at = |stage: &Stage| Ask { place: Place::Sandbox(record.id.clone()), ..stage.ask("none") };
    let _using = stage.runtime.call(at(&stage), Ensure).await.unwrap();
    stage.fake.make(&record.physical);
    let stage = stage.killed().await;
    stage.runtime.reap().await.unwrap();
    stage.runtime.call(at(&stage), Ensure).await.unwrap().answer().await.unwrap();
}

/// Starting one is the same call as making one.
#[tokio::test]
async fn a_start_that_a_crash_interrupted_costs_no_sandbox() {
    let stage = Stage::new(Lifecycle::default()).await;
    let made = stage.runtime.call(stage.make(None), Ensure).await.unwrap().answer().await.unwrap();
    let at = |stage: &Stage| Ask { place: Place::Sandbox(made.sandbox.clone()), ..stage.ask("none") };
    stage.runtime.call(at(&stage), Become(Shape::Stopped)).await.unwrap().answer().await.unwrap();
    let _held = stage.fake.hold_begin().await;
    let _call = stage.runtime.call(at(&stage), Ensure).await.unwrap();
    until(|| async { (stage.claimed(1).await[0].state == SandboxState::Waking).then_some(()) }).await;
    let stage = stage.killed().await;
    stage.runtime.reap().await.unwrap();
    assert!(!stage.runtime.call(at(&stage), Ensure).await.unwrap().answer().await.unwrap().created);
}

#[tokio::test]
async fn to_stop_all_is_to_stop_what_is_being_made_and_to_start_none_any_more() {
    let stage = Stage::new(Lifecycle::default()).await;
    stage.ensure("runs").await;
    stage.ensure("rests").await;
    let rests = Ask { place: Place::Scope(Scope::fixed("rests").unwrap(), None), ..stage.ask("rests") };
    stage.runtime.call(rests, Become(Shape::Stopped)).await.unwrap().answer().await.unwrap();
    let held = stage.fake.hold_begin().await;
    let making = stage.runtime.call(stage.ask("made"), Ensure).await.unwrap();
    let waking = stage.runtime.call(stage.ask("rests"), Ensure).await.unwrap();
    until(|| async {
        let states = [stage.record("made").await?.state, stage.state("rests").await];
        (states == [SandboxState::Provisioning, SandboxState::Waking]).then_some(())
    })
    .await;
    let runtime = stage.runtime.clone();
    let mut stopping = JoinSet::new();
    stopping.spawn(async move { runtime.stop_all("the end").await });
    until(|| async { (stage.state("runs").await == SandboxState::Stopped).then_some(()) }).await;
    assert!(stopping.try_join_next().is_none(), "what is being made is waited for");
    drop(held);
    stopping.join_next().await.unwrap().unwrap().unwrap();
    for call in [making, waking] {
        call.answer().await.unwrap(); // it was there, for a moment
    }
    for scope in ["runs", "rests", "made"] {
        assert_eq!(stage.state(scope).await, SandboxState::Stopped, "{scope}");
    }
    for scope in ["runs", "new"] {
        let told = stage.runtime.call(stage.ask(scope), Ensure).await.unwrap().answer().await.unwrap_err();
        assert_eq!(told.code(), Code::Draining, "{scope}");
    }
    assert_eq!(stage.fake.running(), 0);
    // The next server goes on where it was left.
    let stage = stage.again(Lifecycle::default()).await;
    for scope in ["runs", "new"] {
        stage.ensure(scope).await;
    }
}

/// A stop that failed is tried once more, and what cannot be stopped is named.
#[tokio::test]
async fn to_stop_all_names_what_it_could_not_stop() {
    let stage = Stage::new(Lifecycle::default()).await;
    let record = stage.ensure("one").await;
    stage.fake.be_away(1);
    let stop = stage.runtime.call(stage.ask("one"), Become(Shape::Stopped)).await.unwrap().answer().await;
    assert!(stop.is_err());
    assert_eq!(stage.state("one").await, SandboxState::Stopping);
    stage.fake.be_away(u64::MAX);
    let told = stage.runtime.stop_all("the end").await.unwrap_err().to_string();
    assert!(told.contains(record.physical.as_str()), "{told}");
    stage.fake.be_away(0);
    stage.runtime.stop_all("the end").await.unwrap();
    assert_eq!((stage.state("one").await, stage.fake.running()), (SandboxState::Stopped, 0));
}

/// Another user's may have its id then.
#[tokio::test]
async fn who_hears_of_one_sandbox_hears_of_none_that_has_its_id_later() {
    let stage = Stage::new(Lifecycle::default()).await;
    let chat = |app: &str, user: &str| Scope::chat_of(app, user, "7").unwrap();
    let ask = |scope| Ask { place: Place::Scope(scope, None), ..stage.ask("none") };
    let ensure = async |scope| stage.runtime.call(ask(scope), Ensure).await.unwrap().answer().await.unwrap().sandbox;
    let first = ensure(chat("shop-alice", "smith")).await;
    let mut listener = stage.runtime.events(&stage.caller, Some(&first)).await.unwrap();
    let delete = Ask { place: Place::Sandbox(first.clone()), ..stage.ask("none") };
    stage.runtime.call(delete, Become(Shape::Deleted)).await.unwrap().answer().await.unwrap();
    assert_eq!(ensure(chat("shop", "alice-smith")).await, first, "the same id");
    let mut heard = Vec::new();
    while let Some(said) = listener.next().await {
        let Heard::Event(happened) = said else { panic!("it missed some") };
        heard.push(format!("{:?}", happened.event));
    }
    assert!(heard.last().is_some_and(|last| last.starts_with("Deleted")), "{heard:?}");
}

#[tokio::test]
async fn whoever_listens_hears_of_each_of_many_that_go_at_once() {
    let stage = Stage::new(idle(60)).await;
    for scope in ["a", "b", "c"] {
        stage.ensure(scope).await;
    }
    stage.pass(60).await;
    let stage = stage.again(idle(60)).await; // nobody has asked this one about them
    let mut listener = stage.runtime.events(&stage.caller, None).await.unwrap();
    let doom = Ask { place: Place::Nowhere, ..stage.ask("a") };
    stage.runtime.call(doom, Purge(Which::All)).await.unwrap().answer().await.unwrap();
    stage.runtime.reap().await.unwrap();
    let mut heard = BTreeSet::new();
    while heard.len() < 3 {
        let Some(Heard::Event(happened)) = listener.next().await else { panic!("the events end") };
        if matches!(&happened.event, Event::Deleted { reason } if reason == "deleted with others") {
            assert!(heard.insert(happened.sandbox.clone()), "twice");
        }
    }
}

#[tokio::test]
async fn another_rule_counts_for_those_that_rest_already() {
    let stage = Stage::new(idle(60)).await;
    stage.wrote("one", "kept").await;
    stage.pass(60).await;
    assert_eq!((stage.state("one").await, stage.record("one").await.unwrap().due), (SandboxState::Stopped, None));
    let stage = stage.again(Lifecycle { archive_after_sec: Some(1000), ..idle(60) }).await;
    assert_eq!(stage.pass(0).await.looked_at, 1);
    assert_eq!(stage.pass(939).await.archived, 0);
    assert_eq!(stage.pass(1).await.archived, 1);
    assert_eq!(stage.state("one").await, SandboxState::Archived);
    assert_eq!(stage.reads("one").await, "kept");
}

#[tokio::test]
async fn a_pass_over_very_many_that_rest_looks_at_none_of_them() {
    let stage = Stage::new(idle(60)).await;
    for n in 0..100 {
        stage.ensure(&n.to_string()).await;
    }
    assert_eq!(stage.pass(60).await, Reaped { looked_at: 100, stopped: 100, ..Reaped::default() });
    assert_eq!(stage.pass(1_000_000).await, Reaped::default());
}

#[tokio::test]
async fn one_whose_record_is_older_than_its_archive_is_brought_back_and_not_begun_anew() {
    let rests = || Lifecycle { archive_after_sec: Some(100), ..idle(60) };
    let stage = Stage::new(rests()).await;
    stage.wrote("one", "kept").await;
    stage.pass(60).await;
    assert_eq!(stage.state("one").await, SandboxState::Stopped);
    let (db, older) = (stage.dir.path().join("db"), stage.dir.path().join("older"));
    stage.runtime.store().clone().close().await;
    std::fs::create_dir(&older).unwrap();
    let files = std::fs::read_dir(&db).unwrap().map(Result::unwrap);
    for file in files.filter(|entry| entry.file_type().unwrap().is_file()) {
        std::fs::copy(file.path(), older.join(file.file_name())).unwrap();
    }
    let stage = stage.again(rests()).await;
    stage.pass(100).await;
    assert_eq!(stage.state("one").await, SandboxState::Archived);
    stage.runtime.store().clone().close().await;
    std::fs::remove_dir_all(&db).unwrap();
    std::fs::rename(&older, &db).unwrap();
    let stage = stage.again(Lifecycle::default()).await;
    assert_eq!(stage.state("one").await, SandboxState::Stopped, "as the older record says");
    assert_eq!(stage.reads("one").await, "kept");
    assert_eq!(stage.state("one").await, SandboxState::Running);
}
