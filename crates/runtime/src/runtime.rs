//! The one function that every call goes through.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use cabana_model::{CallId, Code, KeyId, Outcome, Resource, Role, SandboxId, TaskId, Tenant, Time};
use cabana_sandbox::{NetworkPolicy, Provider};
use cabana_store::{By, Done, Entry, Log, NewCall, Reserved, SnapshotStep, Store, TenantPermits};
use futures_util::StreamExt;
use jiff::SignedDuration;
use sha2::{Digest, Sha256};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;
use uuid::Uuid;

use crate::{
    Access, Act, Ask, Call, Caller, Clock, Cx, Error, Listener, Live, Look, Metrics, Needs, Place, Result, Settings,
    call::{Acting, Following, Notes, RawCall, UnderWay, Work, outcome_of},
    events::Events,
    fault::{self, Point},
    finishing::{Finishing, Leaves},
    limits::Measuring,
    links::Links,
    memory::{MemoryCharge, MemoryLedger},
    ports::Visits,
    quotas::{Pass, Quotas, Wants},
    read_rows::ReadRows,
    reaper::Reaper,
    recover::{self, ONCE_ENDED, Pending},
    retention::Keeper,
    said,
    sandboxes::{Change, Kind, Sandboxes, Slot},
    series::AllSeries,
    shares::{self, CALLS},
    space::{Room, Space},
    store_health::StoreHealth,
    tasks::LiveTasks,
    turns::Turns,
    uploads,
    url_calls::UrlCalls,
    volumes::WALKS_AT_ONCE,
    watches::Watches,
    words,
};

/// Cheap to clone.
#[derive(Clone)]
pub struct Runtime(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Live<Settings>>,
    pub(crate) access: Access,
    pub(crate) links: Links,
    pub(crate) metrics: Metrics,
    pub(crate) store_health: StoreHealth,
    pub(crate) events: Arc<Events>,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) reaper: Reaper,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) calls: UnderWay,
    pub(crate) live_tasks: LiveTasks,
    pub(crate) watches: Watches,
    pub(crate) searches: TenantPermits,
    pub(crate) volume_walks: TenantPermits,
    pub(crate) uploads: TenantPermits,
    pub(crate) measuring: Measuring,
    /// Of lists that are being made or sent.
    pub(crate) lists: MemoryLedger,
    /// Of those who parse what long records say.
    pub(crate) parsing: Turns,
    /// Of what clients sent with calls that wait, and of input that commands have not read.
    pub(crate) held: MemoryLedger,
    pub(crate) answers: MemoryLedger,
    /// Of those who wait for room for an answer of what was done, and of those who make one.
    pub(crate) answer_queue: TenantPermits,
    pub(crate) answer_turns: TenantPermits,
    /// Of files that are read, and of bodies that are written as they come.
    pub(crate) reading: MemoryLedger,
    pub(crate) incoming: MemoryLedger,
    /// Of both where who reads or writes has no key but a URL.
    pub(crate) by_url: MemoryLedger,
    /// Of what comes out of ports.
    pub(crate) from_ports: MemoryLedger,
    pub(crate) series: AllSeries,
    pub(crate) visits: Visits,
    pub(crate) url_calls: UrlCalls,
    pub(crate) read_rows: ReadRows,
    pub(crate) quotas: Quotas,
    /// One after the other: each is judged by what is in use.
    pub(crate) setting_quotas: tokio::sync::Mutex<()>,
    /// What the last server left.
    pub(crate) left_calls: Pending<CallId>,
    pub(crate) left_tasks: Pending<TaskId>,
    pub(crate) attaching: TenantPermits,
    /// Marks what this process writes and has not finished: what another one left can be told from it.
    pub(crate) process: Uuid,
    pub(crate) tasks: TaskTracker,
    /// Nothing new is begun once it is set; what goes on is left to the next server.
    pub(crate) closing: CancellationToken,
}

/// How long a repeated request is known as one.
const KEYS_KEPT: SignedDuration = SignedDuration::from_hours(24);
const KEYS_LOOKED_AT: Duration = Duration::from_secs(600);

/// Between two tries to record what could not be recorded.
const AGAIN: Duration = Duration::from_millis(200);

/// Of one tenant.
pub(crate) const SEARCHES_AT_ONCE: usize = 4;

/// Memory of lists, in bytes.
const LISTS_OF_TENANT: usize = 64 << 20;
const LISTS_OF_ALL: usize = 512 << 20;

/// Memory of what clients sent and nothing has read yet, in bytes.
const HELD_OF_TENANT: usize = 64 << 20;
const HELD_OF_ALL: usize = 512 << 20;

/// Memory of answers that their clients have not taken, in bytes. A client may have very many requests open, so little of each is free.
const ANSWERS_OF_TENANT: usize = 64 << 20;
const ANSWERS_OF_ALL: usize = 512 << 20;

