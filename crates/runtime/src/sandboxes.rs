//! From a scope to a sandbox that runs, and from there to a stop or the end.
//!
//! A sandbox has one slot while somebody uses it: its record, the handle on it while it runs, and a lock under which its
//! shape changes. Calls take the handle and no lock. What the record says is written before the provider is asked to make
//! something and after it has ended something, so a crash in between leaves a record without a sandbox, which the next call
//! makes again, and never a sandbox without a record.

mod changing;
mod left;
mod life;
mod long_specs;
mod slot;
mod stop_all;
#[cfg(test)]
mod tests;
mod walks;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use cabana_model::{Dialect, Lifecycle, SandboxId, SandboxState, Scheme, Scope, SnapshotId, Tenant, Time};
use cabana_sandbox::{Base, Provider, SandboxSpec};
use cabana_store::{Admitted, Claim, Record, Store, Which};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::slot::Kind;
pub(crate) use self::{
    life::Change,
    slot::{Awake, Slot},
};
use crate::{
    Caller, Clock, Error, Live, Mounts, Result, Settings, check_kept_env,
    disk_pressure::DiskPressure,
    events::Events,
    fault::{self, Point},
    profiles::Wish,
    quotas::Quotas,
    recover::Pending,
    retention::Keeper,
};

/// Of all that a sandbox was asked to be, as JSON: lists have it of each. The variables that it may keep fit, however many characters of them
/// JSON writes as six.
const MAX_SPEC: usize = 512 << 10;

/// What is kept with a sandbox stays small.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    const MOST: usize = 64;
    const LONGEST: (usize, usize) = (256, 8 << 10);
    /// Of all together, as JSON.
    const MAX_BYTES: usize = 32 << 10;
    if labels.len() > MOST {
        return Err(Error::invalid("labels", format!("are more than {MOST}")));
    }
    if labels.contains_key("") {
        return Err(Error::invalid("labels", "has a name that is empty"));
    }
    match labels.iter().find(|(name, value)| name.len() > LONGEST.0 || value.len() > LONGEST.1) {
        Some((name, _)) => {
            let shown: String = name.chars().take(32).collect();
            Err(Error::invalid(
                "labels",
                format!("{shown:?} is too long: names have at most {} bytes, values {}", LONGEST.0, LONGEST.1),
            ))
        }
        None => match as_json("labels", labels)?.len() {
            bytes if bytes > MAX_BYTES => {
                Err(Error::invalid("labels", format!("have {bytes} bytes in all, as JSON: at most {MAX_BYTES}")))
            }
            _ => Ok(()),
        },
    }
}

fn as_json(field: &'static str, value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::invalid(field, error.to_string()))
}

/// What a sandbox was asked to be. Its record keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    pub sandbox: SandboxSpec,
    /// For every command of it. The values are secrets: they are in the record and nowhere else.
    pub env: BTreeMap<String, String>,
    /// Whether it ends with the call that it was made for.
    pub once: bool,
    /// What it begins with, instead of what the spec says. The name that the provider knows it by is in the record's spec.
    #[serde(default)]
    pub snapshot: Option<SnapshotId>,
    /// By name. What they lead to is found when it is mounted.
    #[serde(default)]
    pub mounts: Mounts,
    #[serde(default)]
    pub lifecycle: Lifecycle,
    /// Named for it; where none is, the server's own.
    #[serde(default)]
    pub dialect: Option<String>,
    /// Named for it; where none is, the dialect's usual one.
    #[serde(default)]
    pub profile: Option<String>,
    /// Names and values of whoever made it, to know it by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What a front keeps of it, by the front's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, serde_json::Value>,
}

impl Wanted {
    /// As its record has it.
    pub fn of(record: &Record) -> Result<Self> {
        Self::parse(&record.spec)
    }

    pub fn parse(spec: &str) -> Result<Self> {
        serde_json::from_str(spec)
            .map_err(|error| Error::Store(cabana_store::Error::Corrupt(format!("the spec of a sandbox: {error}"))))
    }

