//! Ends commands that write on where there is no room for it: on a disk that is nearly full, and beyond what their tenant may store.
//!
//! What is new is refused there already (`space`, `quotas`); this is about what runs. Just the writing cannot be made to fail, so commands
//! end as at the limit of a sandbox's own disk. What sandboxes have taken since there was room, or since they started, says whose: on a
//! nearly full disk those of a tenant that took an eighth of what is left, so that who writes little goes on for as long as possible; and
//! of a tenant that stores too much those that write on. Until there is room again, or it has deleted enough, such a tenant begins no
//! command.
//!
//! Each tenant is looked at by itself, and judged as soon as something of it is measured: a guest decides how long that takes, and holds
//! up the looks at its own tenant alone. What is left says when to look next, at the fastest rate that a disk may be expected to fill.
//! Sandboxes that have not run are not measured again.

mod growth;
mod pace;

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cabana_model::{SandboxId, Tenant};
use cabana_sandbox::{Sandbox, StoredParts};
use cabana_store::{Owner, Record};
use futures_util::{
    StreamExt,
    future::ready,
    stream::{self, BoxStream},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use self::{
    growth::{Growth, SLACK, with_names},
    pace::{FASTEST, LATEST, Look, REST, next, until},
};
use crate::{
    Error, Result, Runtime,
    events::Event,
    sandboxes::{Sandboxes, Slot},
    space::Room,
};

/// Of what a tenant stores: it is less exact, and some more of it harms no other tenant.
const SOONEST_OF_TENANT: Duration = Duration::from_secs(1);
const LATEST_OF_TENANT: Duration = Duration::from_secs(30);
/// So many are measured at once, and each for so long; none is begun after that. One that takes longer stands still until that is done.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);
/// So long a sandbox that starts or stops waits for what it has by then to be measured. One that takes longer stands still by then.
const NOTE_PATIENCE: Duration = Duration::from_millis(250);

const LOW_DISK: &str = "the disk of the server is nearly full, and its tenant took the most";
const OVER_QUOTA: &str = "its tenant stores more than the quota stored_bytes allows";

/// On a disk that is nearly full.
#[derive(Default)]
pub(crate) struct DiskPressure {
    /// Whose commands have taken too much of it.
    over: Mutex<HashSet<Tenant>>,
    /// What sandboxes had when they started and when they stopped, until the next look at their tenant.
    noted: Mutex<HashMap<Tenant, Vec<(SandboxId, StoredParts)>>>,
}

impl DiskPressure {
    /// Before a command begins.
    pub(crate) fn check(&self, tenant: &Tenant) -> Result<()> {
        if lock(&self.over).contains(tenant) { Err(Error::TookTheDisk) } else { Ok(()) }
    }

    fn set(&self, tenant: &Tenant, is_over: bool) {
        match is_over {
            true => lock(&self.over).insert(tenant.clone()),
            false => lock(&self.over).remove(tenant),
        };
    }

    fn clear(&self) {
        lock(&self.over).clear();
    }

    fn note(&self, tenant: Tenant, id: SandboxId, parts: StoredParts) {
        lock(&self.noted).entry(tenant).or_default().push((id, parts));
    }

    fn take_noted(&self, tenant: &Tenant) -> Vec<(SandboxId, StoredParts)> {
        lock(&self.noted).remove(tenant).unwrap_or_default()
    }

    fn tenants_with_noted(&self) -> Vec<Tenant> {
        lock(&self.noted).keys().cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sandboxes {
    /// Before anything runs in it that its tenant decides, or as soon as it is found running, and before it stops: what it has by then,
    /// where the disk may be low before its tenant is looked at. So what it writes in between counts, however short that is.
    pub(crate) async fn note_stored(&self, record: &Record, sandbox: &Arc<dyn Sandbox>) {
        if !self.keeper.space.room().is_some_and(Room::is_scarce) {
            return;
        }
        let (pressure, closing) = (self.pressure.clone(), self.closing.clone());
        let (tenant, id, sandbox) = (record.tenant.clone(), record.physical.clone(), sandbox.clone());
        let measured = self.tasks.spawn(async move {
            if let Some(Ok(parts)) = closing.run_until_cancelled(sandbox.stored()).await {
                pressure.note(tenant, id, parts);
            }
        });
        let _ = timeout(NOTE_PATIENCE, measured).await; // the look that comes first measures it as well
    }
}

/// Of the disk of all, what one tenant takes.
#[derive(Default)]
struct DiskWatch {
    growth: Growth,
    last: Option<Look>,
}

impl DiskWatch {
    fn is_due(&self, room: Room, now: Instant) -> bool {
        self.last.as_ref().is_none_or(|last| last.is_next_due(room, now))
    }
}

/// Of one tenant whose quota says how much it may store.
#[derive(Default)]
struct QuotaWatch {
    growth: Growth,
    /// What it stored, as far as is known, when the growth began.
    before: u128,
    due: Option<Instant>,
}

/// Locked while its tenant is looked at.
type Watches<W> = HashMap<Tenant, Arc<tokio::sync::Mutex<W>>>;

impl Runtime {
    /// Until the runtime closes.
    pub fn watch_room(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let (mut watches, places) = (Watches::new(), Arc::new(Semaphore::new(AT_ONCE)));
            loop {
                let wait = runtime.look_at_disk(&mut watches, &places);
                if !runtime.closing_after(wait).await {
                    return;
                }
            }
        });
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let mut watches = Watches::new();
            loop {
                runtime.look_at_quotas(&mut watches);
                if !runtime.closing_after(SOONEST_OF_TENANT).await {
                    return;
                }
            }
        });
    }

    fn live_by_tenant(&self) -> HashMap<Tenant, Vec<Arc<Slot>>> {
        let mut by_tenant: HashMap<Tenant, Vec<Arc<Slot>>> = HashMap::new();
        for slot in self.0.sandboxes.all_live() {
            by_tenant.entry(slot.record().tenant.clone()).or_default().push(slot);
        }
        by_tenant
    }

    /// Says when to look again.
    fn look_at_disk(&self, watches: &mut Watches<DiskWatch>, places: &Arc<Semaphore>) -> Duration {
        let Some(room) = self.0.keeper.space.look() else { return LATEST };
        let pressure = &self.0.sandboxes.pressure;
        if !room.is_low() {
            pressure.clear();
        }
        if !room.is_scarce() {
            watches.clear();
            pressure.tenants_with_noted().iter().for_each(|tenant| drop(pressure.take_noted(tenant)));
            return next(room);
        }
        let mut by_tenant = self.live_by_tenant();
        // Of a tenant counts also what is stopped, and what is starting.
        watches.retain(|tenant, watch| {
            by_tenant.contains_key(tenant) || watch.try_lock().map_or(true, |watch| !watch.growth.is_empty())
        });
        for tenant in watches.keys().cloned().chain(pressure.tenants_with_noted()) {
            by_tenant.entry(tenant).or_default();
        }
        let places_of_each = (AT_ONCE / by_tenant.len().max(1)).max(1);
        for (tenant, live) in by_tenant {
            let watch = watches.entry(tenant.clone()).or_default();
            let Ok(mut watch) = watch.clone().try_lock_owned() else { continue };
            if !watch.is_due(room, Instant::now()) {
                continue;
            }
            let (runtime, places) = (self.clone(), places.clone());
            self.0.tasks.spawn(async move {
                let look = async {
                    let begun = Instant::now();
                    let measured = runtime.stored_by(&live, &watch.growth, (places, places_of_each));
                    runtime.look_at_taker(&mut watch.growth, &tenant, &live, room, measured).await;
                    watch.last = Some(Look { ended: Instant::now(), took: begun.elapsed(), room });
                };
                runtime.0.closing.run_until_cancelled(look).await;
            });
        }
        next(room)
    }

    /// `room`: as it was before. It is judged by what there is when something is measured.
    async fn look_at_taker(
        &self,
        growth: &mut Growth,
        tenant: &Tenant,
        live: &[Arc<Slot>],
        room: Room,
        measured: BoxStream<'static, (SandboxId, StoredParts)>,
    ) {
        let space = &self.0.keeper.space;
        let pressure = &self.0.sandboxes.pressure;
        for (id, parts) in pressure.take_noted(tenant) {
            growth.note_between(id, parts);
        }
        growth.begin_look();
        let mut measured = measured.ready_chunks(AT_ONCE);
        while let Some(some) = measured.next().await {
            let ids: HashSet<SandboxId> = some.iter().map(|(id, _)| id.clone()).collect();
            growth.note(some);
            if growth.is_over(space.look().unwrap_or(room)) {
                pressure.set(tenant, true);
                let seen: Vec<_> = live.iter().filter(|slot| ids.contains(&slot.record().physical)).cloned().collect();
                self.end_growing(growth, &seen, LOW_DISK).await;
            }
        }
        self.forget_deleted(growth, live).await;
        let now = space.look().unwrap_or(room);
        if !now.is_low() {
            growth.begin();
        }
        if growth.is_over(now) {
            self.measure_one_unseen(growth).await;
        }
        let is_over = growth.is_over(now);
        pressure.set(tenant, is_over);
        if is_over {
            self.end_growing(growth, live, LOW_DISK).await;
        }
    }

    /// What a sandbox took counts also while it is stopped, and until it is deleted; and what is in a volume until that is removed.
    async fn forget_deleted(&self, growth: &mut Growth, live: &[Arc<Slot>]) {
        let resting = growth.resting(&live.iter().map(|slot| slot.record().physical.clone()).collect());
        if !resting.is_empty()
            && let Ok(gone) = self.0.store.missing_sandboxes(resting).await
        {
            gone.into_iter().for_each(|id| growth.forget_sandbox(id));
        }
        let unseen = growth.unseen_volumes();
        if !unseen.is_empty()
            && let Ok(gone) = self.0.store.missing_volumes(unseen).await
        {
            gone.into_iter().for_each(|volume| growth.forget_volume(volume));
        }
    }

    /// A volume that no live sandbox sees is emptied by way of the file interface alone. One of them, and by chance: one that takes long
    /// holds up no others.
    async fn measure_one_unseen(&self, growth: &mut Growth) {
        let Some(volume) = by_chance(growth.unseen_volumes().into_iter().filter(|it| growth.has_grown(*it))) else {
            return;
        };
        let usage = timeout(SOONEST_OF_TENANT, self.0.sandboxes.provider().volume_usage(volume));
        if let Ok(Ok(usage)) = usage.await {
            growth.note_most(volume, usage);
        }
    }

    fn look_at_quotas(&self, watches: &mut Watches<QuotaWatch>) {
        if !self.0.quotas.measures_somebody() {
            watches.clear();
            return;
        }
        let by_tenant = self.live_by_tenant();
        watches.retain(|tenant, _| by_tenant.contains_key(tenant));
        for (tenant, live) in by_tenant {
            let owner = Owner { tenant, key: None };
            let Some(limit) = self.0.quotas.of(&owner).1.stored_bytes else { continue };
            let watch = watches.entry(owner.tenant.clone()).or_default();
            let Ok(mut watch) = watch.clone().try_lock_owned() else { continue };
            if watch.due.is_some_and(|due| Instant::now() < due) {
                continue;
            }
            let runtime = self.clone();
            self.0.tasks.spawn(async move {
                let look = runtime.look_at_quota(&mut watch, &owner, &live, limit.into());
                runtime.0.closing.run_until_cancelled(look).await;
            });
        }
    }

    async fn look_at_quota(&self, watch: &mut QuotaWatch, owner: &Owner, live: &[Arc<Slot>], limit: u128) {
        let begun = Instant::now();
        let places = (Arc::new(Semaphore::new(AT_ONCE)), AT_ONCE);
        let measured: Vec<_> = self.stored_by(live, &watch.growth, places).collect().await;
        watch.growth.begin_look();
        let is_changed = watch.growth.note(measured);
        self.forget_deleted(&mut watch.growth, live).await;
        let taken = watch.growth.taken();
        let known = || self.0.quotas.now(owner).stored_bytes;
        let mut stored = known().max(watch.before + u128::from(with_names(taken)));
        let wants_measure = watch.due.is_none() || (stored > limit && is_changed);
        if wants_measure && self.measure_now(&owner.tenant).await {
            stored = known();
        }
        if stored <= limit {
            watch.before = stored;
            watch.growth.begin();
        } else if with_names(taken) > SLACK.bytes {
            self.end_growing(&mut watch.growth, live, OVER_QUOTA).await;
        }
        let left = u64::try_from(limit.saturating_sub(stored)).unwrap_or(u64::MAX);
        let wait = until(left, FASTEST.bytes).clamp(SOONEST_OF_TENANT, LATEST_OF_TENANT);
        watch.due = Some(Instant::now() + wait.max(begun.elapsed() * REST));
    }

    /// Those of one tenant that can be measured in time, as they are, and first those that waited longest for it. `places`: which all
    /// share, and how many of them this tenant may take, so that one whose sandboxes take long leaves some to others.
    fn stored_by(
        &self,
        slots: &[Arc<Slot>],
        growth: &Growth,
        places: (Arc<Semaphore>, usize),
    ) -> BoxStream<'static, (SandboxId, StoredParts)> {
        let mut slots = slots.to_vec();
        slots.sort_by_cached_key(|slot| growth.last_look(&slot.record().physical));
        let (places, at_once) = places;
        let until = Instant::now() + PATIENCE;
        let measured = stream::iter(slots).map(move |slot| {
            let places = places.clone();
            async move {
                let _place = places.acquire_owned().await.ok()?;
                if Instant::now() > until {
                    return None;
                }
                let (sandbox, physical) = (slot.live()?, slot.record().physical.clone());
                let parts = timeout(PATIENCE, sandbox.stored()).await.ok()?.ok()?;
                Some((physical, parts))
            }
        });
        measured.buffer_unordered(at_once).filter_map(ready).boxed()
    }

    async fn end_growing(&self, growth: &mut Growth, slots: &[Arc<Slot>], reason: &str) {
        for slot in slots {
            let record = slot.record();
            let Some(sandbox) = slot.live().filter(|_| growth.grows(&record.physical)) else { continue };
            if let Err(error) = sandbox.end_for_want_of_room().await {
                tracing::debug!(sandbox = %record.id, %error, "commands could not be ended"); // it has ended
                continue;
            }
            if growth.mark_told(&record.physical) {
                tracing::info!(tenant = %record.tenant, sandbox = %record.id, reason, "commands were ended");
                let event = Event::DiskFull { reason: reason.to_owned() };
                self.0.sandboxes.tell_of(&record.tenant, &record.id, event);
            }
        }
    }
}

