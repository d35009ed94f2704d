//! How much a tenant and a key may have, held where things begin.
//!
//! What is in the database (sandboxes in all, their disks) is summed there, and judged inside the transaction that claims one
//! more. The rest is counted here, for as long as somebody holds it: a call its [`Pass`], a sandbox that runs or is about to its
//! [`Room`]. One lock is around limits and counts, so whoever asks at once is judged one after the other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_model::{Amounts, Bucket, Exceeded, KeyId, Quota, SandboxId, Tenant, Time, admit, amount};
use cabana_sandbox::Limits;
use cabana_store::{Held, Owner, Record};
use tokio::sync::OwnedSemaphorePermit;

use crate::{Caller, Clock, Error, Live, Result, Role, Settings};

/// Whose count it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Tenant(Tenant),
    Key(KeyId),
}

impl Who {
    fn of(owner: &Owner) -> Self {
        owner.key.map_or_else(|| Self::Tenant(owner.tenant.clone()), Self::Key)
    }
}

/// The tenant, and the key where it is known.
type Whos = (Who, Option<Who>);

fn whos(tenant: &Tenant, key: Option<KeyId>) -> Whos {
    (Who::Tenant(tenant.clone()), key.map(Who::Key))
}

fn each(whos: &Whos) -> impl Iterator<Item = &Who> {
    std::iter::once(&whos.0).chain(&whos.1)
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Quotas(Arc<Shared>);

struct Shared {
    clock: Clock,
    /// They say what a tenant may have, where its own quota says nothing.
    settings: Arc<Live<Settings>>,
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    /// Those that somebody has set.
    set: HashMap<Who, Quota>,
    used: HashMap<Who, Used>,
    /// Sandboxes that run, are paused, or are about to run.
    rooms: HashMap<SandboxId, Occupied>,
}

struct Used {
    now: Amounts,
    bucket: Bucket,
}

struct Occupied {
    whos: Whos,
    amounts: Amounts,
    /// Those that are about to let it run, or to change it.
    holders: usize,
    runs: bool,
}

impl Counted {
    fn used(&mut self, who: &Who, now: Time) -> &mut Used {
        /// As many as are known at a time: who has nothing need not be known.
        const KNOWN: usize = 16 << 10;
        if self.used.len() >= KNOWN && !self.used.contains_key(who) {
            self.used.retain(|_, used| used.now != Amounts::default());
        }
        self.used.entry(who.clone()).or_insert_with(|| Used { now: Amounts::default(), bucket: Bucket::new(now) })
    }

    fn now(&self, who: &Who) -> Amounts {
        self.used.get(who).map(|used| used.now).unwrap_or_default()
    }

    fn add(&mut self, whos: &Whos, amounts: Amounts, now: Time) {
        for who in each(whos) {
            let used = self.used(who, now);
            used.now = used.now.and(amounts);
        }
    }

    /// Of a tenant. It stays until it is read back how much that really is.
    fn add_recorded(&mut self, tenant: &Who, bytes: u64, now: Time) {
        let used = self.used(tenant, now);
        used.now.ledger_bytes = used.now.ledger_bytes.saturating_add(bytes.into());
    }

    fn take_away(&mut self, whos: &Whos, amounts: Amounts) {
        for who in each(whos) {
            if let Some(used) = self.used.get_mut(who) {
                used.now = used.now.without(amounts);
            }
        }
    }

    fn put_back(&mut self, who: Who, before: Option<Quota>) {
        match before {
            Some(before) => self.set.insert(who, before),
            None => self.set.remove(&who),
        };
    }

    fn occupy(&mut self, physical: &SandboxId, room: Occupied, now: Time) {
        self.add(&room.whos, room.amounts, now);
        self.rooms.insert(physical.clone(), room);
    }

    /// Gives back what nobody has any more.
    fn clear(&mut self, physical: &SandboxId) {
        if self.rooms.get(physical).is_some_and(|room| room.holders == 0 && !room.runs)
            && let Some(room) = self.rooms.remove(physical)
        {
            self.take_away(&room.whos, room.amounts);
        }
    }
}

/// What a call wants beside being one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    /// To begin a command in the background.
    pub(crate) task: bool,
    /// To leave something that is kept.
    pub(crate) stores: bool,
    /// To end or remove something.
    pub(crate) removes: bool,
    /// About so many bytes of records that it leaves. Of a read none: it asks for its row once it knows that it leaves one.
    pub(crate) records: u64,
    /// While the store lives on what it keeps for a full disk.
    pub(crate) is_short: bool,
}

