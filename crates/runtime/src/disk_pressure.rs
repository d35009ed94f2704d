//! Ends commands that write on where there is no room for it: on a disk that is nearly full, and beyond what their tenant may store.
//!
//! What is new is refused there already (`space`, `quotas`); this is about what runs. Nobody can make just the writing fail, so commands
//! end as at the limit of a sandbox's own disk. What sandboxes have taken since there was room says whose: on a nearly full disk those of
//! a tenant that took an eighth of what is left, so that who writes little goes on for as long as possible; and of a tenant that
//! stores too much those that write on. Until there is room again, or it has deleted enough, such a tenant begins no command.
//!
//! What is left says when to look next, at the fastest rate that a disk may be expected to fill. Who has not run is not measured again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cabana_model::{SandboxId, Tenant, VolumeId};
use cabana_sandbox::{Stored, StoredParts};
use cabana_store::Owner;
use futures_util::{StreamExt, future::ready, stream};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::{
    Error, Result, Runtime,
    events::Event,
    sandboxes::Slot,
    space::{Room, Supply},
};

const FASTEST: Stored = Stored { bytes: 1 << 30, inodes: 50_000 };
const SOONEST: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(1);
/// Of what a tenant stores: it is less exact, and some more of it harms nobody else.
const SOONEST_OF_TENANT: Duration = Duration::from_secs(1);
const LATEST_OF_TENANT: Duration = Duration::from_secs(30);
/// A measurement takes at most a tenth of the time, or a half where it is urgent.
const REST: u32 = 9;
/// As old may be what was measured before the disk was low.
const FRESH: Duration = Duration::from_secs(30);
/// So many are measured at once, and each for so long; none is begun after that. Who takes longer stands still until that is done.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);
/// Of what is left of a disk one tenant takes this part at most; and what nobody has to ask for, since deleting takes some room too.
const SHARE: u64 = 8;
const SLACK: Stored = Stored { bytes: 1 << 20, inodes: 64 };
/// As much counts for each name.
const NAME: u64 = 4096;

/// Whose commands have taken too much of a disk that is nearly full.
#[derive(Default)]
pub(crate) struct DiskPressure(Mutex<HashSet<Tenant>>);

impl DiskPressure {
    /// Before a command begins.
    pub(crate) fn check(&self, tenant: &Tenant) -> Result<()> {
        if self.over().contains(tenant) { Err(Error::TookTheDisk) } else { Ok(()) }
    }

    fn set(&self, over: HashSet<Tenant>) {
        *self.over() = over;
    }

    fn over(&self) -> MutexGuard<'_, HashSet<Tenant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is measured by itself: a volume is filled by whoever sees it, and stays full when its sandboxes are gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    Own(SandboxId),
    Volume(VolumeId),
}

/// What was taken since the least that was measured of each.
#[derive(Default)]
struct Growth {
    parts: HashMap<What, Grown>,
    sandboxes: HashMap<SandboxId, Seen>,
    /// How many there were.
    looks: u64,
}

struct Grown {
    tenant: Tenant,
    least: Stored,
    last: Stored,
    /// Since the look before.
    grows: bool,
}

/// A sandbox, as it was when it was last measured.
struct Seen {
    tenant: Tenant,
    look: u64,
    run: u64,
    /// Since the look before.
    has_run: bool,
    is_late: bool,
    volumes: Vec<VolumeId>,
    /// Its tenant has heard that its commands end.
    told: bool,
}

