//! Holds sandboxes to a part of what the kernel remembers for them and charges to nobody.
//!
//! For each descriptor of a directory that a layer below has, too, overlayfs keeps a list of its names as they were when it was read; and
//! a process may have any number of locks on files. Neither counts for a memory limit, nor for any other, and one sandbox could take all
//! memory of the machine that way within seconds. So one watch for all sandboxes looks at what the kernel cannot give up. Only when that
//! has grown by much it counts who has how much of it, and ends the commands of the largest.

mod held;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cabana_sandbox::SandboxId;
use futures_util::{StreamExt, stream};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::held::Held;
use crate::{
    cgroup::{Cgroup, Charged, Controllers},
    freezer::Reason,
    live::Live,
};

/// What all sandboxes may have together: this part of the machine's memory, and within these bounds. What programs need grows with
/// their number, and hardly with the machine.
const PART: u64 = 64;
const LEAST_BOUND: u64 = 32 << 20;
const GREATEST_BOUND: u64 = 512 << 20;

/// As fast as one processor may be expected to take it in a second. What is left says when to look again.
const FASTEST: u64 = 1 << 30;
const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_secs(1);

/// This part of the bound, divided among all, need not be known: who did not run for as long as that takes is not counted again.
const UNKNOWN: u64 = 4;
const LEAST_SHARES: u64 = 16;

/// This part of the bound in a minute may be what the machine takes for itself.
const DRIFT: u64 = 64;

/// How long one may take to stand still, and how long all may be looked at. Who was not looked at by then is, first, the next time.
const STANDING_STILL: Duration = Duration::from_millis(250);
const LOOKING: Duration = Duration::from_secs(2);
const HANGING: Duration = Duration::from_secs(1);
const LOOKED_AT_AT_ONCE: usize = 4;

/// Who takes longer comes after the others.
const CHEAP: Duration = Duration::from_millis(50);

/// Descriptors are where nobody can look now and then, as in connections that are not accepted yet. Who has some there each of so many
/// times, while what has grown is nowhere else, has it there.
const UNSEEN: u8 = 3;

/// The sandboxes of one engine.
#[derive(Default)]
pub(crate) struct Uncharged {
    members: Mutex<Vec<Member>>,
    /// A command has begun.
    woken: Notify,
    /// Some have lived on without a server, and have nobody knows what.
    found: AtomicBool,
    closed: CancellationToken,
}

struct Member {
    live: Weak<Live>,
    /// Asked without the lock that who sets limits holds for long.
    group: Cgroup,
    looking: Arc<Mutex<()>>,
}

/// One of them that lives.
#[derive(Clone)]
struct Watched {
    live: Arc<Live>,
    group: Cgroup,
    /// Held over a look: one that does not come back is not followed by another.
    looking: Arc<Mutex<()>>,
}

impl Watched {
    /// Whether no command runs in it.
    fn is_empty(&self) -> bool {
        self.live.execs.numbers().is_empty() && !self.group.has_commands()
    }

    fn cpu_us(&self) -> Option<u64> {
        Some(self.group.cpu_us()).filter(|cpu| *cpu > 0) // init has used some
    }
}

impl Uncharged {
    /// Without a control group nobody knows its processes.
    pub(crate) fn add(&self, live: &Arc<Live>) {
        let group = live.with_lease(|lease| lease.cgroup.as_ref().map(Cgroup::to_look_at));
        let Some(group) = group.flatten() else { return };
        let mut members = self.all();
        members.retain(|member| member.live.strong_count() > 0);
        members.push(Member { live: Arc::downgrade(live), group, looking: Arc::default() });
        drop(members);
        self.wake(); // it may run already
    }

