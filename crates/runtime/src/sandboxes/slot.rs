//! One sandbox in use.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
};

use cabana_model::{SandboxState, Time, Work};
use cabana_sandbox::Sandbox;
use cabana_store::{By, Lease, Record};

use super::{Wanted, changing::Changing, walks::Walks};
use crate::{Clock, Result, Turns, quotas::Room};

/// A spec that is no longer than this is parsed in less time than it takes to wake another thread.
pub(super) const PARSED_AT_ONCE: usize = 32 << 10;

pub(crate) struct Slot {
    record: Mutex<Arc<Record>>,
    /// What the record's spec says, once somebody wanted to know.
    wanted: Mutex<Option<(Arc<Record>, Arc<Wanted>)>>,
    /// Nobody has begun to make it: its record was written for it just now, and nothing of it can be there.
    new: AtomicBool,
    /// While it runs, as far as is known, and calls may come.
    live: Mutex<Option<Arc<dyn Sandbox>>>,
    /// Held by whoever changes what the sandbox is: made, started, stopped, deleted.
    pub(super) changing: Changing,
    pub(super) walks: Walks,
    /// Locked while its lease changes: answers of the store may come in another order than what was done there, and an older lease must
    /// not take the place of a newer one.
    pub(crate) leasing: tokio::sync::Mutex<()>,
    /// The mark of the links to it, once somebody wanted to know. Locked while it is looked up or changed.
    pub(crate) link_mark: tokio::sync::Mutex<Option<[u8; 32]>>,
    /// For the one that is about to let it run. It goes with the slot, if nobody does.
    room: Mutex<Option<Room>>,
    clock: Clock,
    /// By [`Kind`].
    work: [AtomicUsize; 3],
    /// When it was last used, in microseconds.
    active: AtomicI64,
    /// When its use was last written down, in seconds.
    touched: AtomicI64,
}

/// What goes on in a sandbox and keeps it awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Call,
    Task,
    Terminal,
}

impl Slot {
    pub(super) fn new(record: Record, clock: Clock) -> Self {
        Self {
            active: AtomicI64::new(record.active.as_microsecond()),
            touched: AtomicI64::new(record.active.as_second()),
            record: Mutex::new(Arc::new(record)),
            wanted: Mutex::default(),
            new: AtomicBool::new(false),
            live: Mutex::default(),
            changing: Changing::default(),
            walks: Walks::default(),
            leasing: tokio::sync::Mutex::default(),
            link_mark: tokio::sync::Mutex::default(),
            room: Mutex::default(),
            clock,
            work: Default::default(),
        }
    }

    pub(crate) fn record(&self) -> Arc<Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its lease stays: those come and go without a new version, and it may be newer than the record.
    pub(super) fn set_record(&self, record: Record) {
        let mut known = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Arc::new(Record { lease: known.lease.clone(), ..record });
    }