impl Growth {
    /// Whether something of it is not as it was.
    fn note(&mut self, measured: impl IntoIterator<Item = (SandboxId, Tenant, StoredParts)>) -> bool {
        let mut is_changed = false;
        self.looks += 1;
        self.parts.values_mut().for_each(|grown| grown.grows = false);
        let mut volumes: HashMap<VolumeId, (Tenant, bool, Stored)> = HashMap::new();
        for (id, tenant, parts) in measured {
            let before = self.sandboxes.get(&id);
            let has_run = before.is_none_or(|seen| seen.run != parts.run);
            let seen = Seen {
                tenant: tenant.clone(),
                look: self.looks,
                run: parts.run,
                has_run,
                is_late: parts.is_late,
                volumes: parts.volumes.iter().map(|(volume, _)| *volume).collect(),
                told: before.is_some_and(|seen| seen.told),
            };
            self.sandboxes.insert(id.clone(), seen);
            for (volume, now) in parts.volumes {
                let (_, ran, most) = volumes.entry(volume).or_insert_with(|| (tenant.clone(), has_run, now));
                if has_run && !*ran {
                    (*ran, *most) = (true, now); // what is known by one that did not run is older
                } else if has_run == *ran {
                    *most = Stored { bytes: most.bytes.max(now.bytes), inodes: most.inodes.max(now.inodes) };
                }
            }
            is_changed |= self.note_part(What::Own(id), tenant, parts.own);
        }
        for (volume, (tenant, has_run, now)) in volumes {
            let what = What::Volume(volume);
            if has_run || !self.parts.contains_key(&what) {
                is_changed |= self.note_part(what, tenant, now);
            }
        }
        is_changed
    }

    fn note_part(&mut self, what: What, tenant: Tenant, now: Stored) -> bool {
        let new = || Grown { tenant, least: now, last: now, grows: false };
        let grown = self.parts.entry(what).or_insert_with(new);
        grown.grows = now.bytes > grown.last.bytes || now.inodes > grown.last.inodes;
        let is_changed = now != grown.last;
        grown.last = now;
        grown.least.bytes = grown.least.bytes.min(now.bytes);
        grown.least.inodes = grown.least.inodes.min(now.inodes);
        is_changed
    }

    /// From here on it counts anew.
    fn begin(&mut self) {
        self.parts.values_mut().for_each(|grown| grown.least = grown.last);
        self.sandboxes.values_mut().for_each(|seen| seen.told = false);
    }

    /// With its names it is no more than this: what of it was removed by whoever does not see it any more.
    fn note_most(&mut self, volume: VolumeId, with_names: u64) {
        if let Some(grown) = self.parts.get_mut(&What::Volume(volume)) {
            grown.last.bytes = grown.last.bytes.min(with_names);
            grown.last.inodes = grown.last.inodes.min(with_names / NAME);
            grown.least.bytes = grown.least.bytes.min(grown.last.bytes);
            grown.least.inodes = grown.least.inodes.min(grown.last.inodes);
        }
    }

    /// Volumes that count, and that nobody has measured in the last look.
    fn unseen_volumes(&self) -> Vec<VolumeId> {
        let now = self.sandboxes.values().filter(|seen| seen.look == self.looks);
        let seen: HashSet<VolumeId> = now.flat_map(|seen| seen.volumes.iter().copied()).collect();
        let volumes = self.parts.keys().filter_map(|what| match what {
            What::Volume(volume) => Some(*volume),
            What::Own(_) => None,
        });
        volumes.filter(|volume| !seen.contains(volume)).collect()
    }

    /// Of each tenant.
    fn taken(&self) -> HashMap<&Tenant, Stored> {
        let mut taken: HashMap<&Tenant, Stored> = HashMap::new();
        for grown in self.parts.values() {
            let sum = taken.entry(&grown.tenant).or_default();
            sum.bytes = sum.bytes.saturating_add(grown.last.bytes - grown.least.bytes);
            sum.inodes = sum.inodes.saturating_add(grown.last.inodes - grown.least.inodes);
        }
        taken
    }