/// Memory of files on their way in one direction, in bytes: enough for all that have places.
const FILES_OF_TENANT: usize = 256 << 20;
const FILES_OF_ALL: usize = 512 << 20;
const BY_URL_OF_TENANT: usize = 16 << 20;
const BY_URL_OF_ALL: usize = 128 << 20;

/// Memory of what came out of ports, in bytes: enough for as many visitors as the ports of a sandbox have.
const FROM_PORTS_OF_TENANT: usize = 256 << 20;
const FROM_PORTS_OF_ALL: usize = 512 << 20;

impl Runtime {
    pub fn new(provider: Arc<dyn Provider>, store: Store, settings: Settings, clock: Clock) -> Self {
        let keeper = Arc::new(Keeper::new(Space::new(settings.data.clone(), settings.min_free)));
        let space = keeper.clone();
        store.outputs().keep_while(move || !space.space.room().is_some_and(Room::is_low));
        let (events, settings) = (Arc::new(Events::default()), Arc::new(Live::new(settings)));
        let quotas = Quotas::new(clock.clone(), settings.clone());
        let sandboxes = Sandboxes::new(
            provider,
            store.clone(),
            clock.clone(),
            events.clone(),
            settings.clone(),
            keeper.clone(),
            quotas.clone(),
        );
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let sandboxes = sandboxes.working_in(tasks.clone(), closing.clone());
        Self(Arc::new(Inner {
            access: Access::new(store.clone(), clock.clone()),
            links: Links::new(store.clone(), clock.clone()),
            metrics: Metrics::default(),
            store_health: StoreHealth::default(),
            store,
            clock,
            settings,
            events,
            sandboxes,
            reaper: Reaper::new(),
            keeper,
            calls: UnderWay::default(),
            live_tasks: LiveTasks::default(),
            watches: Watches::default(),
            searches: TenantPermits::new(SEARCHES_AT_ONCE),
            volume_walks: TenantPermits::new(WALKS_AT_ONCE),
            uploads: TenantPermits::new(uploads::AT_ONCE),
            measuring: Measuring::default(),
            lists: MemoryLedger::new(LISTS_OF_TENANT, LISTS_OF_ALL),
            parsing: Turns::new(1, 2),
            held: MemoryLedger::new(HELD_OF_TENANT, HELD_OF_ALL),
            answers: MemoryLedger::new(ANSWERS_OF_TENANT, ANSWERS_OF_ALL),
            answer_queue: TenantPermits::new(1),
            answer_turns: TenantPermits::new(1),
            reading: MemoryLedger::new(FILES_OF_TENANT, FILES_OF_ALL),
            incoming: MemoryLedger::new(FILES_OF_TENANT, FILES_OF_ALL),
            by_url: MemoryLedger::new(BY_URL_OF_TENANT, BY_URL_OF_ALL),
            from_ports: MemoryLedger::new(FROM_PORTS_OF_TENANT, FROM_PORTS_OF_ALL),
            series: AllSeries::default(),
            visits: Visits::default(),
            url_calls: UrlCalls::default(),
            read_rows: ReadRows::default(),
            quotas,
            setting_quotas: tokio::sync::Mutex::default(),
            left_calls: Pending::new(closing.clone()),
            left_tasks: Pending::new(closing.clone()),
            attaching: TenantPermits::new(recover::AT_ONCE),
            process: Uuid::new_v4(),
            tasks,
            closing,
        }))
    }