    /// If it still has this version.
    pub(super) fn set_due(&self, version: u64, due: Option<Time>) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.version == version {
            *record = Arc::new(Record { due, ..(**record).clone() });
        }
    }

    /// It is to go: nothing new begins in it.
    pub(super) fn doom(&self, record: Record) {
        self.set_record(record);
        self.set_live(None);
    }

    /// By whoever has [`Self::leasing`].
    pub(crate) fn set_lease(&self, lease: Option<Lease>) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        *record = Arc::new(Record { lease, ..(**record).clone() });
    }

    /// Whether this one's change would be refused for it.
    pub(crate) fn is_leased_to_another(&self, by: By) -> bool {
        let By::Somebody(token) = by else { return false };
        let now = self.clock.now();
        self.record().lease.as_ref().is_some_and(|lease| lease.stands(now) && token != Some(lease.token))
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.record().state == SandboxState::Deleting
    }

    /// Parsed once for each version of the record. No lock is held meanwhile: a long one takes a while.
    pub(crate) fn wanted(&self) -> Result<Arc<Wanted>> {
        let record = self.record();
        if let Some(wanted) = self.parsed(&record) {
            return Ok(wanted);
        }
        let wanted = Arc::new(Wanted::of(&record)?);
        self.known().replace((record, wanted.clone()));
        Ok(wanted)
    }

    /// Off the workers that everybody waits for, if it is long: from then on it is known, until the record changes.
    pub(crate) async fn parse_if_long(self: &Arc<Self>, turns: &Turns) -> Result<()> {
        let record = self.record();
        if record.spec.len() <= PARSED_AT_ONCE || self.parsed(&record).is_some() {
            return Ok(());
        }
        let (slot, turn) = (self.clone(), turns.take(Some(&record.tenant)).await);
        let parse = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            slot.wanted().map(drop) // another call may have parsed it meanwhile
        });
        parse.await.map_err(|error| cabana_sandbox::Error::failed("reading a spec", error))?
    }

    /// The record with what it was written from.
    pub(super) fn set_changed(&self, record: Record, wanted: Wanted) {
        self.set_record(record);
        self.known().replace((self.record(), Arc::new(wanted)));
    }

    /// `None`: it would have to be parsed now.
    pub(super) fn parsed(&self, record: &Arc<Record>) -> Option<Arc<Wanted>> {
        let known = self.known();
        let (of, wanted) = known.as_ref()?;
        (Arc::ptr_eq(of, record) || of.spec == record.spec).then(|| wanted.clone())
    }

    fn known(&self) -> MutexGuard<'_, Option<(Arc<Record>, Arc<Wanted>)>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_new(&self) {
        self.new.store(true, Ordering::Relaxed);
    }

    /// True once: whoever comes after may find half of it.
    pub(super) fn was_new(&self) -> bool {
        self.new.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn live(&self) -> Option<Arc<dyn Sandbox>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was there before.
    pub(super) fn set_live(&self, sandbox: Option<Arc<dyn Sandbox>>) -> Option<Arc<dyn Sandbox>> {
        std::mem::replace(&mut *self.live.lock().unwrap_or_else(PoisonError::into_inner), sandbox)
    }

    /// It was used just now.
    pub(crate) fn used(&self) -> Time {
        let now = self.clock.now();
        self.active.fetch_max(now.as_microsecond(), Ordering::Relaxed);
        now
    }

    /// When that was last.
    pub(crate) fn active(&self) -> Time {
        Time::from_microsecond(self.active.load(Ordering::Relaxed)).unwrap_or(Time::UNIX_EPOCH)
    }

    /// What was there before.
    pub(super) fn set_room(&self, room: Option<Room>) -> Option<Room> {
        std::mem::replace(&mut *self.room.lock().unwrap_or_else(PoisonError::into_inner), room)
    }

    /// Whether a use at this time has to be written down: not each one is.
    pub(super) fn touch(&self, second: i64) -> bool {
        const EVERY: i64 = 10;
        let last = self.touched.load(Ordering::Relaxed);
        let due = (second - last).abs() >= EVERY;
        due && self.touched.compare_exchange(last, second, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn awake(self: &Arc<Self>, kind: Kind) -> Awake {
        self.work[kind as usize].fetch_add(1, Ordering::Relaxed);
        Awake { slot: self.clone(), kind }
    }

    pub(crate) fn work(&self) -> Work {
        let count = |kind: Kind| self.work[kind as usize].load(Ordering::Relaxed);
        let leased = self.record().lease.as_ref().is_some_and(|lease| lease.stands(self.clock.now()));
        Work {
            calls: count(Kind::Call),
            tasks: count(Kind::Task),
            terminals: count(Kind::Terminal),
            leases: leased.into(),
        }
    }
}

/// Something goes on in the sandbox, as long as this is held. Whoever holds one and then finds the sandbox running can rely
/// on that: it is not stopped for being idle.
pub(crate) struct Awake {
    slot: Arc<Slot>,
    kind: Kind,
}

impl Awake {
    /// For what goes on in the same sandbox.
    pub(crate) fn and(&self, kind: Kind) -> Self {
        self.slot.awake(kind)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.slot.used();
        self.slot.work[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