    /// Who has taken more than a tenant's share of what is left.
    fn over(&self, room: Room) -> HashSet<Tenant> {
        let takes_much =
            |taken: u64, supply: Supply, slack: u64| supply.is_low() && taken > (supply.free / SHARE).max(slack);
        let is_over = |taken: &Stored| {
            takes_much(taken.bytes, room.bytes, SLACK.bytes)
                || room.inodes.is_some_and(|inodes| takes_much(taken.inodes, inodes, SLACK.inodes))
        };
        let over = self.taken().into_iter().filter(|(_, taken)| is_over(taken)).map(|(tenant, _)| tenant);
        let late = self.late().filter(|_| room.is_low());
        over.chain(late).cloned().collect()
    }

    /// Whose sandboxes have run and cannot be measured: what they take is known too late.
    fn late(&self) -> impl Iterator<Item = &Tenant> {
        let late = self.sandboxes.values().filter(|seen| seen.look == self.looks && seen.is_late);
        late.map(|seen| &seen.tenant)
    }

    /// Whether something grows that it may write to, if its tenant took more than it needs to delete something. Who did not run
    /// has written nothing, and nobody knows that of one for whose measuring there was no time beside late ones of its tenant.
    fn grows(&self, id: &SandboxId, tenant: &Tenant) -> bool {
        let Some(seen) = self.sandboxes.get(id).filter(|seen| seen.look == self.looks) else {
            return self.late().any(|late| late == tenant);
        };
        let grows = |what: &What| self.parts.get(what).is_some_and(|grown| grown.grows);
        let fills = || seen.volumes.iter().any(|volume| grows(&What::Volume(*volume)));
        seen.is_late || grows(&What::Own(id.clone())) || (seen.has_run && fills())
    }

    /// Whether this is the first time since there was room.
    fn tell(&mut self, id: &SandboxId) -> bool {
        self.sandboxes.get_mut(id).is_some_and(|seen| !std::mem::replace(&mut seen.told, true))
    }
}

/// Of the disk of all.
#[derive(Default)]
struct DiskWatch {
    growth: Growth,
    last: Option<Look>,
}

struct Look {
    ended: Instant,
    took: Duration,
    room: Room,
}

impl DiskWatch {
    fn is_due(&self, room: Room, now: Instant) -> bool {
        let Some(last) = &self.last else { return true };
        let since = now.saturating_duration_since(last.ended);
        match (last.room.is_low(), room.is_low()) {
            (false, true) | (true, false) => true,
            (false, false) => since >= FRESH.max(last.took * REST),
            (true, true) if room == last.room => false, // all together have taken nothing
            (true, true) => since >= last.took * if has_fallen(last.room, room) { 1 } else { REST },
        }
    }
}

/// By so much that nobody can wait.
fn has_fallen(before: Room, now: Room) -> bool {
    let fell = |before: Supply, now: Supply| now.free < before.free - before.free / (2 * SHARE);
    fell(before.bytes, now.bytes) || before.inodes.zip(now.inodes).is_some_and(|(before, now)| fell(before, now))
}

/// How long nothing can happen, or nothing that matters.
fn next(room: Room) -> Duration {
    let left = |supply: Supply| match supply.free.checked_sub(supply.least) {
        Some(left) => left.checked_sub(supply.least).unwrap_or(left),
        None => supply.free / (2 * SHARE),
    };
    let bytes = until(left(room.bytes), FASTEST.bytes);
    let inodes = room.inodes.map_or(LATEST, |inodes| until(left(inodes), FASTEST.inodes));
    bytes.min(inodes).clamp(SOONEST, LATEST)
}

fn until(left: u64, fastest: u64) -> Duration {
    Duration::from_secs_f64((left as f64 / fastest as f64).min(LATEST_OF_TENANT.as_secs_f64()))
}

/// Of one tenant whose quota says how much it may store.
#[derive(Default)]
struct TenantWatch {
    growth: Growth,
    /// What it stored, as far as is known, when the growth began.
    before: u128,
    due: Option<Instant>,
}

type TenantWatches = HashMap<Tenant, Arc<tokio::sync::Mutex<TenantWatch>>>;