impl Wants {
    fn amounts(self, caller: &Caller) -> Amounts {
        // The operator is held to no length of a ledger: who has to see what is wrong, and end it, must be able to.
        let records = if caller.role == Role::Admin { 0 } else { self.records };
        Amounts { stored_bytes: self.stores.into(), ledger_bytes: records.into(), ..Amounts::default() }
    }

    /// What removes something may be recorded where the rest is not, since it makes room. What only keeps nothing, as a wake, is no removal,
    /// and takes none of that; nor does in the end what has found nothing to remove.
    fn limits(self, limits: Quota, caller: &Caller) -> Quota {
        const FOR_REMOVALS: u64 = 64 << 20;
        const CALLS_WHEN_SHORT: u64 = 5;
        if self.stores || self.records == 0 {
            return limits;
        }
        let is_held = self.is_short && caller.role < Role::Admin;
        let most_calls = limits.calls_per_sec.unwrap_or(u64::MAX).min(CALLS_WHEN_SHORT);
        let more = |most: u64| if self.removes { FOR_REMOVALS.max(most / 8) } else { 0 };
        Quota {
            ledger_bytes: limits.ledger_bytes.map(|most| most.saturating_add(more(most))),
            calls_per_sec: if is_held { Some(most_calls) } else { limits.calls_per_sec },
            ..limits
        }
    }
}

/// What those that run may take.
fn running(limits: &Limits) -> Amounts {
    Amounts {
        running: 1,
        cpu_milli: amount(limits.cpu_milli.map(u64::from)),
        memory_bytes: amount(limits.memory),
        ..Amounts::default()
    }
}

impl Quotas {
    pub(crate) fn new(clock: Clock, settings: Arc<Live<Settings>>) -> Self {
        Self(Arc::new(Shared { clock, settings, counted: Mutex::default() }))
    }