    pub fn access(&self) -> &Access {
        &self.0.access
    }

    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// For whatever begins from now on; and sandboxes that are there may be due at another time.
    pub fn change_settings(&self, settings: Settings) {
        self.0.settings.replace(settings);
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            if let Err(error) = runtime.due_by_settings().await {
                tracing::error!(%error, "sandboxes are looked after as the settings said before");
            }
            runtime.0.sandboxes.may_be_sooner();
        });
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// What happens from now on, to one sandbox of the tenant or to all.
    pub async fn events(&self, caller: &Caller, sandbox: Option<&SandboxId>) -> Result<Listener> {
        match sandbox {
            Some(sandbox) => drop(self.sandbox(caller, sandbox).await?), // of another tenant's there is nothing to hear
            None => caller.require_all_users()?,
        }
        self.0.events.listen(&caller.tenant, sandbox)
    }

    /// How many sandboxes run, and how many calls are under way.
    pub fn load(&self) -> (usize, usize) {
        (self.0.sandboxes.live(), self.0.calls.count())
    }

    /// Lets Idempotency-Keys go that are older than they are kept, until the runtime closes.
    pub fn forget_keys(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            loop {
                let before = runtime.0.clock.now().saturating_sub(KEYS_KEPT).unwrap_or(Time::MIN);
                if let Err(error) = runtime.0.store.forget_keys(before).await {
                    tracing::warn!(%error, "old Idempotency-Keys could not be let go");
                }
                if !runtime.closing_after(KEYS_LOOKED_AT).await {
                    return;
                }
            }
        });
    }

    /// Hears what the provider tells, until the runtime closes.
    pub fn listen(&self) {
        let (runtime, mut events) = (self.clone(), self.0.sandboxes.provider().events());
        self.0.tasks.spawn(async move {
            while let Some(Some(event)) = runtime.0.closing.run_until_cancelled(events.next()).await {
                match event {
                    Ok((sandbox, event)) => runtime.0.sandboxes.happened(&sandbox, event).await,
                    Err(error) => tracing::warn!(%error, "the provider's events"),
                }
            }
        });
    }

    /// Leaves commands to the next server. Whoever waits for one hears that.
    pub fn leave(&self) {
        self.0.closing.cancel();
    }

    /// Stops every sandbox that runs or is paused, and lets none start any more. One that cannot be stopped keeps no other from it.
    pub async fn stop_all(&self, why: &str) -> Result<()> {
        let left = self.0.sandboxes.stop_all(why).await?;
        if left.is_empty() { Ok(()) } else { Err(Error::NotStopped(left)) }
    }

    /// Waits for what is under way, as long as it is given; what is not done by then is found again by the next server.
    pub async fn close(&self, patience: Duration) {
        self.leave();
        self.0.tasks.close();
        let _ = tokio::time::timeout(patience, self.0.tasks.wait()).await;
    }

    pub async fn call<A: Act>(&self, ask: Ask, act: A) -> Result<Call<A::Answer>> {
        self.call_by(ask, act, Metering::ByKey).await
    }

    /// For one who comes without a key: as long as it is under way it has this, and nothing of the tenant's quota of calls.
    pub(crate) async fn call_unmetered<A: Act>(
        &self,
        ask: Ask,
        act: A,
        permit: OwnedSemaphorePermit,
    ) -> Result<Call<A::Answer>> {
        self.call_by(ask, act, Metering::Permitted(permit)).await
    }

    /// The same without a row: there is one of many for it. Its client may leave, and it goes on.
    pub(crate) async fn call_unrecorded<A: Act>(&self, ask: Ask, act: A, metering: Metering) -> Result<A::Answer> {
        let is_short = self.0.store.is_short().await;
        let wants = Wants { stores: act.stores(), removes: act.removes(), is_short, ..Wants::default() };
        let about =
            About { verb: A::VERB, kind: A::KIND, needs: act.needs(), wants, digest: [0; 32], argv: Vec::new() };
        let memory = self.hold(&ask.caller.tenant, act.held_bytes())?;
        let place = CALLS.take(&shares::tenant(&ask.caller.tenant)).ok_or(Error::TooManyCalls)?;
        let (pass, found) = self.admitted(&ask, &about, metering).await?;
        let (runtime, id, begun) = (self.clone(), CallId::now(), Instant::now());
        let span = said::span(about.verb, id, &ask.caller.tenant, found.as_ref().map(|(slot, _)| &**slot));
        let work = async move {
            let (call, _tell) = RawCall::new(id, runtime.0.store.outputs().begin(id.uuid(), 0));
            let worked = async {
                let cx = runtime.ready(&ask, &about, found.as_ref(), &call, &Arc::default()).await?;
                cx.note(|notes| notes.memory = Some(memory));
                act.run(cx).await
            };
            let worked = worked.await.map_err(|error| error.told_to(ask.caller.role));
            drop((pass, place));
            let outcome = match &worked {
                Ok(_) => Outcome::Answered(bytes::Bytes::new()),
                Err(error) => Outcome::Failed { code: error.code(), message: error.to_string() },
            };
            said::recorded(&runtime.0.metrics, &ask.caller.tenant, about.verb, &outcome, begun.elapsed());
            worked.map_err(in_log)
        };
        let work = work.instrument(span);
        Finishing::new(&self.0.tasks, |leaves| {
            leaves.mark(); // what it changes
            work
        })
        .await
    }

    async fn call_by<A: Act>(&self, ask: Ask, act: A, metering: Metering) -> Result<Call<A::Answer>> {
        // Asked for only by whoever repeats it, and that is known by its key.
        let digest = ask.key.map_or([0; 32], |key| match key.asked {
            Some(asked) => digest_of(A::VERB, &Place::Nowhere, &asked),
            None => digest_of(A::VERB, &ask.place, &act.digest()),
        });
        let is_short = self.0.store.is_short().await;
        let argv = match is_short || self.has_little_disk() {
            true => words::recorded_briefly(act.argv()),
            false => words::recorded(act.argv()),
        };
        let records = words::record_bytes(&argv);
        let (stores, removes) = (act.stores(), act.removes());
        let wants = Wants { task: A::BEGINS_TASK, stores, removes, records, is_short };
        let about = About { verb: A::VERB, kind: A::KIND, needs: act.needs(), wants, digest, argv };
        let memory = self.hold(&ask.caller.tenant, act.held_bytes())?;
        let (runtime, work) = (self.clone(), Box::new(Acting { act, memory }));
        let begin = Finishing::new(&self.0.tasks, |leaves| runtime.begin(ask, about, metering, work, leaves));
        let (call, repeated) = begin.await?;
        let following = match repeated {
            None => None,
            Some((act, following)) => {
                act.repeats(call.clone()).await?;
                Some(following)
            }
        };
        Ok(Call(call, PhantomData, following))
    }

    pub(crate) fn hold(&self, tenant: &Tenant, bytes: usize) -> Result<MemoryCharge> {
        let mut memory = self.0.held.open(tenant);
        if memory.grow(bytes) { Ok(memory) } else { Err(Error::HeldTooLarge) }
    }

    /// The act comes back when it repeats another, and so is not run.
    async fn begin(
        self,
        ask: Ask,
        about: About,
        metering: Metering,
        work: Box<dyn Work>,
        leaves: Leaves,
    ) -> Result<(RawCall, Option<(Box<dyn Work>, Following)>)> {
        let id = CallId::now();
        let place = CALLS.take(&shares::tenant(&ask.caller.tenant)).ok_or(Error::TooManyCalls)?;
        if matches!(ask.place, Place::New(_) | Place::Once(_)) {
            leaves.mark(); // the record of a sandbox that nothing but this call leads to
        }
        let (mut pass, found) = match self.admitted(&ask, &about, metering).await {
            // It may have gone, or have taken the last of a quota, by this very call: the same key gives the same answer.
            Err(error @ (Error::NoSandbox(_) | Error::Exceeded(_) | Error::LowDisk { .. })) if ask.key.is_some() => {
                return match self.0.store.repeated(self.new_call(&ask, &about, id, None)).await? {
                    Some(Reserved::Running(first) | Reserved::Done(first, _)) => {
                        let Ok(call) = self.followed(&ask, first).await else { return Err(error) };
                        Ok((call, Some((work, self.following(&ask, &about, place, None)))))
                    }
                    _ => Err(error),
                };
            }
            found => found?,
        };
        let slot = found.as_ref().map(|(slot, _)| slot.clone());
        // From here on: it is not stopped for idleness between two moments of this.
        let awake = slot.as_ref().map(|slot| slot.awake(about.kind));
        let output = self.0.store.outputs().begin(id.uuid(), self.0.settings.output_cap);
        let (call, tell) = RawCall::new(id, output);
        leaves.mark(); // its row, which only its outcome ends
        self.0.calls.add(call.clone());
        let reserved = self.0.store.reserve(self.new_call(&ask, &about, id, found.as_ref())).await;
        if !matches!(reserved, Ok(Reserved::Running(_) | Reserved::Done(..) | Reserved::Conflict)) {
            pass.is_recorded(); // also where the store does not say
        }
        if !matches!(reserved, Ok(Reserved::Fresh)) {
            self.0.calls.remove(id);
            // One that was made for this call alone was made for nothing.
            if let (Some(slot), Place::New(_) | Place::Once(_)) = (&slot, &ask.place) {
                let change = Change::asked(By::Itself, "its call was made before");
                self.0.sandboxes.delete(slot, change).await?;
            }
        }
        match reserved? {
            Reserved::Fresh => {}
            Reserved::Running(first) | Reserved::Done(first, _) => {
                let call = self.followed(&ask, first).await?;
                return Ok((call, Some((work, self.following(&ask, &about, place, Some(pass.into_follower()))))));
            }
            Reserved::Conflict => return Err(Error::KeyReused),
        }
        fault::at(Point::CallReserved);
        let (runtime, handle, once) = (self.clone(), call.clone(), matches!(ask.place, Place::Once(_)));
        let ask = Ask { place: Place::Nowhere, ..ask }; // what its sandbox was asked to be is in the record
        let span = said::span(about.verb, id, &ask.caller.tenant, slot.as_deref());
        let work = async move {
            let begun = Instant::now();
            let notes = Notes { tell: Some(tell.clone()), task: pass.task(), awake, ..Notes::default() };
            let notes = Arc::new(std::sync::Mutex::new(notes));
            let result = runtime.work(&ask, &about, found.as_ref(), &call, &notes, work).await;
            let of_margin = pass.of_margin;
            drop((pass, place)); // whoever hears of its end may begin another
            if let Err(Error::Left) = result {
                call.output.end(); // for whoever reads along
                return runtime.0.calls.remove(id);
            }
            let is_void = result.is_err() || notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_void;
            let withdrawn = of_margin.filter(|_| is_void);
            let settled = Settled { id, slot: slot.clone(), notes, begun, outcome: outcome_of(result), withdrawn };
            runtime.settle(&ask, about, &call, settled, tell).await;
            if let Some(slot) = slot.filter(|_| once)
                && let Err(error) = runtime.0.sandboxes.delete(&slot, Change::asked(By::Itself, ONCE_ENDED)).await
            {
                tracing::warn!(%error, "a sandbox for one call could not be deleted yet");
            }
        };
        self.0.tasks.spawn(work.instrument(span));
        Ok((handle, None))
    }

    /// Waits as long as the first may take. One that has ended between the two looks has its outcome by now.
    async fn followed(&self, ask: &Ask, first: CallId) -> Result<RawCall> {
        self.call_row(&ask.caller, first).await?; // of another user, it is none that can be followed
        self.0.left_calls.taken_up(&first).await?;
        if let Some(call) = self.0.calls.get(first) {
            return Ok(call);
        }
        let row = self.call_row(&ask.caller, first).await?;
        let output = self.ended_output(&row).await?;
        Ok(RawCall::done(first, output, row.outcome.unwrap_or(Outcome::Unknown)))
    }

    fn following(&self, ask: &Ask, about: &About, place: shares::Share, pass: Option<Pass>) -> Following {
        let (runtime, tenant) = (self.clone(), ask.caller.tenant.clone());
        Following { runtime, tenant, removes: about.wants.removes, _pass: pass, _place: place }
    }

    fn new_call(&self, ask: &Ask, about: &About, id: CallId, found: Option<&(Arc<Slot>, bool)>) -> NewCall {
        let slot = found.map(|(slot, _)| slot);
        NewCall {
            id,
            tenant: ask.caller.tenant.clone(),
            key: ask.caller.key,
            sandbox: slot.map(|slot| slot.record().id.clone()),
            user: match slot {
                Some(slot) => slot.record().user.clone(),
                None => ask.caller.subject.user().map(str::to_owned),
            },
            made: found.is_some_and(|(_, made)| *made),
            verb: about.verb,
            front: ask.front,
            digest: about.digest,
            once: ask.idempotency_key(),
            argv: about.argv.clone(),
            at: self.0.clock.now(),
        }
    }

    /// What only this machine can reach, its own services too, is the operator's to give.
    pub(crate) async fn check_network(&self, caller: &Caller, network: &NetworkPolicy) -> Result<()> {
        if caller.role == Role::Admin || *network == self.0.settings.sandbox.network {
            return Ok(());
        }
        match self.reaches_inside(network).await? {
            true => Err(Error::Inside),
            false => Ok(()),
        }
    }

    /// A long list is read off the workers that everybody waits for.
    async fn reaches_inside(&self, network: &NetworkPolicy) -> Result<bool> {
        let provider = self.0.sandboxes.provider().clone();
        if !network.is_long() {
            return Ok(provider.reaches_inside(network)?);
        }
        let network = network.clone();
        let read = tokio::task::spawn_blocking(move || provider.reaches_inside(&network)).await;
        let ended = |error| cabana_sandbox::Error::failed("reading the network's rules", std::io::Error::other(error));
        Ok(read.map_err(ended)??)
    }

    /// Whether it may begin, by all quotas. What is refused here leaves no row: a flood fills nothing. It is counted.
    async fn admitted(&self, ask: &Ask, about: &About, by: Metering) -> Result<(Pass, Option<(Arc<Slot>, bool)>)> {
        let admitted = self.admit(ask, about, by).await;
        match &admitted {
            Err(Error::Exceeded(exceeded)) => self.0.metrics.refused(&ask.caller.tenant, exceeded.quota.as_str()),
            Err(Error::RateLimited { .. }) => {
                self.0.metrics.refused(&ask.caller.tenant, Resource::CallsPerSec.as_str());
            }
            _ => {}
        }
        admitted
    }

    async fn admit(&self, ask: &Ask, about: &About, by: Metering) -> Result<(Pass, Option<(Arc<Slot>, bool)>)> {
        if about.wants.stores && about.wants.is_short {
            let about =
                ": it is full, and what the server keeps for its records is left to what frees something".to_owned();
            return Err(Error::LowDisk { about: Some(about) }.told_to(ask.caller.role));
        }
        let mut pass = match by {
            Metering::ByKey => self.0.quotas.call(&ask.caller, about.wants)?,
            Metering::Permitted(permit) => self.0.quotas.unmetered(&ask.caller, about.wants, permit)?,
        };
        let found = self.resolve(ask, about.needs).await?;
        if let (Some((slot, _)), Needs::Running, true) = (&found, about.needs, ask.caller.role > Role::Read) {
            pass.room = self.0.sandboxes.make_room(slot)?;
        }
        Ok((pass, found))
    }

    /// Which sandbox it is for, and whether there was none. Nothing is started for it.
    async fn resolve(&self, ask: &Ask, needs: Needs) -> Result<Option<(Arc<Slot>, bool)>> {
        let found = self.found(ask, needs).await.map_err(|error| error.told_to(ask.caller.role))?;
        if let Some((slot, _)) = &found {
            slot.parse_if_long(&self.0.parsing).await?;
        }
        Ok(found)
    }

    async fn found(&self, ask: &Ask, needs: Needs) -> Result<Option<(Arc<Slot>, bool)>> {
        if needs == Needs::Nothing {
            return Ok(None);
        }
        let (caller, tenant) = (&ask.caller, &ask.caller.tenant);
        if let Place::Scope(_, Some(wanted)) | Place::New(Some(wanted)) | Place::Once(Some(wanted)) = &ask.place {
            wanted.check()?;
            wanted.mounts.check(tenant, &self.0.settings)?;
            self.check_network(&ask.caller, &wanted.sandbox.network).await?;
            self.0.sandboxes.provider().capabilities().check(&wanted.sandbox)?;
        }
        match &ask.place {
            Place::Scope(scope, wanted) => {
                caller.check_user(scope.named_user().as_deref())?;
                self.0.sandboxes.of_scope(caller, scope, wanted.as_ref()).await.map(Some)
            }
            Place::Chat { app, chat, user } => {
                self.0.sandboxes.of_chat(caller, app, chat, user.as_deref()).await.map(Some)
            }
            Place::Sandbox(id) => self.0.sandboxes.of_id(caller, id).await.map(|slot| Some((slot, false))),
            Place::New(wanted) | Place::Once(wanted) => {
                let once = matches!(ask.place, Place::Once(_));
                self.0.sandboxes.of_nobody(caller, wanted.as_ref(), once).await.map(|slot| Some((slot, true)))
            }
            Place::Nowhere => Err(Error::invalid("sandbox", "is not named: give a scope or an id")),
        }
    }

    async fn work(
        &self,
        ask: &Ask,
        about: &About,
        found: Option<&(Arc<Slot>, bool)>,
        call: &RawCall,
        notes: &Arc<std::sync::Mutex<Notes>>,
        work: Box<dyn Work>,
    ) -> Result<bytes::Bytes> {
        let worked = async { work.run(self.ready(ask, about, found, call, notes).await?).await };
        worked.await.map_err(|error| error.told_to(ask.caller.role))
    }

    async fn ready(
        &self,
        ask: &Ask,
        about: &About,
        found: Option<&(Arc<Slot>, bool)>,
        call: &RawCall,
        notes: &Arc<std::sync::Mutex<Notes>>,
    ) -> Result<Cx> {
        let slot = found.map(|(slot, _)| slot);
        let early = notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).awake.take();
        // Who only looks keeps none from its rest, however long that takes.
        let awake = match ask.caller.role {
            Role::Read => None,
            _ => early.or_else(|| slot.map(|slot| slot.awake(about.kind))).map(Arc::new),
        };
        if let (Some(slot), Some(token)) = (slot, ask.lease) {
            self.0.sandboxes.holds(slot, token)?;
        }
        let sandbox = match slot {
            Some(slot) if about.needs == Needs::Running => {
                self.0.sandboxes.taken_up(slot).await?;
                if ask.caller.role == Role::Read && slot.live().is_none() {
                    return Err(Error::Asleep(slot.record().id.clone()));
                }
                let sandbox = self.0.sandboxes.running(slot, about.verb).await?;
                if ask.caller.role > Role::Read {
                    self.0.sandboxes.touch(slot).await;
                }
                Some(sandbox)
            }
            _ => None,
        };
        Ok(Cx {
            call: call.id,
            caller: ask.caller.clone(),
            runtime: self.clone(),
            record: slot.map(|slot| slot.record()),
            slot: slot.cloned(),
            made: found.is_some_and(|(_, made)| *made),
            sandbox,
            output: call.output.clone(),
            cancel: call.cancel.clone(),
            notes: notes.clone(),
            awake,
            lease: ask.lease,
        })
    }

    /// Records what came of it, and only then tells. A store that is away is asked until it is back: until then whoever
    /// waits hears that, and not an answer that a crash could take back.
    async fn settle(
        &self,
        ask: &Ask,
        about: About,
        call: &RawCall,
        settled: Settled,
        tell: tokio::sync::watch::Sender<Option<Outcome>>,
    ) {
        let ended = call.output.end();
        let entry = self.entry(ask, &about, &settled);
        let step = settled.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).snapshot;
        let Settled { id, slot, begun, outcome, withdrawn, .. } = settled;
        let entry = Entry { output_digest: (ended.stdout + ended.stderr > 0).then_some(ended.digest), ..entry };
        let done = Done { id, outcome: outcome.clone(), output: ended.inline, entry };
        let mut told = false;
        fault::at(Point::CallWorked);
        let withdrawn = withdrawn.filter(|_| step.is_none());
        while let Err(error) = self.record(&call.output, &done, step, withdrawn).await {
            let comes_back = matches!(error, cabana_store::Error::Unavailable(_));
            tracing::error!(%error, comes_back, "a call could not be recorded");
            if !told {
                let error = Error::from(error);
                let away = Outcome::Failed { code: error.code(), message: error.to_string() };
                told = tell.send(Some(away)).is_ok();
            }
            let again = async { comes_back && self.closing_after(AGAIN).await };
            if !again.await {
                self.0.calls.remove(id);
                return; // the next server settles it
            }
        }
        fault::at(Point::CallRecorded);
        match withdrawn {
            Some(bytes) => self.0.quotas.take_recorded(&ask.caller.tenant, bytes),
            None => self.0.metrics.ledger_row(),
        }
        said::recorded(&self.0.metrics, &ask.caller.tenant, about.verb, &outcome, begun.elapsed());
        let _ = tell.send(Some(outcome));
        self.0.calls.remove(id);
        fault::at(Point::CallTold);
        if let Some(sandbox) = slot.and_then(|slot| slot.live()) {
            let _ = sandbox.forget(&id.into()).await; // it may have run no command at all
        }
    }

    async fn record(
        &self,
        log: &Log,
        done: &Done,
        step: Option<SnapshotStep>,
        withdrawn: Option<u64>,
    ) -> cabana_store::Result<()> {
        log.settle().await?;
        match (step, withdrawn) {
            (Some(step), _) => self.0.store.record_snapshot(done.clone(), step).await,
            (None, Some(_)) => self.0.store.withdraw_call(&done.entry.tenant, done.id).await,
            (None, None) => self.0.store.record(done.clone()).await,
        }
    }

    /// A row of the ledger about what is no call of anybody's.
    pub(crate) fn entry_of_none(&self, tenant: &Tenant, key: KeyId, verb: &str, argv: Vec<String>) -> Entry {
        Entry::of_no_call(tenant.clone(), key, verb, argv, self.0.clock.now())
    }

    /// What somebody did that is no call.
    pub async fn note(&self, caller: &Caller, verb: &str, argv: Vec<String>) -> Result<()> {
        Ok(self.0.store.note(caller.entry(verb, argv, self.0.clock.now())).await?)
    }

    /// Where nobody is known who did it. It is in the ledger of the operator.
    pub async fn note_of_strangers(&self, verb: &str, argv: Vec<String>) -> Result<()> {
        let entry = self.entry_of_none(&Tenant::default(), KeyId::from(Uuid::nil()), verb, argv);
        Ok(self.0.store.note(entry).await?)
    }

    /// False when the runtime closes meanwhile.
    pub(crate) async fn closing_after(&self, wait: Duration) -> bool {
        self.0.closing.run_until_cancelled(tokio::time::sleep(wait)).await.is_some()
    }

    fn entry(&self, ask: &Ask, about: &About, settled: &Settled) -> Entry {
        let Settled { id, slot, notes, begun, outcome, .. } = settled;
        let notes = notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Entry {
            tenant: ask.caller.tenant.clone(),
            key: ask.caller.key,
            sandbox: slot.as_ref().map(|slot| slot.record().id.clone()),
            call: *id,
            verb: about.verb.into(),
            argv: match outcome {
                Outcome::Failed { code: Code::BadRequest | Code::InvalidPath, .. } => {
                    words::recorded_briefly(about.argv.clone())
                }
                _ => about.argv.clone(),
            },
            input_digest: notes.input,
            output_digest: None,
            outcome: match outcome {
                Outcome::Failed { code, .. } => code.as_str().to_owned(),
                outcome => outcome.as_str().to_owned(),
            },
            exit: notes.exit,
            duration_ms: begun.elapsed().as_millis() as u64,
            policy: None,
            at: self.0.clock.now(),
        }
    }

    /// Something that changes nothing: it is done here and now, and leaves its row, or is summed up with others in one.
    pub async fn look<L: Look>(&self, ask: Ask, look: L) -> Result<(CallId, L::Answer)> {
        let about = About::look(&look);
        let (_pass, found) = self.admitted(&ask, &about, Metering::ByKey).await?;
        let leaves_row = self.leaves_row(&ask.caller, &about.argv).await;
        self.looked(ask, about, found, look, leaves_row).await
    }

    /// The same for clients without a key, where `may_leave_rows`: strangers use up no quota of calls, but their rows count. This one says
    /// how many before it left none.
    pub(crate) async fn look_unmetered<L: Look>(&self, ask: Ask, look: L, untold: u64) -> Result<(CallId, L::Answer)> {
        let mut about = About::look(&look);
        about.argv.extend((untold > 0).then(|| format!("after {untold} more")));
        let found = self.resolve(&ask, about.needs).await?;
        self.0.quotas.add_recorded(&ask.caller.tenant, words::record_bytes(&about.argv));
        self.looked(ask, about, found, look, true).await
    }

    /// The same without a row: there is one of others for it.
    pub(crate) async fn look_unrecorded<L: Look>(&self, ask: Ask, look: L) -> Result<L::Answer> {
        let about = About::look(&look);
        let found = self.resolve(&ask, about.needs).await?;
        let id = CallId::now();
        let (call, _tell) = RawCall::new(id, self.0.store.outputs().begin(id.uuid(), 0));
        let ready = self.ready(&ask, &about, found.as_ref(), &call, &Arc::default()).await;
        look.run(ready.map_err(|error| error.told_to(ask.caller.role))?).await
    }

    async fn looked<L: Look>(
        &self,
        ask: Ask,
        about: About,
        found: Option<(Arc<Slot>, bool)>,
        look: L,
        leaves_row: bool,
    ) -> Result<(CallId, L::Answer)> {
        let id = CallId::now();
        let _held = self.hold(&ask.caller.tenant, look.argv().iter().map(String::len).sum())?;
        let span = said::span(about.verb, id, &ask.caller.tenant, found.as_ref().map(|(slot, _)| &**slot));
        self.recorded(ask, about, id, found, look, leaves_row).instrument(span).await
    }

    async fn recorded<L: Look>(
        &self,
        ask: Ask,
        about: About,
        id: CallId,
        found: Option<(Arc<Slot>, bool)>,
        look: L,
        leaves_row: bool,
    ) -> Result<(CallId, L::Answer)> {
        let (begun, notes) = (Instant::now(), Arc::default());
        let (call, _tell) = RawCall::new(id, self.0.store.outputs().begin(id.uuid(), 0));
        let looked = match self.ready(&ask, &about, found.as_ref(), &call, &notes).await {
            Ok(cx) => look.run(cx).await,
            Err(error) => Err(error.told_to(ask.caller.role)),
        };
        let outcome = match &looked {
            Ok(_) => Outcome::Answered(bytes::Bytes::new()),
            Err(error) => Outcome::Failed { code: error.code(), message: error.to_string() },
        };
        let settled = Settled { id, slot: found.map(|(slot, _)| slot), notes, begun, outcome, withdrawn: None };
        fault::at(Point::LookSeen);
        if leaves_row {
            self.0.store.note(self.entry(&ask, &about, &settled)).await?;
            self.0.metrics.ledger_row();
        }
        said::recorded(&self.0.metrics, &ask.caller.tenant, about.verb, &settled.outcome, begun.elapsed());
        looked.map(|answer| (id, answer)).map_err(in_log)
    }
}