    /// One that has lived on without a server.
    pub(crate) fn add_found(&self, live: &Arc<Live>) {
        self.found.store(true, Ordering::Release);
        self.add(live);
    }

    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }

    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    fn watched(&self) -> Vec<Watched> {
        let watched = |member: &Member| {
            let Member { live, group, looking } = member;
            Some(Watched { live: live.upgrade()?, group: group.clone(), looking: looking.clone() })
        };
        self.all().iter().filter_map(watched).collect()
    }

    async fn is_busy(&self) -> bool {
        let all = self.watched();
        spawn_blocking(move || all.iter().any(|one| !one.is_empty())).await.unwrap_or(true)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until the engine closes. It does nothing while no command runs.
pub(crate) async fn watch(sandboxes: Arc<Uncharged>, controllers: Controllers) {
    let closed = sandboxes.closed.clone();
    let _ = closed.run_until_cancelled(watch_all(&sandboxes, &controllers)).await;
}

async fn watch_all(sandboxes: &Uncharged, controllers: &Controllers) {
    let Some(memory) = kib("MemTotal:") else { return };
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let fastest = FASTEST.saturating_mul(processors);
    let (mut level, mut known) = (None, HashMap::new());
    let (mut asked, mut settled) = (None::<Instant>, Instant::now());
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= LATEST) {
            while !sandboxes.is_busy().await {
                level = None;
                sandboxes.woken.notified().await;
            }
            asked = Some(Instant::now());
        }
        let charged = controllers.charged();
        let now = kib("SUnreclaim:").unwrap_or(0).saturating_sub(charged.exact);
        let level = level.get_or_insert_with(|| Level::new(bound(memory), now, charged));
        level.sink_to(now);
        let were_found = sandboxes.found.swap(false, Ordering::AcqRel);
        if level.left(now) > 0 && !were_found {
            sleep(pace(level.left(now), fastest)).await;
            continue;
        }
        let begun = Instant::now();
        known = count(sandboxes, known, level.bound).await;
        let total = known.values().map(|known| known.held.bytes).fold(0, u64::saturating_add);
        if were_found {
            level.sink_to(now.saturating_sub(total)); // what they have is part of it
        }
        let has_grown = level.has_grown_elsewhere(now, total, charged);
        known.values_mut().for_each(|known| known.meet(has_grown));
        let fresh = known.iter().filter(|(_, known)| known.is_fresh);
        let suspects = fresh.map(|(id, known)| known.suspect(id.clone())).collect();
        let ends = choose(level.bound, level.used(now), level.elsewhere(now, total, charged), suspects);
        let is_all = known.values().all(|known| known.is_fresh && !known.held.unseen);
        level.settle(now, total, charged, is_all, settled.elapsed());
        settled = Instant::now();
        end(sandboxes, &ends);
        if !ends.is_empty() {
            known.retain(|id, _| !ends.contains(id));
            known.values_mut().for_each(|known| known.unseen = 0); // it may have been theirs alone
        }
        // The count takes half of the time at most. What was ended goes on taking it for a moment.
        let rest = if ends.is_empty() { SOONEST } else { LATEST / 20 };
        sleep(begun.elapsed().max(rest)).await;
    }
}

/// What is known of a sandbox.
#[derive(Clone, Debug, Default)]
struct Known {
    tenant: Arc<str>,
    held: Held,
    /// Of the processor's time it had used when it was counted, in microseconds.
    cpu: u64,
    /// Of that since it was counted the last time, and while some of it could not be seen.
    ran: u64,
    ran_unseen: u64,
    /// How often in a row some of it could not be seen, when it had run and what is missing had grown.
    unseen: u8,
    is_active: bool,
    /// Whether it is what it has now: on what it had once nobody is ended.
    is_fresh: bool,
    took: Duration,
    at: Option<Instant>,
}

impl Known {
    /// Whether it may have something else by now.
    fn is_old(&self, cpu: Option<u64>, little: u64) -> bool {
        let Some(cpu) = cpu else { return true }; // nobody counts it
        may_take(cpu.saturating_sub(self.cpu)) >= little || self.held.bytes > little || self.held.unseen
    }