    fn counted<T>(&self, act: impl FnOnce(&mut Counted) -> T) -> T {
        act(&mut self.0.counted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn limits(&self, counted: &Counted, who: &Who) -> Quota {
        let set = counted.set.get(who).copied().unwrap_or_default();
        match who {
            Who::Tenant(_) => set.or(self.0.settings.quota),
            Who::Key(_) => set,
        }
    }

    /// As it was set, and as it holds.
    pub(crate) fn of(&self, owner: &Owner) -> (Quota, Quota) {
        let who = Who::of(owner);
        self.counted(|counted| (counted.set.get(&who).copied().unwrap_or_default(), self.limits(counted, &who)))
    }

    /// What is counted here. What the database holds is not in it.
    pub(crate) fn now(&self, owner: &Owner) -> Amounts {
        self.counted(|counted| counted.now(&Who::of(owner)))
    }

    /// What was there before. Refused, unless it is forced, where more than that is in use.
    pub(crate) fn set(&self, owner: &Owner, quota: Option<Quota>, force: bool) -> Result<Option<Quota>, Exceeded> {
        let who = Who::of(owner);
        self.counted(|counted| {
            let before = match quota {
                Some(quota) => counted.set.insert(who.clone(), quota),
                None => counted.set.remove(&who),
            };
            match self.limits(counted, &who).below(&counted.now(&who)) {
                Some(exceeded) if !force => {
                    counted.put_back(who, before);
                    Err(exceeded)
                }
                _ => Ok(before),
            }
        })
    }

    /// As it was before.
    pub(crate) fn unset(&self, owner: &Owner, before: Option<Quota>) {
        self.counted(|counted| counted.put_back(Who::of(owner), before));
    }

    /// Whether anybody has to know how much of the tenant's is stored.
    pub(crate) fn measures(&self, tenant: &Tenant) -> bool {
        self.counted(|counted| {
            let of_keys = counted.set.iter().filter(|(who, _)| matches!(who, Who::Key(_)));
            self.limits(counted, &Who::Tenant(tenant.clone())).stored_bytes.is_some()
                || of_keys.into_iter().any(|(_, quota)| quota.stored_bytes.is_some())
        })
    }

    pub(crate) fn measures_somebody(&self) -> bool {
        let set = |counted: &mut Counted| counted.set.values().any(|quota| quota.stored_bytes.is_some());
        self.0.settings.quota.stored_bytes.is_some() || self.counted(set)
    }

    /// As it was just measured.
    pub(crate) fn stored(&self, owner: &Owner, bytes: u128) {
        let (who, now) = (Who::of(owner), self.0.clock.now());
        self.counted(|counted| counted.used(&who, now).now.stored_bytes = bytes);
    }

    /// Where not all of it could be measured: what was known before may still be there.
    pub(crate) fn stored_at_least(&self, owner: &Owner, bytes: u128) {
        let (who, now) = (Who::of(owner), self.0.clock.now());
        self.counted(|counted| {
            let stored = &mut counted.used(&who, now).now.stored_bytes;
            *stored = (*stored).max(bytes);
        });
    }

    /// What is recorded of a tenant's calls, as the database has it.
    pub(crate) fn recorded(&self, tenant: Tenant, bytes: u64) {
        let now = self.0.clock.now();
        self.counted(|counted| counted.used(&Who::Tenant(tenant), now).now.ledger_bytes = bytes.into());
    }

    /// Tenants of which more is recorded than may be, with how much there is and how much may be.
    pub(crate) fn full_ledgers(&self) -> Vec<(Tenant, u64, u64)> {
        self.counted(|counted| {
            let full = counted.used.iter().filter_map(|(who, used)| {
                let Who::Tenant(tenant) = who else { return None };
                let (bytes, most) = (used.now.ledger_bytes, self.limits(counted, who).ledger_bytes?);
                (bytes >= u128::from(most)).then(|| (tenant.clone(), u64::try_from(bytes).unwrap_or(u64::MAX), most))
            });
            full.collect()
        })
    }

    /// A row that is about to be written.
    pub(crate) fn add_recorded(&self, tenant: &Tenant, bytes: u64) {
        let now = self.0.clock.now();
        self.counted(|counted| counted.add_recorded(&Who::Tenant(tenant.clone()), bytes, now));
    }

    /// A row that was written for nothing, and is gone.
    pub(crate) fn take_recorded(&self, tenant: &Tenant, bytes: u64) {
        let gone = Amounts { ledger_bytes: bytes.into(), ..Amounts::default() };
        self.counted(|counted| {
            if let Some(used) = counted.used.get_mut(&Who::Tenant(tenant.clone())) {
                used.now = used.now.without(gone);
            }
        });
    }

    /// Whether all that may be recorded of the tenant's calls is there.
    pub(crate) fn has_full_ledger(&self, tenant: &Tenant) -> bool {
        self.has_recorded(tenant, |most| most)
    }

    /// Whether half of it is there.
    pub(crate) fn has_half_a_ledger(&self, tenant: &Tenant) -> bool {
        self.has_recorded(tenant, |most| most / 2)
    }

    fn has_recorded(&self, tenant: &Tenant, part: impl FnOnce(u64) -> u64) -> bool {
        let who = Who::Tenant(tenant.clone());
        self.counted(|counted| {
            let most = self.limits(counted, &who).ledger_bytes;
            most.is_some_and(|most| counted.now(&who).ledger_bytes >= u128::from(part(most)))
        })
    }

    /// Whether the call may begin.
    pub(crate) fn call(&self, caller: &Caller, wants: Wants) -> Result<Pass> {
        let (whos, now) = (whos(&caller.tenant, Some(caller.key)), self.0.clock.now());
        let held = Amounts { concurrent_calls: 1, tasks: wants.task.into(), ..Amounts::default() };
        let wanted = held.and(wants.amounts(caller));
        let of_margin = self.counted(|counted| {
            for who in each(&whos) {
                let limits = wants.limits(self.limits(counted, who), caller);
                let used = counted.used(who, now);
                // Nothing is taken before all have said yes.
                if let Some(limit) = limits.calls_per_sec
                    && !used.bucket.clone().take(limit, now)
                {
                    return Err(Error::RateLimited { limit });
                }
                admit(&limits, &used.now, &wanted).map_err(Error::Exceeded)?;
            }
            for who in each(&whos) {
                if let Some(limit) = wants.limits(self.limits(counted, who), caller).calls_per_sec {
                    counted.used(who, now).bucket.take(limit, now);
                }
            }
            counted.add(&whos, held, now);
            counted.add_recorded(&whos.0, wants.records, now);
            let is_beyond = |most| counted.now(&whos.0).ledger_bytes > u128::from(most);
            let beyond = self.limits(counted, &whos.0).ledger_bytes.is_some_and(is_beyond);
            Ok((caller.role < Role::Admin && beyond).then_some(wants.records))
        })?;
        let mut pass = Pass::new(self.clone(), whos, held);
        (pass.unrecorded, pass.of_margin) = (wants.records, of_margin);
        Ok(pass)
    }

    /// The same for one without a key, who has bounds of its own: only what it leaves counts.
    pub(crate) fn unmetered(&self, caller: &Caller, wants: Wants, permit: OwnedSemaphorePermit) -> Result<Pass> {
        let (whos, now) = (whos(&caller.tenant, Some(caller.key)), self.0.clock.now());
        let wanted = wants.amounts(caller);
        self.counted(|counted| -> Result<()> {
            each(&whos).try_for_each(|who| {
                let limits = wants.limits(self.limits(counted, who), caller);
                admit(&limits, &counted.used(who, now).now, &wanted).map_err(Error::Exceeded)
            })?;
            counted.add_recorded(&whos.0, wants.records, now);
            Ok(())
        })?;
        let mut pass = Pass::new(self.clone(), whos, Amounts::default());
        (pass.unrecorded, pass.permit) = (wants.records, Some(permit));
        Ok(pass)
    }

    /// What was begun by another server goes on, and counts.
    pub(crate) fn left_call(&self, tenant: &Tenant, key: KeyId) -> Pass {
        self.left(tenant, key, Amounts { concurrent_calls: 1, ..Amounts::default() })
    }

    pub(crate) fn left_task(&self, tenant: &Tenant, key: KeyId) -> Pass {
        self.left(tenant, key, Amounts { tasks: 1, ..Amounts::default() })
    }

    fn left(&self, tenant: &Tenant, key: KeyId, held: Amounts) -> Pass {
        let (whos, now) = (whos(tenant, Some(key)), self.0.clock.now());
        self.counted(|counted| counted.add(&whos, held, now));
        Pass::new(self.clone(), whos, held)
    }

    /// For the transaction that claims a sandbox: whether there may be one more, and whether it may run.
    pub(crate) fn claim(
        &self,
        caller: &Caller,
        physical: &SandboxId,
        limits: &Limits,
    ) -> impl FnOnce(Held) -> Result<Room, Exceeded> + Send + 'static {
        let (quotas, whos, physical) = (self.clone(), whos(&caller.tenant, Some(caller.key)), physical.clone());
        let amounts = running(limits);
        let wanted = Amounts { sandboxes: 1, disk_bytes: amount(limits.disk), stored_bytes: 1, ..amounts };
        move |held| {
            quotas.counted(|counted| {
                for (who, held) in each(&whos).zip([held.tenant, held.key]) {
                    // What is stored was measured, and is counted here.
                    let held = Amounts { stored_bytes: 0, ..held };
                    admit(&quotas.limits(counted, who), &counted.now(who).and(held), &wanted)?;
                }
                counted.occupy(&physical, Occupied { whos, amounts, holders: 1, runs: false }, quotas.0.clock.now());
                Ok(())
            })?;
            Ok(Room { quotas, physical })
        }
    }

    /// For one that is to run: the room that it has already, or a new one.
    pub(crate) fn room(&self, record: &Record, limits: &Limits) -> Result<Room, Exceeded> {
        let (physical, whos, amounts) = (&record.physical, whos(&record.tenant, record.key), running(limits));
        self.counted(|counted| {
            if let Some(room) = counted.rooms.get_mut(physical) {
                room.holders += 1;
                return Ok(());
            }
            for who in each(&whos) {
                admit(&self.limits(counted, who), &counted.now(who), &amounts)?;
            }
            counted.occupy(physical, Occupied { whos, amounts, holders: 1, runs: false }, self.0.clock.now());
            Ok(())
        })?;
        Ok(Room { quotas: self.clone(), physical: physical.clone() })
    }

    /// It runs, or is paused: whoever let it, and whatever that exceeds.
    pub(crate) fn runs(&self, record: &Record, limits: &Limits) {
        let physical = &record.physical;
        self.counted(|counted| {
            if let Some(room) = counted.rooms.get_mut(physical) {
                room.runs = true;
                return;
            }
            let (whos, amounts) = (whos(&record.tenant, record.key), running(limits));
            counted.occupy(physical, Occupied { whos, amounts, holders: 0, runs: true }, self.0.clock.now());
        });
    }

    /// Nothing of it runs any more.
    pub(crate) fn rests(&self, physical: &SandboxId) {
        self.counted(|counted| {
            if let Some(room) = counted.rooms.get_mut(physical) {
                room.runs = false;
            }
            counted.clear(physical);
        });
    }

    /// Other limits for one that runs. Until it is known whether it got them, the larger ones count.
    pub(crate) fn resize(&self, record: &Record, limits: &Limits) -> Result<Resized, Exceeded> {
        let (room, after) = (self.room(record, limits)?, running(limits));
        let before = self.counted(|counted| {
            let Some(Occupied { whos, amounts: before, .. }) = counted.rooms.get(&record.physical) else {
                return Ok(after);
            };
            let (whos, before, more) = (whos.clone(), *before, after.without(*before));
            for who in each(&whos) {
                admit(&self.limits(counted, who), &counted.now(who), &more)?;
            }
            counted.add(&whos, more, self.0.clock.now());
            if let Some(occupied) = counted.rooms.get_mut(&record.physical) {
                occupied.amounts = before.and(more);
            }
            Ok(before)
        })?;
        Ok(Resized { room, before, after, done: false })
    }

    /// For a question between two writes: whether a disk may become larger by so much. It counts until the answer is dropped, and
    /// by then the database has it.
    pub(crate) fn grow(
        &self,
        record: &Record,
        from: Option<u64>,
        to: Option<u64>,
    ) -> impl FnOnce(Held) -> Result<Pass, Exceeded> + Send + 'static {
        let (quotas, whos) = (self.clone(), whos(&record.tenant, record.key));
        let more = Amounts { disk_bytes: amount(to).saturating_sub(amount(from)), ..Amounts::default() };
        move |held| {
            quotas.counted(|counted| {
                for (who, held) in each(&whos).zip([held.tenant, held.key]) {
                    let held = Amounts { disk_bytes: held.disk_bytes, ..Amounts::default() };
                    admit(&quotas.limits(counted, who), &counted.now(who).and(held), &more)?;
                }
                counted.add(&whos, more, quotas.0.clock.now());
                Ok(())
            })?;
            Ok(Pass::new(quotas, whos, more))
        }
    }
}

