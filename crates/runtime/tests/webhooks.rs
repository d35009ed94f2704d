//! Webhooks of a runtime whose clock the test moves: order, tries, and whom nobody can hold up.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{path::Path, sync::Arc};

use cabana_runtime::{
    Act, Ask, Caller, Clock, Code, Credential, Error, EventFilter, Heard, Place, Result, Role, Runtime, Scope,
    Settings, Tenant, Time, WantedKey, WebhookId,
    acts::{
        sandbox::{Become, Ensure, Shape},
        webhook::{Add, Enable, Remove, Test},
    },
};
use cabana_store::{Durability, Store};
use cabana_testkit::{Answer, Fake, Got, Receiver};
use jiff::SignedDuration;

const WELL: Answer = Answer::Status(204, "");
const BADLY: Answer = Answer::Status(500, "");

struct Stage {
    dir: tempfile::TempDir,
    fake: Fake,
    clock: Clock,
    runtime: Runtime,
}

impl Stage {
    async fn new() -> Self {
        let (dir, fake) = (tempfile::tempdir().unwrap(), Fake::new());
        let clock = Clock::at("2026-01-01T12:00:00Z".parse::<Time>().unwrap());
        let runtime = open(dir.path(), &fake, &clock).await;
        Self { dir, fake, clock, runtime }
    }

    /// As after a kill: nobody was told that it ends.
    async fn again(&mut self) {
        self.runtime.leave();
        self.runtime.store().clone().close().await;
        self.runtime = open(self.dir.path(), &self.fake, &self.clock).await;
    }

    async fn add(&self, tenant: &Tenant, url: &str) -> WebhookId {
        self.try_to_add(tenant, url, None).await.unwrap()
    }

    async fn try_to_add(&self, tenant: &Tenant, url: &str, events: Option<EventFilter>) -> Result<WebhookId> {
        let add = Add::new(url.to_owned(), events)?;
        let id = add.id;
        self.call(tenant, add).await.map(|()| id)
    }

    async fn call<A: Act>(&self, tenant: &Tenant, act: A) -> Result<A::Answer> {
        let caller = self.caller(tenant).await;
        let ask = Ask { caller, place: Place::Nowhere, key: None, front: "test", lease: None };
        self.runtime.call(ask, act).await?.answer().await
    }

    async fn caller(&self, tenant: &Tenant) -> Caller {
        let access = self.runtime.access();
        let issued = access.issue(WantedKey::new(tenant.clone(), Role::Use, "test")).await.unwrap();
        access.admit(Credential(&issued.text)).await.unwrap()
    }

    /// A sandbox that is made and stopped: three events.
    async fn happen(&self, tenant: &Tenant, name: &str) {
        let caller = self.caller(tenant).await;
        let ask = |place| Ask { caller: caller.clone(), place, key: None, front: "test", lease: None };
        let place = Place::Scope(Scope::fixed(name).unwrap(), None);
        let made = self.runtime.call(ask(place), Ensure).await.unwrap().answer().await.unwrap();
        let stop = self.runtime.call(ask(Place::Sandbox(made.sandbox)), Become(Shape::Stopped)).await.unwrap();
        stop.answer().await.unwrap();
    }

    /// Until this holds of it.
    async fn until(&self, tenant: &Tenant, id: WebhookId, is: impl Fn(&cabana_runtime::Webhook, u32) -> bool) {
        let caller = self.caller(tenant).await;
        let looked = async {
            loop {
                let (webhook, deliveries) = self.runtime.webhook(&caller, id).await.unwrap();
                let tries = deliveries.iter().filter(|one| one.ended.is_none()).map(|one| one.attempts).max();
                if is(&webhook, tries.unwrap_or(0)) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), looked).await.expect("it comes in time");
    }
}