    fn counted(self, held: Held, cpu: u64, took: Duration, little: u64) -> Self {
        let ran = if self.at.is_some() { cpu.saturating_sub(self.cpu) } else { 0 };
        let is_active = may_take(ran) >= little;
        Self { held, cpu, ran, is_active, is_fresh: true, took, at: Some(Instant::now()), ..self }
    }

    /// What is missing has grown since the last look, or has not: then that tells nothing of anybody.
    fn meet(&mut self, has_grown: bool) {
        if !self.held.unseen {
            (self.unseen, self.ran_unseen) = (0, 0);
        } else if has_grown && self.is_active {
            self.unseen = self.unseen.saturating_add(1);
            self.ran_unseen = self.ran_unseen.saturating_add(self.ran);
        }
        self.is_active = false;
    }

    fn suspect(&self, id: SandboxId) -> Suspect {
        let Self { tenant, held, unseen, ran_unseen, .. } = self;
        Suspect { id, tenant: tenant.clone(), bytes: held.bytes, unseen: *unseen, ran: *ran_unseen }
    }
}

/// As much as one may take in so many microseconds of a processor.
fn may_take(cpu: u64) -> u64 {
    u64::try_from(u128::from(cpu) * u128::from(FASTEST) / 1_000_000).unwrap_or(u64::MAX)
}

/// Each stands still while it is looked at itself, and not for what others have: a guest chooses how long its own look takes. The cheap ones
/// come first, and then who was not looked at for longest.
async fn count(sandboxes: &Uncharged, mut known: HashMap<SandboxId, Known>, bound: u64) -> HashMap<SandboxId, Known> {
    let all = sandboxes.watched();
    let little = bound / UNKNOWN / (all.len() as u64).max(LEAST_SHARES);
    let busy = spawn_blocking(move || {
        let busy = all.into_iter().filter(|one| !one.is_empty());
        busy.map(|one| (one.cpu_us(), one)).collect::<Vec<_>>()
    });
    let (mut looked_at, mut suspects) = (HashMap::new(), Vec::new());
    for (cpu, one) in busy.await.unwrap_or_default() {
        let tenant = one.live.holder.tenant_name().clone();
        let before = Known { tenant, ..known.remove(&one.live.id).unwrap_or_default() };
        if before.is_old(cpu, little) {
            suspects.push((one, before, cpu.unwrap_or_default()));
        } else {
            looked_at.insert(one.live.id.clone(), before);
        }
    }
    suspects.sort_by_key(|(_, before, _)| (before.took > CHEAP, before.at));
    let until = Instant::now() + LOOKING;
    let counted = stream::iter(suspects).map(|(one, before, cpu)| async move {
        let begun = Instant::now();
        let known = match look(&one, bound, until).await {
            Some(held) => before.counted(held, cpu, begun.elapsed(), little),
            None => Known { is_fresh: false, ..before },
        };
        (one.live.id.clone(), known)
    });
    looked_at.extend(counted.buffer_unordered(LOOKED_AT_AT_ONCE).collect::<Vec<_>>().await);
    looked_at
}

/// `None`: it could not be looked at, which is nothing against it.
async fn look(one: &Watched, bound: u64, until: Instant) -> Option<Held> {
    if Instant::now() >= until {
        return None;
    }
    let looked = spawn_blocking({
        let one = one.clone();
        move || {
            let _alone = one.looking.try_lock().ok()?;
            if Instant::now() >= until {
                return None;
            }
            let held = match one.live.freezer.begin_freeze(Reason::MemoryLook) {
                Ok(()) => match one.live.freezer.until_frozen(STANDING_STILL) {
                    Ok(()) => held::count(&one.group.pids(), bound, until.into_std()),
                    Err(_) => Some(Held::UNSEEN),
                },
                Err(_) => None,
            };
            let _ = one.live.freezer.thaw(Reason::MemoryLook); // also where nobody waits any more
            held
        }
    });
    // While it reads a list it moves where the guest is in it, so it is thawed here only where it hangs.
    let held = timeout(until.saturating_duration_since(Instant::now()) + HANGING, looked).await;
    let _ = one.live.thaw_at_last(Reason::MemoryLook).await; // what cannot be thawed has ended, or never stood still
    held.ok().and_then(Result::ok).flatten()
}