/// What counts as long as this is held.
pub(crate) struct Pass {
    quotas: Quotas,
    whos: Whos,
    held: Amounts,
    /// Bytes of records that are paid for and not there yet.
    unrecorded: u64,
    /// Bytes of records, where they are of what a ledger has for removals alone.
    pub(crate) of_margin: Option<u64>,
    /// For the sandbox that it is about to let run.
    pub(crate) room: Option<Room>,
    /// Of one without a key.
    permit: Option<OwnedSemaphorePermit>,
}

impl Pass {
    fn new(quotas: Quotas, whos: Whos, held: Amounts) -> Self {
        Self { quotas, whos, held, unrecorded: 0, of_margin: None, room: None, permit: None }
    }

    /// The task's part, which outlives the call.
    pub(crate) fn task(&mut self) -> Option<Self> {
        let held = Amounts { tasks: std::mem::take(&mut self.held.tasks), ..Amounts::default() };
        (held.tasks > 0).then(|| Self::new(self.quotas.clone(), self.whos.clone(), held))
    }

    /// Of one that repeats another: it counts as a call until it is answered, and leaves nothing.
    pub(crate) fn into_follower(mut self) -> Self {
        let mut records = Self::new(self.quotas.clone(), self.whos.clone(), Amounts::default());
        records.unrecorded = std::mem::take(&mut self.unrecorded);
        drop((records, self.task(), self.room.take()));
        self
    }