    /// As its record keeps it.
    fn to_spec(&self) -> Result<String> {
        let spec = as_json("spec", self)?;
        match spec.len() > MAX_SPEC {
            true => {
                Err(Error::invalid("spec", format!("has {} bytes in all, as JSON: at most {MAX_SPEC}", spec.len())))
            }
            false => Ok(spec),
        }
    }

    /// What nothing can be, whether it is made now or was there before. Whether there is such a template is the provider's
    /// to say.
    pub(crate) fn check(&self) -> Result<()> {
        const LONGEST: usize = 128;
        check_kept_env(&self.env)?;
        check_labels(&self.labels)?;
        self.lifecycle.check()?;
        self.to_spec()?;
        match &self.sandbox.base {
            Base::Named(name) if name.is_empty() || name.len() > LONGEST || name.contains(char::is_control) => {
                Err(Error::invalid("template", "is no name of a template"))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) struct Sandboxes {
    provider: Arc<dyn Provider>,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    events: Arc<Events>,
    settings: Arc<Live<Settings>>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) pressure: Arc<DiskPressure>,
    quotas: Quotas,
    slots: Mutex<Slots>,
    /// What the last server left and is not attached to yet, by their physical ids.
    pub(crate) left: Pending<SandboxId>,
    /// What goes on though nobody waits for it, until the runtime closes.
    pub(crate) tasks: TaskTracker,
    pub(crate) closing: CancellationToken,
    /// Something went that may have been the last to need something else.
    went: Notify,
    /// Something may be due sooner than all else.
    sooner: Notify,
    /// When whoever looks after them looks again by itself, in microseconds.
    looks_at: AtomicI64,
    starts_no_more: AtomicBool,
}

/// Those that run are held, and some of those that did; the rest is there as long as somebody has it in hand.
#[derive(Default)]
struct Slots {
    live: HashMap<SandboxId, Arc<Slot>>,
    /// Those that ran last: whoever was just put to rest is the likeliest to be wanted again.
    ran: VecDeque<Arc<Slot>>,
    by_physical: HashMap<SandboxId, Weak<Slot>>,
    by_id: HashMap<(Tenant, SandboxId), Weak<Slot>>,
    by_scope: HashMap<(Tenant, Scheme, String), Weak<Slot>>,
    /// Those that went last, and those before them.
    gone: [HashSet<SandboxId>; 2],
}

impl Slots {
    /// The one that is there already, or this one. What was read before it went is no sandbox any more: whoever made it again
    /// would make one without a record.
    fn insert(&mut self, record: Record, clock: &Clock) -> Arc<Slot> {
        if let Some(slot) = self.by_physical.get(&record.physical).and_then(Weak::upgrade) {
            return slot;
        }
        if self.gone.iter().any(|gone| gone.contains(&record.physical)) {
            return Arc::new(Slot::new(Record { state: SandboxState::Deleting, ..record }, clock.clone()));
        }
        if self.by_physical.len() > 64 + 2 * (self.live.len() + self.ran.len()) {
            self.by_physical.retain(|_, slot| slot.strong_count() > 0);
            self.by_id.retain(|_, slot| slot.strong_count() > 0);
            self.by_scope.retain(|_, slot| slot.strong_count() > 0);
        }
        let slot = Arc::new(Slot::new(record, clock.clone()));
        let record = slot.record();
        self.by_physical.insert(record.physical.clone(), Arc::downgrade(&slot));
        self.by_id.insert((record.tenant.clone(), record.id.clone()), Arc::downgrade(&slot));
        if let Some(scope) = &record.scope {
            self.by_scope.insert(scope_key(&record.tenant, scope), Arc::downgrade(&slot));
        }
        slot
    }

    /// It does not run any more.
    fn rests(&mut self, physical: &SandboxId) {
        const HELD: usize = 256;
        if let Some(slot) = self.live.remove(physical) {
            self.ran.push_back(slot);
            if self.ran.len() > HELD {
                self.ran.pop_front();
            }
        }
    }

    /// Its record went just now.
    fn forget(&mut self, record: &Record) {
        /// Far more than go while somebody reads one record.
        const REMEMBERED: usize = 2048;
        self.by_physical.remove(&record.physical);
        self.by_id.remove(&(record.tenant.clone(), record.id.clone()));
        if let Some(scope) = &record.scope {
            self.by_scope.remove(&scope_key(&record.tenant, scope));
        }
        if self.gone[0].len() >= REMEMBERED {
            self.gone[1] = std::mem::take(&mut self.gone[0]);
        }
        self.gone[0].insert(record.physical.clone());
    }
}

fn scope_key(tenant: &Tenant, scope: &Scope) -> (Tenant, Scheme, String) {
    (tenant.clone(), scope.scheme(), scope.key().to_owned())
}

impl Sandboxes {
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        store: Store,
        clock: Clock,
        events: Arc<Events>,
        settings: Arc<Live<Settings>>,
        keeper: Arc<Keeper>,
        quotas: Quotas,
    ) -> Self {
        Self {
            provider,
            store,
            clock,
            events,
            settings,
            keeper,
            pressure: Arc::default(),
            quotas,
            slots: Mutex::default(),
            left: Pending::new(CancellationToken::new()),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            went: Notify::new(),
            sooner: Notify::new(),
            looks_at: AtomicI64::new(i64::MAX),
            starts_no_more: AtomicBool::new(false),
        }
    }

    /// Of the runtime that it is a part of.
    pub(crate) fn working_in(self, tasks: TaskTracker, closing: CancellationToken) -> Self {
        Self { left: Pending::new(closing.clone()), tasks, closing, ..self }
    }

    pub(crate) fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn went(&self) {
        self.went.notify_one();
    }

    pub(crate) async fn gone(&self) {
        self.went.notified().await;
    }

    pub(crate) fn may_be_sooner(&self) {
        self.sooner.notify_one();
    }

    /// Something is due then. Whoever looks after them is woken where that is sooner than they would look.
    fn is_due(&self, due: Time) {
        if due.as_microsecond() < self.looks_at.load(Ordering::SeqCst) {
            self.sooner.notify_one();
        }
    }

    pub(crate) fn wake_reaper(&self) {
        self.sooner.notify_one();
    }

    /// When they are looked after next. `None`, before anybody says so: at once if something is due at all.
    pub(crate) fn looks_at(&self, time: Option<Time>) {
        self.looks_at.store(time.map_or(i64::MAX, Time::as_microsecond), Ordering::SeqCst);
    }

    /// Ends when something may be due sooner than all else.
    pub(crate) async fn sooner(&self) {
        self.sooner.notified().await;
    }

    fn slots<T>(&self, act: impl FnOnce(&mut Slots) -> T) -> T {
        act(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn dialect_of(&self, wanted: &Wanted) -> Option<&Dialect> {
        self.settings.dialect_of(wanted)
    }

    /// What a sandbox becomes that nobody describes further.
    pub(crate) fn usual(&self) -> Result<Wanted> {
        Ok(self.settings.wanted(Wish::default())?.0)
    }

    /// The scope's sandbox: however many ask at once, it is one. True when there was none.
    pub(crate) async fn of_scope(
        &self,
        caller: &Caller,
        scope: &Scope,
        wanted: Option<&Wanted>,
    ) -> Result<(Arc<Slot>, bool)> {
        let key = scope_key(&caller.tenant, scope);
        loop {
            let known = self.slots(|slots| slots.by_scope.get(&key).and_then(Weak::upgrade));
            match known {
                Some(slot) if slot.is_deleting() => self.finish_delete(&slot).await?,
                Some(slot) => return Ok((slot, false)),
                None => {
                    let (slot, made) = self.claim(caller, Some(scope), wanted).await?;
                    if !slot.is_deleting() {
                        return Ok((slot, made));
                    }
                }
            }
        }
    }

    /// A sandbox without a scope; for one call alone, or to stay.
    pub(crate) async fn of_nobody(&self, caller: &Caller, wanted: Option<&Wanted>, once: bool) -> Result<Arc<Slot>> {
        let wanted = Wanted { once, ..wanted.cloned().map_or_else(|| self.usual(), Ok)? };
        Ok(self.claim(caller, None, Some(&wanted)).await?.0)
    }

    async fn claim(
        &self,
        caller: &Caller,
        scope: Option<&Scope>,
        wanted: Option<&Wanted>,
    ) -> Result<(Arc<Slot>, bool)> {
        let tenant = &caller.tenant;
        let usual;
        let wanted = match wanted {
            Some(wanted) => wanted,
            None => {
                usual = self.usual()?;
                &usual
            }
        };
        let forked;
        let mut of_snapshot = None;
        let wanted = match (wanted.snapshot, scope) {
            (None, _) => wanted,
            (Some(snapshot), scope) => match (self.store.snapshot(tenant, snapshot).await?, scope) {
                (Some(found), _) if caller.reaches(found.user.as_deref()) => {
                    let sandbox = SandboxSpec { base: Base::Snapshot(found.physical), ..wanted.sandbox.clone() };
                    forked = Wanted { sandbox, ..wanted.clone() };
                    of_snapshot = found.user;
                    &forked
                }
                // What a sandbox that is there began with may be gone by now.
                (_, Some(scope)) => match self.store.by_scope(tenant, scope).await? {
                    Some(record) => return Ok((self.slots(|slots| slots.insert(record, &self.clock)), false)),
                    None => return Err(Error::NoSnapshot(snapshot)),
                },
                (_, None) => return Err(Error::NoSnapshot(snapshot)),
            },
        };
        self.provider.capabilities().check(&wanted.sandbox)?;
        let refused = match self.keeper.space.check() {
            Ok(()) => self.views(tenant, &wanted.mounts).await.err(),
            Err(low) => Some(low),
        };
        if let Some(error) = refused {
            // Whoever has one already keeps it, though the disk is full, or a volume that is asked for is gone by now.
            let there = match scope {
                Some(scope) => self.store.by_scope(tenant, scope).await?,
                None => None,
            };
            return there.map(|record| (self.of_record(record), false)).ok_or(error);
        }
        self.keeper.note_use(&self.store, &wanted.sandbox, self.clock.now()).await?;
        let physical = SandboxId::random();
        let claim = Claim {
            tenant: tenant.clone(),
            id: scope.and_then(Scope::sandbox_id).unwrap_or_else(|| physical.clone()),
            physical,
            scope: scope.cloned(),
            spec: wanted.to_spec()?,
            key: caller.key,
            // What a user had in a snapshot is that user's, whoever begins a sandbox with it.
            user: scope.and_then(Scope::named_user).or(of_snapshot).or_else(|| match scope {
                Some(_) => None,
                None => caller.subject.user().map(str::to_owned),
            }),
            disk: wanted.sandbox.limits.disk,
            at: self.clock.now(),
        };
        let id = claim.id.clone();
        let admit = self.quotas.claim(caller, &claim.physical, &wanted.sandbox.limits);
        match self.store.claim_if(claim, admit).await? {
            Admitted::There(record) => Ok((self.slots(|slots| slots.insert(record, &self.clock)), false)),
            Admitted::Made(record, room) => {
                fault::at(Point::SandboxClaimed);
                self.tell(&record);
                // Before anybody finds it.
                let slot = self.slots(|slots| {
                    let slot = slots.insert(record, &self.clock);
                    slot.is_new();
                    slot.set_room(Some(room));
                    slot
                });
                Ok((slot, true))
            }
            Admitted::Taken => Err(Error::ScopeConflict(id)),
            Admitted::Refused(exceeded) => Err(Error::Exceeded(exceeded)),
        }
    }

    pub(crate) async fn of_id(&self, caller: &Caller, id: &SandboxId) -> Result<Arc<Slot>> {
        let named = (caller.tenant.clone(), id.clone());
        let known = self.slots(|slots| slots.by_id.get(&named).and_then(Weak::upgrade));
        let slot = match known {
            Some(slot) => slot,
            None => {
                let record = self.store.sandbox(&caller.tenant, id).await?;
                let record = record.ok_or_else(|| Error::NoSandbox(id.clone()))?;
                self.slots(|slots| slots.insert(record, &self.clock))
            }
        };
        match slot.is_deleting() || !caller.reaches(slot.record().user.as_deref()) {
            true => Err(Error::NoSandbox(id.clone())),
            false => Ok(slot),
        }
    }

    /// The chat's sandbox: that of its user, if one is named, and else the only one that there is. True when there was none.
    pub(crate) async fn of_chat(
        &self,
        caller: &Caller,
        app: &str,
        chat: &str,
        user: Option<&str>,
    ) -> Result<(Arc<Slot>, bool)> {
        if let Some(user) = user.or(caller.subject.user()) {
            caller.check_user(Some(user))?;
            return self.of_scope(caller, &Scope::chat_of(app, user, chat)?, None).await;
        }
        // Users may have chats of the same name: then none of them is meant more than another.
        let mut records = self.store.by_chat(&caller.tenant, app, chat).await?;
        let record = records.pop().filter(|_| records.is_empty()).ok_or(Error::UserRequired)?;
        let slot = self.of_record(record);
        if slot.is_deleting() { Err(Error::UserRequired) } else { Ok((slot, false)) }
    }

    pub(crate) fn of_record(&self, record: Record) -> Arc<Slot> {
        self.slots(|slots| slots.insert(record, &self.clock))
    }

    pub(crate) fn of_physical(&self, physical: &SandboxId) -> Option<Arc<Slot>> {
        self.slots(|slots| slots.by_physical.get(physical).and_then(Weak::upgrade))
    }

    /// Those that are known of what was doomed: no call finds them running any more.
    pub(crate) async fn doomed(&self, tenant: &Tenant, user: Option<&str>, which: &Which) -> Result<()> {
        let of_it = |slot: &Arc<Slot>| {
            let record = slot.record();
            let chat = record.scope.as_ref().and_then(Scope::chat);
            record.tenant == *tenant
                && user.is_none_or(|user| record.user.as_deref() == Some(user))
                && match which {
                    Which::All => true,
                    Which::App(app) => chat.is_some_and(|(its, _)| its == *app),
                    Which::Chat { app, chat: named } => chat.is_some_and(|(its, chat)| its == *app && chat == *named),
                }
        };
        let known =
            self.slots(|slots| slots.by_physical.values().filter_map(Weak::upgrade).filter(of_it).collect::<Vec<_>>());
        for slot in known {
            if let Some(record) = self.store.by_physical(&slot.record().physical).await?
                && record.state == SandboxState::Deleting
            {
                if !slot.is_deleting() {
                    self.tell(&record);
                }
                slot.doom(record);
            }
        }
        self.events.hooks.poke(tenant);
        self.sooner.notify_one();
        Ok(())
    }

    /// Those that run.
    pub(crate) fn all_live(&self) -> Vec<Arc<Slot>> {
        self.slots(|slots| slots.live.values().cloned().collect())
    }

    /// How many run, of one tenant.
    pub(crate) fn live_of(&self, tenant: &Tenant) -> usize {
        self.slots(|slots| slots.live.values().filter(|slot| slot.record().tenant == *tenant).count())
    }

    /// How many run.
    pub(crate) fn live(&self) -> usize {
        self.slots(|slots| slots.live.len())
    }
}