impl Runtime {
    /// Until the runtime closes.
    pub fn watch_room(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let mut watch = DiskWatch::default();
            while let Some(wait) = runtime.0.closing.run_until_cancelled(runtime.look_at_disk(&mut watch)).await {
                if !runtime.closing_after(wait).await {
                    return;
                }
            }
        });
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let mut watches = TenantWatches::new();
            loop {
                runtime.look_at_tenants(&mut watches);
                if !runtime.closing_after(SOONEST_OF_TENANT).await {
                    return;
                }
            }
        });
    }

    /// Says when to look again.
    async fn look_at_disk(&self, watch: &mut DiskWatch) -> Duration {
        let Some(room) = self.0.keeper.space.look() else { return LATEST };
        if !room.is_scarce() {
            *watch = DiskWatch::default();
            self.0.pressure.set(HashSet::new());
            return next(room);
        }
        let begun = Instant::now();
        if !watch.is_due(room, begun) {
            return next(room);
        }
        let live = self.0.sandboxes.all_live();
        let measured = self.stored_by(&live, &watch.growth).await;
        if !room.is_low() {
            watch.growth = Growth::default();
        }
        watch.growth.note(measured);
        self.forget_deleted(&mut watch.growth, &live, room).await;
        let over = watch.growth.over(room);
        self.0.pressure.set(over.clone());
        for slot in live.iter().filter(|slot| over.contains(&slot.record().tenant)) {
            self.end_growing(
                &mut watch.growth,
                slot,
                "the disk of the server is nearly full, and its tenant took the most",
            )
            .await;
        }
        watch.last = Some(Look { ended: Instant::now(), took: begun.elapsed(), room });
        next(room)
    }

    /// What a sandbox took counts also while it is stopped, and until it is deleted; and what is in a volume until that is removed.
    async fn forget_deleted(&self, growth: &mut Growth, live: &[Arc<Slot>], room: Room) {
        let live: HashSet<_> = live.iter().map(|slot| slot.record().physical.clone()).collect();
        let resting: Vec<_> = growth.sandboxes.keys().filter(|id| !live.contains(*id)).cloned().collect();
        for id in resting {
            if let Ok(None) = self.0.store.by_physical(&id).await {
                growth.sandboxes.remove(&id);
                growth.parts.remove(&What::Own(id));
            }
        }
        let unseen = growth.unseen_volumes();
        if unseen.is_empty() {
            return;
        }
        let Ok(all) = self.0.store.all_volumes().await else { return };
        let all: HashSet<VolumeId> = all.into_iter().map(|volume| volume.physical).collect();
        let over = growth.over(room);
        let (there, gone): (HashSet<_>, HashSet<_>) = unseen.into_iter().partition(|volume| all.contains(volume));
        for volume in gone {
            growth.parts.remove(&What::Volume(volume));
        }
        let counts = |grown: &Grown| over.contains(&grown.tenant) && grown.last != grown.least;
        // By chance: one that takes long holds up no others.
        let mut there = there.into_iter();
        let Some(volume) = there.find(|it| growth.parts.get(&What::Volume(*it)).is_some_and(counts)) else { return };
        let usage = timeout(SOONEST_OF_TENANT, self.0.sandboxes.provider().volume_usage(volume));
        if let Ok(Ok(usage)) = usage.await {
            growth.note_most(volume, usage);
        }
    }

    /// Each in a task of its own: a guest decides how long it takes to measure what its tenant stores.
    fn look_at_tenants(&self, watches: &mut TenantWatches) {
        let mut by_tenant: HashMap<Tenant, Vec<Arc<Slot>>> = HashMap::new();
        if !self.0.quotas.measures_somebody() {
            watches.clear();
            return;
        }
        for slot in self.0.sandboxes.all_live() {
            by_tenant.entry(slot.record().tenant.clone()).or_default().push(slot);
        }
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
                let look = runtime.look_at_tenant(&mut watch, &owner, &live, limit.into());
                runtime.0.closing.run_until_cancelled(look).await;
            });
        }
    }

    async fn look_at_tenant(&self, watch: &mut TenantWatch, owner: &Owner, live: &[Arc<Slot>], limit: u128) {
        let begun = Instant::now();
        let measured = self.stored_by(live, &watch.growth).await;
        let is_changed = watch.growth.note(measured);
        let taken = watch.growth.taken().get(&owner.tenant).copied().unwrap_or_default();
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
            for slot in live {
                self.end_growing(&mut watch.growth, slot, "its tenant stores more than the quota stored_bytes allows")
                    .await;
            }
        }
        let left = u64::try_from(limit.saturating_sub(stored)).unwrap_or(u64::MAX);
        let wait = until(left, FASTEST.bytes).clamp(SOONEST_OF_TENANT, LATEST_OF_TENANT);
        watch.due = Some(Instant::now() + wait.max(begun.elapsed() * REST));
    }

    /// Those that can be measured in time, first those that waited longest for it. Each tenant has its part of the places, so that one
    /// whose sandboxes take long holds up its own.
    async fn stored_by(&self, slots: &[Arc<Slot>], growth: &Growth) -> Vec<(SandboxId, Tenant, StoredParts)> {
        let mut by_tenant: HashMap<Tenant, Vec<(u64, Arc<Slot>)>> = HashMap::new();
        for slot in slots {
            let record = slot.record();
            let look = growth.sandboxes.get(&record.physical).map_or(0, |seen| seen.look);
            by_tenant.entry(record.tenant.clone()).or_default().push((look, slot.clone()));
        }
        let (tenants, places) = (by_tenant.len(), Arc::new(Semaphore::new(AT_ONCE)));
        let until = Instant::now() + PATIENCE;
        let of_tenant = |mut slots: Vec<(u64, Arc<Slot>)>| {
            slots.sort_by_key(|(look, _)| *look);
            let places = places.clone();
            let measured = stream::iter(slots).map(move |(_, slot)| {
                let places = places.clone();
                async move {
                    let _place = places.acquire_owned().await.ok()?;
                    if Instant::now() > until {
                        return None;
                    }
                    let (sandbox, record) = (slot.live()?, slot.record());
                    let parts = timeout(PATIENCE, sandbox.stored()).await.ok()?.ok()?;
                    Some((record.physical.clone(), record.tenant.clone(), parts))
                }
            });
            measured.buffer_unordered((AT_ONCE / tenants).max(1)).filter_map(ready).boxed()
        };
        let all: Vec<_> = by_tenant.into_values().map(of_tenant).collect();
        stream::select_all(all).collect().await
    }

    async fn end_growing(&self, growth: &mut Growth, slot: &Slot, reason: &str) {
        let record = slot.record();
        let Some(sandbox) = slot.live().filter(|_| growth.grows(&record.physical, &record.tenant)) else { return };
        if let Err(error) = sandbox.end_for_want_of_room().await {
            tracing::debug!(sandbox = %record.id, %error, "commands could not be ended"); // it has ended
            return;
        }
        if growth.tell(&record.physical) {
            tracing::info!(tenant = %record.tenant, sandbox = %record.id, reason, "commands were ended");
            let event = Event::DiskFull { reason: reason.to_owned() };
            self.0.sandboxes.tell_of(&record.tenant, &record.id, event);
        }
    }
}