    /// Its records are there, and stay.
    pub(crate) fn is_recorded(&mut self) {
        self.unrecorded = 0;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let unrecorded = Amounts { ledger_bytes: self.unrecorded.into(), ..Amounts::default() };
        self.quotas.counted(|counted| {
            counted.take_away(&self.whos, self.held);
            if let Some(used) = counted.used.get_mut(&self.whos.0) {
                used.now = used.now.without(unrecorded);
            }
        });
    }
}

/// Room for one that is about to run. Given back where it does not.
pub(crate) struct Room {
    quotas: Quotas,
    physical: SandboxId,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.quotas.counted(|counted| {
            if let Some(room) = counted.rooms.get_mut(&self.physical) {
                room.holders = room.holders.saturating_sub(1);
            }
            counted.clear(&self.physical);
        });
    }
}

/// A sandbox on its way from some limits to others.
pub(crate) struct Resized {
    room: Room,
    before: Amounts,
    after: Amounts,
    done: bool,
}

impl Resized {
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Resized {
    fn drop(&mut self) {
        let Self { room, before, after, done } = self;
        let last = if *done { *after } else { *before };
        room.quotas.counted(|counted| {
            let Some(occupied) = counted.rooms.get_mut(&room.physical) else { return };
            let (whos, now) = (occupied.whos.clone(), std::mem::replace(&mut occupied.amounts, last));
            counted.take_away(&whos, now.without(last));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_ledger_has_for_removals_is_for_nothing_else() {
        const MOST: u64 = 1 << 30;
        let caller = Caller::keyless(KeyId::now(), Tenant::new("us").unwrap());
        let limits = Quota { ledger_bytes: Some(MOST), ..Quota::NONE };
        let most = |stores, removes| {
            let wants = Wants { stores, removes, records: 100, ..Wants::default() };
            wants.limits(limits, &caller).ledger_bytes
        };
        assert_eq!(most(true, false), Some(MOST));
        assert_eq!(most(false, false), Some(MOST), "what stores nothing may be repeated without end");
        assert_eq!(most(false, true), Some(MOST + MOST / 8));
    }

    #[test]
    fn removals_say_when_they_take_of_what_is_kept_for_them() {
        let tenant = Tenant::new("us").unwrap();
        let owner = Owner { tenant: tenant.clone(), key: None };
        let caller = Caller::keyless(KeyId::now(), tenant.clone());
        let quotas = Quotas::new(Clock::machine(), Arc::new(Live::new(Settings::default())));
        quotas.set(&owner, Some(Quota { ledger_bytes: Some(1000), ..Quota::NONE }), false).unwrap();
        let removes = Wants { removes: true, records: 400, ..Wants::default() };
        let of_margin: Vec<_> = std::iter::repeat_with(|| {
            let mut pass = quotas.call(&caller, removes).unwrap();
            pass.is_recorded();
            pass.of_margin
        })
        .take(4)
        .collect();
        assert_eq!(of_margin, [None, None, Some(400), Some(400)]);
        quotas.take_recorded(&tenant, 400);
        assert_eq!(quotas.now(&owner).ledger_bytes, 1200);
        let operator = Caller { role: Role::Admin, ..caller };
        assert_eq!(quotas.call(&operator, removes).unwrap().of_margin, None, "it is held to no length");
    }

    #[test]
    fn what_leaves_no_row_costs_nothing() {
        let tenant = Tenant::new("us").unwrap();
        let owner = Owner { tenant: tenant.clone(), key: None };
        let caller = Caller::keyless(KeyId::now(), tenant.clone());
        let quotas = Quotas::new(Clock::machine(), Arc::new(Live::new(Settings::default())));
        quotas.set(&owner, Some(Quota { ledger_bytes: Some(1000), ..Quota::NONE }), false).unwrap();
        let wants = Wants { stores: true, records: 600, ..Wants::default() };
        let permit = || Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
        let recorded = || quotas.now(&owner).ledger_bytes;
        let pass = quotas.unmetered(&caller, wants, permit()).unwrap();
        assert_eq!(recorded(), 600, "it is paid for before it is there");
        drop(pass);
        assert_eq!(recorded(), 0, "it left no row");
        let mut pass = quotas.unmetered(&caller, wants, permit()).unwrap();
        pass.is_recorded();
        drop(pass);
        assert_eq!(recorded(), 600);
        assert!(quotas.has_half_a_ledger(&tenant));
        assert!(matches!(quotas.unmetered(&caller, wants, permit()), Err(Error::Exceeded(_))));
        let unrecorded = Wants { stores: true, ..Wants::default() };
        drop(quotas.unmetered(&caller, unrecorded, permit()).unwrap());
    }
}