/// Without waiting for inits that do not listen.
fn end(sandboxes: &Uncharged, ends: &[SandboxId]) {
    for Watched { live, .. } in sandboxes.watched() {
        if ends.contains(&live.id) {
            let ended = live.clone();
            live.tasks.spawn(async move { ended.end_for_memory().await });
        }
    }
}

#[derive(Clone, Debug)]
struct Suspect {
    id: SandboxId,
    tenant: Arc<str>,
    bytes: u64,
    /// How often in a row some of it was not seen while what is missing had grown, and how long it ran meanwhile.
    unseen: u8,
    ran: u64,
}

/// A pure decision: whose commands end. `used` is by how much it has grown: nobody has more of that, whatever was counted twice. Of that
/// `elsewhere` was not found: only where nothing else is too much, one ends who hides something, and is the likeliest.
fn choose(bound: u64, used: u64, elsewhere: u64, mut suspects: Vec<Suspect>) -> Vec<SandboxId> {
    let mut tenants = HashMap::<Arc<str>, u64>::new();
    for Suspect { tenant, bytes, .. } in &suspects {
        let all = tenants.entry(tenant.clone()).or_default();
        *all = all.saturating_add(*bytes);
    }
    let mut left = tenants.values().copied().fold(0, u64::saturating_add).min(used);
    let mut ends = Vec::new();
    while left > bound {
        let largest = suspects.iter().enumerate().filter(|(_, one)| one.bytes > 0);
        let largest = largest.max_by_key(|(_, one)| (tenants.get(&one.tenant).copied(), one.bytes));
        let Some(place) = largest.map(|(place, _)| place) else { break };
        let Suspect { id, tenant, bytes, .. } = suspects.swap_remove(place);
        tenants.entry(tenant).and_modify(|all| *all = all.saturating_sub(bytes));
        left = left.saturating_sub(bytes);
        ends.push(id);
    }
    if ends.is_empty() && elsewhere > bound {
        let hides = suspects.into_iter().filter(|one| one.unseen >= UNSEEN).max_by_key(|one| one.ran);
        ends.extend(hides.map(|one| one.id));
    }
    ends
}

/// What the kernel cannot give up, in bytes: what sandboxes have is a part of it.
struct Level {
    bound: u64,
    /// What is not theirs.
    base: u64,
    counted: u64,
    /// Charged in a way that cannot be told apart, when the base was known.
    charged: u64,
    /// The most that was missing since then.
    missing: u64,
}

impl Level {
    /// What there was before any of them ran is not theirs.
    fn new(bound: u64, now: u64, charged: Charged) -> Self {
        Self { bound, base: now, counted: now, charged: charged.with_others, missing: 0 }
    }

    fn sink_to(&mut self, now: u64) {
        self.base = self.base.min(now);
        self.counted = self.counted.min(now);
    }

    fn used(&self, now: u64) -> u64 {
        now.saturating_sub(self.base)
    }

    /// By how much it may grow before they are counted.
    fn left(&self, now: u64) -> u64 {
        (self.base + self.bound).max(self.counted + self.bound / 4).saturating_sub(now)
    }

    /// What was not found, and is not charged to them either.
    fn elsewhere(&self, now: u64, total: u64, charged: Charged) -> u64 {
        let grown = charged.with_others.saturating_sub(self.charged);
        self.used(now).saturating_sub(total).saturating_sub(grown)
    }

    /// Whether too much is missing, and by much more than ever before.
    fn has_grown_elsewhere(&mut self, now: u64, total: u64, charged: Charged) -> bool {
        let missing = self.elsewhere(now, total, charged);
        let has_grown = missing > self.bound && missing >= self.missing + self.bound / 4;
        if has_grown {
            self.missing = missing;
        }
        has_grown
    }