/// Sets have no order that anybody could know.
fn by_chance<T: Eq + Hash>(some: impl Iterator<Item = T>) -> Option<T> {
    some.collect::<HashSet<T>>().into_iter().next()
}

#[cfg(test)]
mod test_room {
    use crate::space::{Room, Supply};

    pub(super) const MIB: u64 = 1 << 20;

    pub(super) fn room(mib: u64, inodes: u64) -> Room {
        let bytes = Supply { free: mib * MIB, least: 1024 * MIB };
        Room { bytes, inodes: Some(Supply { free: inodes, least: 10_000 }) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cabana_model::{Role, Scope};
    use cabana_store::{Durability, Store};
    use cabana_testkit::Fake;

    use super::{test_room::room, *};
    use crate::{
        Ask, Clock, Credential, Place, Settings, WantedKey,
        acts::{
            files::{At, Stat},
            sandbox::{Become, Ensure, Shape},
        },
    };

    fn open(dir: &Path, fake: &Fake) -> Runtime {
        let store = Store::open(dir, Durability::Kill).unwrap();
        let settings = Settings { sandbox: Fake::spec(), ..Settings::default() };
        Runtime::new(Arc::new(fake.clone()), store, settings, Clock::machine())
    }

    async fn noted(runtime: &Runtime, tenant: &Tenant) -> Vec<SandboxId> {
        let some = async {
            loop {
                let noted = runtime.0.sandboxes.pressure.take_noted(tenant);
                if !noted.is_empty() {
                    return noted.into_iter().map(|(id, _)| id).collect();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), some).await.expect("it is measured")
    }

    #[tokio::test]
    async fn sandboxes_that_wake_or_stop_or_are_found_on_a_low_disk_are_measured_then() {
        let (dir, fake, low) = (tempfile::tempdir().unwrap(), Fake::new(), room(500, 1_000_000));
        let runtime = open(dir.path(), &fake);
        let issued = runtime.access().issue(WantedKey::new(Tenant::default(), Role::Use, "test")).await.unwrap();
        let caller = runtime.access().admit(Credential(&issued.text)).await.unwrap();
        let ask = || {
            let place = Place::Scope(Scope::fixed("one").unwrap(), None);
            Ask { caller: caller.clone(), place, key: None, lease: None, front: "test" }
        };
        let made = runtime.call(ask(), Ensure).await.unwrap().answer().await.unwrap();
        let slot = runtime.0.sandboxes.of_id(&caller, &made.sandbox).await.unwrap();
        let physical = slot.record().physical.clone();
        runtime.call(ask(), Become(Shape::Stopped)).await.unwrap().answer().await.unwrap();
        assert!(runtime.0.sandboxes.pressure.take_noted(&caller.tenant).is_empty(), "there was room");
        runtime.0.keeper.space.believe(low);
        runtime.look(ask(), Stat(At::new("/"))).await.unwrap();
        assert_eq!(noted(&runtime, &caller.tenant).await, std::slice::from_ref(&physical));
        runtime.call(ask(), Become(Shape::Stopped)).await.unwrap().answer().await.unwrap();
        assert_eq!(noted(&runtime, &caller.tenant).await, std::slice::from_ref(&physical));
        runtime.look(ask(), Stat(At::new("/"))).await.unwrap();
        assert_eq!(noted(&runtime, &caller.tenant).await, std::slice::from_ref(&physical));
        drop(slot);
        let store = runtime.store().clone();
        drop(runtime);
        store.close().await;
        let next = open(dir.path(), &fake);
        next.0.keeper.space.believe(low);
        next.recover().await.unwrap().finished().await;
        assert_eq!(noted(&next, &caller.tenant).await, [physical], "it was found running");
    }
}