/// As it counts to what a tenant stores.
fn with_names(stored: Stored) -> u64 {
    stored.bytes.saturating_add(stored.inodes.saturating_mul(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn id(name: &str) -> SandboxId {
        SandboxId::new(name.repeat(16)).unwrap()
    }

    fn measured(rows: &[(&str, &str, u64, u64)]) -> Vec<(SandboxId, Tenant, StoredParts)> {
        let row = |(name, tenant, mib, inodes): &(&str, &str, u64, u64)| {
            let own = Stored { bytes: mib * MIB, inodes: *inodes };
            (id(name), Tenant::new(*tenant).unwrap(), StoredParts { own, ..StoredParts::default() })
        };
        rows.iter().map(row).collect()
    }

    fn room(mib: u64, inodes: u64) -> Room {
        let bytes = Supply { free: mib * MIB, least: 1024 * MIB };
        Room { bytes, inodes: Some(Supply { free: inodes, least: 10_000 }) }
    }

    fn grows(growth: &Growth, name: &str) -> bool {
        let tenant = growth.sandboxes.get(&id(name)).map(|seen| seen.tenant.clone());
        growth.grows(&id(name), &tenant.unwrap_or_else(|| Tenant::new("t").unwrap()))
    }

    fn over(growth: &Growth, room: Room) -> Vec<String> {
        let mut over: Vec<_> = growth.over(room).iter().map(ToString::to_string).collect();
        over.sort();
        over
    }

    #[test]
    fn who_takes_an_eighth_of_what_is_left_is_over_and_who_writes_little_is_not() {
        let mut growth = Growth::default();
        growth.note(measured(&[
            ("a", "large", 90_000, 5),
            ("b", "greedy", 1, 5),
            ("c", "greedy", 1, 5),
            ("d", "names", 1, 5),
        ]));
        assert_eq!(over(&growth, room(1000, 9_000)), [""; 0], "what was there before is nobody's growth");
        growth.note(measured(&[
            ("a", "large", 90_050, 5),
            ("b", "greedy", 70, 5),
            ("c", "greedy", 70, 5),
            ("d", "names", 1, 1500),
        ]));
        assert_eq!(over(&growth, room(1000, 9_000)), ["greedy", "names"]);
        assert_eq!(over(&growth, room(1000, 20_000)), ["greedy"], "there are enough inodes");
        assert!(["a", "b", "c", "d"].iter().all(|name| grows(&growth, name)));
        // Who deletes is not over any more, and who stands still does not grow.
        growth.note(measured(&[("b", "greedy", 2, 5), ("c", "greedy", 70, 5)]));
        assert_eq!(over(&growth, room(1000, 20_000)), [""; 0]);
        assert!(!grows(&growth, "a") && !grows(&growth, "b") && !grows(&growth, "c"));
        // The less is left the smaller a share.
        assert_eq!(over(&growth, room(100, 20_000)), ["greedy", "large"]);
        assert!(growth.tell(&id("a")) && !growth.tell(&id("a")));
    }

    fn with_volumes(name: &str, run: u64, volumes: &[(VolumeId, u64)]) -> (SandboxId, Tenant, StoredParts) {
        let stored = |mib: u64| Stored { bytes: mib * MIB, inodes: 5 };
        let volumes = volumes.iter().map(|(volume, mib)| (*volume, stored(*mib))).collect();
        let parts = StoredParts { own: stored(1), volumes, run, is_late: false };
        (id(name), Tenant::new("t").unwrap(), parts)
    }

    #[test]
    fn what_a_volume_took_stays_when_another_is_in_its_place_and_when_its_sandbox_is_gone() {
        let mut growth = Growth::default();
        let volumes: Vec<_> = (0..3).map(|_| VolumeId::from(uuid::Uuid::new_v4())).collect();
        let low = room(1000, 20_000);
        growth.note([with_volumes("a", 0, &[(volumes[0], 0)])]);
        growth.note([with_volumes("a", 1, &[(volumes[0], 100)])]);
        growth.note([with_volumes("a", 2, &[(volumes[1], 0)])]);
        assert_eq!(over(&growth, low), [""; 0]);
        growth.note([with_volumes("a", 3, &[(volumes[1], 100)])]);
        assert_eq!(over(&growth, low), ["t"], "both together");
        growth.note([with_volumes("b", 9, &[(volumes[2], 0)])]);
        assert_eq!(over(&growth, low), ["t"]);
        assert_eq!(growth.unseen_volumes().len(), 2);
        growth.note_most(volumes[0], MIB);
        assert_eq!(over(&growth, low), [""; 0], "most of it was removed");
    }

    #[test]
    fn a_volume_counts_once_and_who_did_not_run_has_not_filled_it() {
        let mut growth = Growth::default();
        let volume = VolumeId::from(uuid::Uuid::new_v4());
        let look = |runs: [u64; 3], mib: [u64; 3]| {
            let rows = ["a", "b", "c"].into_iter().zip(runs).zip(mib);
            rows.map(|((name, run), mib)| with_volumes(name, run, &[(volume, mib)])).collect::<Vec<_>>()
        };
        growth.note(look([0, 1, 2], [1, 1, 1]));
        growth.note(look([0, 3, 2], [1, 100, 1]));
        assert_eq!(growth.taken().values().map(|taken| taken.bytes).collect::<Vec<_>>(), [99 * MIB]);
        assert_eq!(["a", "b", "c"].map(|name| grows(&growth, name)), [false, true, false]);
        assert!(!growth.note(look([0, 3, 2], [1, 100, 1])) && !grows(&growth, "b"));
        // What was removed counts though others know of more.
        growth.note(look([4, 3, 2], [2, 100, 1]));
        assert_eq!(growth.taken().values().map(|taken| taken.bytes).collect::<Vec<_>>(), [MIB]);
    }

    #[test]
    fn who_has_run_and_cannot_be_measured_is_over_where_the_disk_is_low() {
        let mut growth = Growth::default();
        let (mut late, other) = (with_volumes("a", 0, &[]), with_volumes("b", 1, &[]));
        growth.note([late.clone(), other.clone()]);
        late.2.is_late = true;
        growth.note([late]);
        assert_eq!(over(&growth, room(2000, 20_000)), [""; 0], "there is room");
        assert_eq!(over(&growth, room(1000, 20_000)), ["t"]);
        let unknown = ["b", "c"].map(|name| grows(&growth, name));
        assert!(grows(&growth, "a") && unknown == [true, true], "nobody knows what the others did meanwhile");
        growth.note([with_volumes("a", 5, &[]), other]);
        assert_eq!(over(&growth, room(1000, 20_000)), [""; 0]);
        assert!(["a", "b", "c"].iter().all(|name| !grows(&growth, name)));
    }

    #[test]
    fn a_disk_is_looked_at_the_sooner_the_less_is_left() {
        assert_eq!(next(room(100_000, 1_000_000)), LATEST);
        assert_eq!(next(room(2048 + 512, 1_000_000)), Duration::from_millis(500));
        assert_eq!(next(room(1024 + 512, 1_000_000)), Duration::from_millis(500));
        assert_eq!(next(room(512, 1_000_000)), Duration::from_micros(31_250));
        assert_eq!(next(room(100_000, 9_000)), SOONEST);
    }

    #[test]
    fn a_long_measurement_is_repeated_soon_only_when_the_disk_has_filled() {
        let (ended, took) = (Instant::now(), Duration::from_secs(1));
        let after = |seconds| ended + Duration::from_secs(seconds);
        let watch = |room| DiskWatch { growth: Growth::default(), last: Some(Look { ended, took, room }) };
        let low = watch(room(1000, 1_000_000));
        assert!(!low.is_due(room(1000, 1_000_000), after(100)), "nothing was taken");
        assert!(!low.is_due(room(990, 1_000_000), after(5)) && low.is_due(room(990, 1_000_000), after(9)));
        assert!(!low.is_due(room(900, 1_000_000), ended) && low.is_due(room(900, 1_000_000), after(1)));
        let scarce = watch(room(2000, 1_000_000));
        assert!(scarce.is_due(room(1000, 1_000_000), ended));
        assert!(!scarce.is_due(room(1900, 1_000_000), after(20)) && scarce.is_due(room(1900, 1_000_000), after(30)));
    }
}