/// What is in the log by now is not said a second time.
fn in_log(error: Error) -> Error {
    match error.code() {
        code if code.is_fault() => Error::Recorded { code, message: error.to_string() },
        _ => error,
    }
}

/// Of what was asked, and not of the sandbox that it was found to mean: that is another one at each try, if it is made for the
/// call alone or was deleted meanwhile.
fn digest_of(verb: &str, place: &Place, act: &[u8; 32]) -> [u8; 32] {
    let place = format!("{place:?}");
    Sha256::new()
        .chain_update(verb)
        .chain_update([0])
        .chain_update(place)
        .chain_update([0])
        .chain_update(act)
        .finalize()
        .into()
}

/// What a call is counted by.
pub(crate) enum Metering {
    /// By the quotas of its tenant and its key.
    ByKey,
    /// By a place among those that come without a key.
    Permitted(OwnedSemaphorePermit),
}

/// What is known of a call before it begins.
struct About {
    verb: &'static str,
    kind: Kind,
    needs: Needs,
    wants: Wants,
    digest: [u8; 32],
    argv: Vec<String>,
}

impl About {
    fn look<L: Look>(look: &L) -> Self {
        Self {
            verb: L::VERB,
            kind: Kind::Call,
            needs: look.needs(),
            wants: Wants::default(),
            digest: [0; 32],
            argv: words::recorded_briefly(look.argv()),
        }
    }
}

/// What came of it.
struct Settled {
    id: CallId,
    slot: Option<Arc<Slot>>,
    notes: Arc<std::sync::Mutex<Notes>>,
    begun: Instant,
    outcome: Outcome,
    /// Bytes of records that are gone again: a removal that found nothing to remove takes nothing of what a ledger has for removals.
    withdrawn: Option<u64>,
}