async fn open(dir: &Path, fake: &Fake, clock: &Clock) -> Runtime {
    let store = Store::open(dir, Durability::Kill).unwrap();
    let settings = Settings { sandbox: Fake::spec(), webhooks_allow: vec!["127.0.0.1".into()], ..Settings::default() };
    let runtime = Runtime::new(Arc::new(fake.clone()), store, settings, clock.clone());
    runtime.recover().await.unwrap().finished().await;
    runtime.send_webhooks(None, None).await.unwrap();
    runtime
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

fn kinds(got: &[Got]) -> Vec<String> {
    got.iter().map(|got| got.header("cabana-event-type").unwrap()).collect()
}

async fn wait_for(receiver: &Receiver, count: usize) -> Vec<Got> {
    let receiver = receiver.clone();
    tokio::task::spawn_blocking(move || receiver.wait_for(count)).await.unwrap()
}

const LIFE: [&str; 3] = ["sandbox.created", "sandbox.running", "sandbox.stopped"];

#[tokio::test]
async fn what_fails_is_tried_again_later_and_nothing_overtakes_it() {
    let stage = Stage::new().await;
    let (one, receiver) = (tenant("one"), Receiver::start(WELL).unwrap());
    receiver.then([
        BADLY,
        Answer::Close,
        Answer::Bytes(b"no HTTP at all".to_vec()),
        Answer::Status(302, "location: /x"),
    ]);
    let id = stage.add(&one, &receiver.url()).await;
    stage.happen(&one, "a").await;
    for tries in 1..=4_u32 {
        stage.until(&one, id, |_, tried| tried == tries).await;
        assert_eq!(receiver.got().len(), tries as usize, "nothing else is sent meanwhile");
        // Not before its time has come: a second, two, four, eight.
        stage.clock.advance(SignedDuration::from_millis(1000 * (1 << (tries - 1)) - 1));
        tokio::task::yield_now().await;
        assert_eq!(receiver.got().len(), tries as usize);
        stage.clock.advance(SignedDuration::from_millis(1));
    }
    let got = wait_for(&receiver, 4 + 3).await;
    assert_eq!(kinds(&got)[4..], LIFE);
    let ids: Vec<_> = got.iter().map(|got| got.header("cabana-event-id")).collect();
    assert!(ids[..5].iter().all(|id| *id == ids[0]), "the same event keeps its id: {ids:?}");
    stage.until(&one, id, |webhook, _| webhook.delivered == 3).await;
}

#[tokio::test]
async fn one_that_never_answers_holds_up_itself_alone() {
    let stage = Stage::new().await;
    let (one, other) = (tenant("one"), tenant("other"));
    let (silent, good) = (Receiver::start(Answer::Nothing).unwrap(), Receiver::start(WELL).unwrap());
    stage.add(&one, &silent.url()).await;
    stage.add(&one, &good.url()).await;
    stage.add(&other, &good.url()).await;
    for tenant in [&one, &other] {
        stage.happen(tenant, "a").await;
    }
    assert_eq!(wait_for(&good, 6).await.len(), 6);
    assert_eq!(silent.got().len(), 1);
}

#[tokio::test]
async fn what_waited_is_told_by_the_next_server() {
    let mut stage = Stage::new().await;
    let (one, receiver) = (tenant("one"), Receiver::start(BADLY).unwrap());
    let id = stage.add(&one, &receiver.url()).await;
    stage.happen(&one, "a").await;
    stage.until(&one, id, |_, tries| tries == 1).await;
    let before = receiver.got().len();
    receiver.from_now_on(WELL);
    stage.again().await;
    stage.clock.advance(SignedDuration::from_hours(1));
    assert_eq!(kinds(&wait_for(&receiver, before + 3).await[before..]), LIFE);
    stage.happen(&one, "b").await;
    assert_eq!(kinds(&wait_for(&receiver, before + 6).await[before + 3..]), LIFE);
}

#[tokio::test]
async fn one_that_fails_for_days_or_wants_no_more_is_disabled_with_the_reason() {
    let stage = Stage::new().await;
    let one = tenant("one");
    let (failing, gone) = (Receiver::start(BADLY).unwrap(), Receiver::start(Answer::Status(410, "")).unwrap());
    let mut listener = stage.runtime.events(&stage.caller(&one).await, None).await.unwrap();
    let (a, b) = (stage.add(&one, &failing.url()).await, stage.add(&one, &gone.url()).await);
    stage.happen(&one, "a").await;
    stage.until(&one, b, |webhook, _| webhook.disabled.is_some()).await;
    let told = stage.runtime.webhook(&stage.caller(&one).await, b).await.unwrap().0.disabled.unwrap().1;
    assert!(told.contains("410"), "{told}");
    for tries in 1..84 {
        stage.until(&one, a, |_, tried| tried == tries).await;
        stage.clock.advance(SignedDuration::from_hours(1));
    }
    stage.until(&one, a, |webhook, _| webhook.disabled.is_some()).await;
    let (webhook, deliveries) = stage.runtime.webhook(&stage.caller(&one).await, a).await.unwrap();
    let told = webhook.disabled.unwrap().1;
    assert!(told.contains("84 tries") && told.contains("500"), "{told}");
    assert_eq!((webhook.dropped, deliveries.len(), failing.got().len()), (3, 0, 84));
    let mut disabled = 0;
    while disabled < 2 {
        let Some(Heard::Event(happened)) = listener.next().await else { panic!("the events end") };
        disabled += i32::from(matches!(happened.event, cabana_runtime::Event::WebhookDisabled { .. }));
    }
    // Nothing more is sent there, but for a try that somebody asks for.
    stage.happen(&one, "b").await;
    assert!(!stage.call(&one, Test(a)).await.unwrap().delivered);
    assert_eq!((failing.got().len(), gone.got().len()), (85, 1));
    // Until somebody wants it back: it hears of what happens from then on.
    failing.from_now_on(WELL);
    for _ in 0..2 {
        stage.call(&one, Enable(a)).await.unwrap();
        assert_eq!(stage.runtime.webhook(&stage.caller(&one).await, a).await.unwrap().0.disabled, None);
    }
    stage.happen(&one, "c").await;
    assert_eq!(kinds(&wait_for(&failing, 88).await[85..]), LIFE);
    let by_another = stage.call(&tenant("two"), Enable(a)).await;
    assert_eq!(by_another.unwrap_err().code(), Code::WebhookNotFound);
}

#[tokio::test]
async fn what_no_transaction_tells_of_is_told_as_well_and_only_to_those_who_want_it() {
    let stage = Stage::new().await;
    let (one, receiver, other) = (tenant("one"), Receiver::start(WELL).unwrap(), Receiver::start(WELL).unwrap());
    let of_webhooks = EventFilter::new(vec!["webhook.disabled".into()]).unwrap();
    stage.try_to_add(&one, &receiver.url(), Some(of_webhooks)).await.unwrap();
    stage.add(&one, &other.url()).await;
    let gone = Receiver::start(Answer::Status(410, "")).unwrap();
    let id = stage.add(&one, &gone.url()).await;
    stage.happen(&one, "a").await;
    let got = wait_for(&receiver, 1).await;
    assert_eq!(kinds(&got), ["webhook.disabled"]);
    assert!(got[0].body.contains(&id.to_string()), "{}", got[0].body);
    assert_eq!(kinds(&wait_for(&other, 3).await), LIFE);
}

#[tokio::test]
async fn what_is_not_public_is_refused_unless_the_operator_allows_it() {
    let stage = Stage::new().await;
    let one = tenant("one");
    let refused = async |url: &str| {
        let error = stage.try_to_add(&one, url, None).await.unwrap_err();
        assert_eq!(error.code(), Code::BadRequest, "{url}");
        error.to_string()
    };
    for url in [
        "http://127.0.0.2:8080/",
        "http://2130706434:8080/",
        "http://0x7f.2:8080/",
        "http://[::1]:8080/",
        "http://[::ffff:127.0.0.1]:8080/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[fd00:ec2::254]/",
        "http://100.64.0.1/",
        "http://0.0.0.0:8080/",
        "http://[::]:8080/",
    ] {
        let why = refused(url).await;
        assert!(why.contains("not public"), "{url}: {why}");
    }
    assert!(refused("http://no-such-name.invalid/").await.contains("host name"));
    assert!(stage.runtime.webhooks(&stage.caller(&one).await).await.unwrap().is_empty());
    // What the operator takes back is not dialled any more, also by those that are there.
    let receiver = Receiver::start(WELL).unwrap();
    let id = stage.add(&one, &receiver.url()).await;
    stage.runtime.change_settings(Settings { sandbox: Fake::spec(), ..Settings::default() });
    let tried = stage.call(&one, Test(id)).await.unwrap();
    assert!(!tried.delivered && tried.said.contains("not public"), "{}", tried.said);
    assert!(receiver.got().is_empty());
}

#[tokio::test]
async fn a_tenant_has_sixteen_and_sees_only_its_own() {
    let stage = Stage::new().await;
    let (one, other) = (tenant("one"), tenant("other"));
    let mut first = None;
    for _ in 0..16 {
        first = Some(stage.add(&one, "http://127.0.0.1:9999/").await);
    }
    let more = stage.try_to_add(&one, "http://127.0.0.1:9999/", None).await;
    assert_eq!(more.unwrap_err().code(), Code::TooManyWebhooks);
    let id = first.unwrap();
    assert!(matches!(stage.runtime.webhook(&stage.caller(&other).await, id).await, Err(Error::NoWebhook(_))));
    assert_eq!(stage.call(&other, Test(id)).await.err().map(|error| error.code()), Some(Code::WebhookNotFound));
    assert_eq!(stage.call(&other, Remove(id)).await.unwrap_err().code(), Code::WebhookNotFound);
    stage.call(&one, Remove(id)).await.unwrap();
    stage.add(&one, "http://127.0.0.1:9999/").await;
}