    /// What they have was counted. Where that is not all, the rest becomes somebody else's no faster than it grows without them.
    fn settle(&mut self, now: u64, total: u64, charged: Charged, is_all: bool, elapsed: Duration) {
        self.counted = now;
        let others = now.saturating_sub(total);
        if is_all {
            (self.base, self.charged, self.missing) = (others, charged.with_others, 0);
        } else {
            let drift = (self.bound / DRIFT).saturating_mul(elapsed.as_secs()) / 60;
            self.base = others.min(self.base.saturating_add(drift));
            self.missing = self.missing.saturating_sub(drift);
        }
    }
}

fn bound(memory: u64) -> u64 {
    (memory / PART).clamp(LEAST_BOUND, GREATEST_BOUND)
}

/// How long nothing can happen that matters.
fn pace(left: u64, fastest: u64) -> Duration {
    Duration::from_secs_f64((left as f64 / fastest as f64).min(LATEST.as_secs_f64())).max(SOONEST)
}

/// Of the machine, in bytes.
fn kib(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn nothing() -> Charged {
        Charged::default()
    }

    fn suspect(tenant: &str, mib: u64, unseen: u8, ran: u64) -> Suspect {
        Suspect { id: SandboxId::random(), tenant: tenant.into(), bytes: mib * MIB, unseen, ran }
    }

    /// By their places.
    fn ends(used: u64, elsewhere: u64, suspects: &[Suspect]) -> Vec<usize> {
        let ended = choose(100 * MIB, used * MIB, elsewhere * MIB, suspects.to_vec());
        ended.iter().map(|id| suspects.iter().position(|one| one.id == *id).unwrap()).collect()
    }

    fn having(mib: &[u64]) -> Vec<Suspect> {
        mib.iter().enumerate().map(|(number, mib)| suspect(&number.to_string(), *mib, 0, 0)).collect()
    }

    #[test]
    fn the_largest_end_until_the_rest_is_within_the_bound() {
        assert!(ends(300, 200, &having(&[60, 40])).is_empty(), "what is not theirs is not their fault");
        assert_eq!(ends(300, 25, &having(&[5, 250, 20])), [1]);
        assert_eq!(ends(300, 30, &having(&[90, 80, 70, 30])), [0, 1]);
    }

    #[test]
    fn nobody_ends_for_more_than_there_is() {
        // One list was counted for each of the descriptors that share it.
        assert!(ends(90, 0, &having(&[900, 20])).is_empty());
        assert_eq!(ends(150, 0, &having(&[900, 20])), [0]);
    }

    #[test]
    fn a_tenant_with_many_small_ones_ends_before_another_with_a_larger_one() {
        let mut all: Vec<_> = (0..10).map(|_| suspect("crowd", 12, 0, 0)).collect();
        all.push(suspect("other", 50, 0, 0));
        let ended = ends(170, 0, &all);
        assert!(ended.len() == 6 && ended.iter().all(|place| *place < 10), "{ended:?}");
    }

    #[test]
    fn who_hides_something_again_and_again_ends_alone_and_only_where_it_is_missing() {
        let hides = [suspect("passes", 1, 2, 900), suspect("idles", 1, 3, 10), suspect("hides", 1, 3, 500)];
        assert_eq!(ends(300, 290, &hides), [2]);
        assert!(ends(300, 100, &hides).is_empty(), "nothing is missing");
        let found = [hides[2].clone(), suspect("has", 150, 0, 0)];
        assert_eq!(ends(300, 149, &found), [1], "it is seen afterwards what is still missing");
    }

    #[test]
    fn what_is_not_seen_counts_against_who_ran_while_it_grew() {
        let seen = Known::default().counted(Held::default(), 1_000_000, Duration::ZERO, MIB);
        let next = |known: Known, cpu, has_grown| {
            let mut known = known.counted(Held::UNSEEN, cpu, Duration::ZERO, MIB);
            known.meet(has_grown);
            known
        };
        assert_eq!(
            next(Known::default(), 9_000_000, true).unseen,
            0,
            "what it used before is not known to be for that"
        );
        let once = next(seen.clone(), 1_500_000, true);
        assert_eq!((once.unseen, once.ran_unseen), (1, 500_000));
        assert_eq!(next(once.clone(), 1_500_100, true).unseen, 1, "it did not run");
        assert_eq!(next(once.clone(), 2_000_000, false).unseen, 1, "nothing has grown");
        let mut again = once.counted(Held::default(), 2_000_000, Duration::ZERO, MIB);
        again.meet(true);
        assert_eq!(again.unseen, 0);
    }

    #[test]
    fn what_grows_is_counted_before_it_is_too_much() {
        let mut level = Level::new(100 * MIB, 20 * MIB, nothing());
        assert_eq!(level.left(60 * MIB), 60 * MIB);
        assert_eq!(level.left(150 * MIB), 0);
        level.settle(150 * MIB, 10 * MIB, nothing(), true, Duration::ZERO);
        assert_eq!((level.used(150 * MIB), level.left(150 * MIB)), (10 * MIB, 90 * MIB));
        level.sink_to(50 * MIB);
        assert_eq!(level.left(50 * MIB), 100 * MIB, "what went was somebody else's");
        level.settle(150 * MIB, 99 * MIB, nothing(), true, Duration::ZERO);
        assert_eq!(level.left(150 * MIB), 25 * MIB, "who has nearly all does not have all counted all the time");
    }

    #[test]
    fn what_is_missing_counts_when_it_has_grown_and_is_not_charged() {
        let mut level = Level::new(100 * MIB, 0, nothing());
        let charged = Charged { exact: 0, with_others: 250 * MIB };
        assert!(!level.has_grown_elsewhere(300 * MIB, 10 * MIB, charged), "it is charged to them");
        assert!(level.has_grown_elsewhere(150 * MIB, 10 * MIB, nothing()));
        level.settle(150 * MIB, 10 * MIB, nothing(), false, Duration::ZERO);
        assert_eq!((level.used(150 * MIB), level.left(150 * MIB)), (150 * MIB, 25 * MIB), "it is not forgotten");
        assert!(!level.has_grown_elsewhere(160 * MIB, 10 * MIB, nothing()), "a look by itself tells nothing");
        assert!(level.has_grown_elsewhere(175 * MIB, 10 * MIB, nothing()));
        level.settle(175 * MIB, 10 * MIB, nothing(), false, Duration::from_secs(32 * 60));
        assert_eq!(level.used(175 * MIB), 125 * MIB, "a machine takes some for itself");
    }

    #[test]
    fn a_large_machine_has_a_bound_as_a_small_one_has() {
        assert_eq!([1 << 30, 24 << 30, 256 << 30].map(bound), [32 * MIB, 384 * MIB, 512 * MIB]);
        assert_eq!(pace(32 * MIB, 2 * FASTEST), Duration::from_micros(15_625));
        assert_eq!(pace(0, FASTEST), SOONEST);
        assert_eq!(pace(u64::MAX, FASTEST), LATEST);
    }

    #[test]
    fn who_has_run_is_counted_again() {
        let known = Known { held: Held { bytes: MIB, unseen: false }, cpu: 1_000_000, ..Known::default() };
        assert!(!known.is_old(Some(1_001_000), 2 * MIB));
        assert!(known.is_old(Some(1_010_000), 2 * MIB) && known.is_old(None, 2 * MIB));
        let large = Known { held: Held { bytes: 50 * MIB, unseen: false }, ..known.clone() };
        assert!(large.is_old(Some(1_000_000), 2 * MIB), "it may have let go");
        let hides = Known { held: Held { unseen: true, ..known.held }, ..known };
        assert!(hides.is_old(Some(1_000_000), 2 * MIB), "and this one may have seen to it");
    }
}
