//! Holds sandboxes to a part of what the kernel remembers for them and charges to nobody.
//!
//! For each descriptor of a directory that a layer below has, too, overlayfs keeps a list of its names as they were when it was read; and
//! a process may have any number of locks on files. Neither counts for a memory limit, nor for any other, and one sandbox could take all
//! memory of the machine that way within seconds. So one watch for all sandboxes looks at what the kernel cannot give up. Only when that
//! has grown by much it counts who has how much of it:
//!
//! - Lists of earlier states of directories are dropped, for those that have too many.
//! - What is certainly there counts (see `held`), and the commands of the largest end for it.
//! - Where too much is missing after that, the sandboxes of a tenant stand still together while they are counted, tenant after tenant:
//!   descriptors could have gone from one to another. What is hidden in a socket then, again and again, is taken out and closed.
//!
//! - Where that was not it either, files that are mapped are looked at: an open file that nothing else keeps has its locks still. Nobody can
//!   count those, so whoever may have so many of them ends (see `mapped`).
//!
//! Nobody else ends for what was not found. Locks on what all sandboxes have in common end who has them, however few they are (see `shared`).
//! Beside that, what waits in connections is watched where it is no memory (see `queues`).

mod choice;
mod held;
mod level;
mod mapped;
mod queues;
mod shared;

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cabana_sandbox::SandboxId;
use futures_util::{StreamExt, future, stream};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    choice::{Hidden, Suspect, choose},
    held::{Held, Look},
    level::{LATEST, Level, SOONEST, bound, may_take, of_machine, pace},
    shared::Shared,
};
use crate::{
    cgroup::{Cgroup, Controllers, QueueMeter},
    freezer::{Freezer, Reason},
    kernel::sys,
    live::Live,
};

/// This part of the bound, divided among all, need not be known: who did not run for as long as that takes is not counted again.
const UNKNOWN: u64 = 4;
const LEAST_SHARES: u64 = 16;

/// How long one may take to stand still, and how long all may be looked at, or all of one tenant. Who was not looked at by then is, first,
/// the next time.
const STANDING_STILL: Duration = Duration::from_secs(1);
const LOOKING: Duration = Duration::from_secs(2);
const HANGING: Duration = Duration::from_secs(1);
const LOOKED_AT_AT_ONCE: usize = 4;

/// So many that used most of the processor's time come before the cheap ones: to have much of it, and to make it swing, takes time.
const BUSIEST: usize = LOOKED_AT_AT_ONCE / 2;

/// Who was looked at together with all of its tenant, and has little, has so many times as long as that took to itself.
const LEFT_ALONE: u32 = 20;

/// This part of the bound is much for one.
const MUCH: u64 = 8;

/// How long locks on what all have in common are left alone if no sandbox has them: at first, and at last.
const NOT_THEIRS: Duration = Duration::from_secs(2);
const NOT_THEIRS_AT_LAST: Duration = Duration::from_secs(60);

/// Who takes longer comes after the others.
const CHEAP: Duration = Duration::from_millis(50);

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
    queues: Option<QueueMeter>,
    looking: Arc<Mutex<()>>,
}

/// One of them that lives.
#[derive(Clone)]
struct Watched {
    live: Arc<Live>,
    group: Cgroup,
    queues: Option<QueueMeter>,
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

    fn tenant(&self) -> &Arc<str> {
        self.live.holder.tenant_name()
    }
}

impl Uncharged {
    /// Without a control group nobody knows its processes.
    pub(crate) fn add(&self, live: &Arc<Live>) {
        let groups = live.with_lease(|lease| Some((lease.cgroup.as_ref()?.to_look_at(), lease.limiter.queue_meter())));
        let Some((group, queues)) = groups.flatten() else { return };
        let mut members = self.all();
        members.retain(|member| member.live.strong_count() > 0);
        members.push(Member { live: Arc::downgrade(live), group, queues, looking: Arc::default() });
        drop(members);
        self.wake(); // it may run already
    }

    /// One that has lived on without a server.
    pub(crate) fn add_found(&self, live: &Arc<Live>) {
        self.found.store(true, Ordering::Release);
        self.add(live);
    }

    pub(crate) fn wake(&self) {
        self.woken.notify_waiters();
    }

    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    fn watched(&self) -> Vec<Watched> {
        let watched = |member: &Member| {
            let Member { live, group, queues, looking } = member;
            let (group, queues, looking) = (group.clone(), queues.clone(), looking.clone());
            Some(Watched { live: live.upgrade()?, group, queues, looking })
        };
        self.all().iter().filter_map(watched).collect()
    }

    /// Says whether it had to wait.
    async fn until_busy(&self) -> bool {
        let mut waited = false;
        loop {
            let mut woken = pin!(self.woken.notified());
            woken.as_mut().enable(); // before they are looked at
            if self.is_busy().await {
                return waited;
            }
            waited = true;
            woken.await;
        }
    }

    async fn is_busy(&self) -> bool {
        let all = self.watched();
        spawn_blocking(move || all.iter().any(|one| !one.is_empty())).await.unwrap_or(true)
    }

    /// Those in which commands run, and the processor time that they have used.
    async fn busy(&self) -> Vec<(Watched, Option<u64>)> {
        let all = self.watched();
        let busy = spawn_blocking(move || {
            let with_cpu = |one: Watched| {
                let cpu = one.cpu_us();
                (one, cpu)
            };
            all.into_iter().filter(|one| !one.is_empty()).map(with_cpu).collect()
        });
        busy.await.unwrap_or_default()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until the engine closes. It does nothing while no command runs.
pub(crate) async fn watch(sandboxes: Arc<Uncharged>, controllers: Controllers) {
    let closed = sandboxes.closed.clone();
    let both = future::join(watch_all(&sandboxes, &controllers), queues::watch(&sandboxes, &controllers));
    let _ = closed.run_until_cancelled(both).await;
}

async fn watch_all(sandboxes: &Uncharged, controllers: &Controllers) {
    let Some(bound) = of_machine("MemTotal:").map(bound).filter(|_| held::can_count()) else { return };
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (mut level, mut known, mut together) = (None, Known::default(), None::<Together>);
    let (mut asked, mut settled) = (None::<Instant>, Instant::now());
    let (shared, mut foreign, mut with_mappings) = (Arc::new(Shared::open()), Foreign::default(), false);
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= LATEST) {
            if sandboxes.until_busy().await {
                (level, together, with_mappings) = (None, None, false);
            }
            asked = Some(Instant::now());
        }
        let charged = controllers.charged();
        let uncharged = || of_machine("SUnreclaim:").unwrap_or(0).saturating_sub(charged.exact);
        let now = uncharged();
        let level = level.get_or_insert_with(|| Level::new(bound, now, charged));
        level.sink_to(now);
        let were_found = sandboxes.found.swap(false, Ordering::AcqRel);
        let due = together.take_if(|together| together.from <= Instant::now());
        let due = due.filter(|_| level.used(now) > bound); // what was dropped meanwhile may have been all
        let is_shared_locked = foreign.is_over() && shared.are_locked();
        if level.left(now) > 0 && !were_found && due.is_none() && !is_shared_locked && !with_mappings {
            let until_due = together.as_ref().map(|it| it.from.saturating_duration_since(Instant::now()));
            sleep(pace(level.left(now), processors).min(until_due.unwrap_or(LATEST))).await;
            continue;
        }

        let begun = Instant::now();
        let count = Count { bound, shared: shared.clone(), with_mappings };
        match &due {
            None => known.count_each(sandboxes, &count, is_shared_locked || with_mappings).await,
            Some(due) => known.count_together(sandboxes, &count, &due.tenants).await,
        }
        let now = now.min(uncharged()); // lists of removed directories are gone
        let (certain, counted) = (known.total(|held| held.certain), known.total(Held::counted));
        if were_found {
            level.sink_to(now.saturating_sub(certain)); // what they have is part of it
        }
        let is_missing = level.is_missing(now, certain, charged);
        let is_unexplained = level.used(now).saturating_sub(certain) > bound / 2;
        known.meet_hidden(is_missing, begun);
        let has_several = known.tenants_with_several().next().is_some();
        let is_all = known.is_whole() && (due.is_some() || !has_several) && (with_mappings || !is_unexplained);
        let mut ends = choose(bound, level.used(now), known.suspects(|held| held.certain));
        if is_shared_locked {
            let lock_it = known.suspects(|held| held.shared_locks).into_iter().filter(|one| one.bytes > 0);
            let before = ends.len();
            ends.extend(lock_it);
            foreign.meet(ends.len() > before);
        }
        if is_unexplained && with_mappings {
            ends.extend(known.suspects(|held| held.possible).into_iter().filter(|one| one.bytes > bound / MUCH));
        }
        with_mappings = is_unexplained && due.is_none() && !with_mappings;
        let drops = match level.used(now) > bound {
            true => choose(bound, u64::MAX, known.suspects(Held::counted)),
            false => Vec::new(),
        };
        level.settle(now, counted, charged, is_all, settled.elapsed());
        settled = Instant::now();
        together = if is_missing { known.together(due.is_some(), begun).or(together) } else { None };
        known.forget(&ends);
        end(sandboxes, &ends);
        drop_lists(sandboxes, &drops, bound, &shared).await;
        // This takes half of the time at most. What was ended goes on taking it for a moment.
        let rest = if ends.is_empty() { SOONEST } else { LATEST / 20 };
        sleep(begun.elapsed().max(rest)).await;
    }
}

/// Locks on what all have in common that no sandbox has.
#[derive(Default)]
struct Foreign {
    until: Option<Instant>,
    pause: Duration,
}

impl Foreign {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    fn meet(&mut self, are_theirs: bool) {
        self.pause = if are_theirs { Duration::ZERO } else { (self.pause * 2).clamp(NOT_THEIRS, NOT_THEIRS_AT_LAST) };
        self.until = Some(Instant::now() + self.pause);
    }
}

/// Tenants whose sandboxes are to stand still together while they are counted, and when.
struct Together {
    tenants: HashSet<Arc<str>>,
    from: Instant,
}

/// How they are counted.
struct Count {
    bound: u64,
    shared: Arc<Shared>,
    with_mappings: bool,
}

impl Count {
    fn task(&self, until: Instant) -> Task {
        let Self { bound, shared, with_mappings } = self;
        Task { bound: *bound, until, shared: shared.clone(), with_mappings: *with_mappings, drops_lists: false }
    }
}

/// What is known of the sandboxes in which commands run.
#[derive(Default)]
struct Known {
    sandboxes: HashMap<SandboxId, Counted>,
    /// Tenants that had little, all of them together, and until when they are left alone.
    left_alone: HashMap<Arc<str>, Instant>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    tenant: Arc<str>,
    held: Held,
    /// Of the processor's time it had used when it was counted, in microseconds.
    cpu: u64,
    /// Whether it is what it has now: on what it had once nobody is ended.
    is_fresh: bool,
    hidden: Hidden,
    took: Duration,
    at: Option<Instant>,
}

impl Held {
    fn whole(&self) -> Option<&Self> {
        self.is_whole.then_some(self)
    }

    /// Some of it perhaps more than once.
    fn counted(&self) -> u64 {
        self.certain.saturating_add(self.lists)
    }
}

impl Counted {
    /// Whether it may have something else by now.
    fn is_old(&self, cpu: Option<u64>, little: u64) -> bool {
        let Some(cpu) = cpu else { return true }; // nobody counts it
        may_take(cpu.saturating_sub(self.cpu)) >= little || self.held.counted() > little || !self.held.is_whole
    }

    fn meet(&mut self, held: Option<Held>, cpu: Option<u64>, took: Duration) {
        self.is_fresh = held.is_some();
        if let Some(held) = held {
            (self.held, self.cpu, self.took, self.at) = (held, cpu.unwrap_or_default(), took, Some(Instant::now()));
        }
    }
}

impl Known {
    /// Each stands still while it is looked at itself, and not for what others have: a guest chooses how long its own look takes. Those that
    /// used most of the processor come first, then the cheap ones, and then who was not looked at for longest, until enough is found.
    async fn count_each(&mut self, sandboxes: &Uncharged, count: &Count, all: bool) {
        let busy = self.keep_busy(sandboxes).await;
        let little = count.bound / UNKNOWN / (busy.len() as u64).max(LEAST_SHARES);
        let mut old: Vec<_> = busy.into_iter().filter(|(one, cpu)| all || self.of(one).is_old(*cpu, little)).collect();
        old.sort_by_key(|(one, _)| (self.of(one).took > CHEAP, self.of(one).at));
        for place in 0..BUSIEST.min(old.len()) {
            let used = |(one, cpu): &(Watched, Option<u64>)| cpu.map(|cpu| cpu.saturating_sub(self.of(one).cpu));
            let most = (place..old.len()).max_by_key(|place| used(&old[*place])).unwrap_or(place);
            old[place..=most].rotate_right(1);
        }
        for (one, _) in &old {
            self.sandboxes.entry(one.live.id.clone()).and_modify(|counted| counted.is_fresh = false);
        }
        let (until, is_enough) = (Instant::now() + LOOKING, AtomicBool::new(false));
        let looks = stream::iter(old).take_while(|_| future::ready(!is_enough.load(Ordering::Relaxed))).map(
            |(one, cpu)| async move {
                let (begun, id) = (Instant::now(), one.live.id.clone());
                let held = look(vec![(one, HashSet::new())], count.task(until)).await.pop().flatten();
                (id, held, cpu, begun.elapsed())
            },
        );
        let mut looks = pin!(looks.buffer_unordered(LOOKED_AT_AT_ONCE));
        while let Some((id, held, cpu, took)) = looks.next().await {
            self.sandboxes.entry(id).or_default().meet(held, cpu, took);
            let found = self.fresh().map(|counted| counted.held.certain).fold(0, u64::saturating_add);
            is_enough.store(found > count.bound, Ordering::Relaxed);
        }
    }

    /// All of a tenant stand still while all of them are looked at: nothing goes from one to another meanwhile. Others do not wait for it.
    async fn count_together(&mut self, sandboxes: &Uncharged, count: &Count, tenants: &HashSet<Arc<str>>) {
        let busy = self.keep_busy(sandboxes).await;
        for tenant in tenants {
            let begun = Instant::now();
            let group: Vec<_> = busy.iter().filter(|(one, _)| one.tenant() == tenant).collect();
            let due = group.iter().map(|(one, _)| (one.clone(), self.of(one).hidden.due(begun))).collect();
            let looked = look(due, count.task(begun + LOOKING)).await;
            let took = begun.elapsed();
            let all: Option<u64> = looked.iter().map(|held| Some(held.as_ref()?.whole()?.counted())).sum();
            match all {
                Some(all) if all <= count.bound / MUCH => {
                    self.left_alone.insert(tenant.clone(), begun + took * LEFT_ALONE);
                }
                _ => drop(self.left_alone.remove(tenant)),
            }
            for ((one, cpu), held) in group.into_iter().zip(looked) {
                self.sandboxes.entry(one.live.id.clone()).or_default().meet(held, *cpu, took);
            }
        }
    }

    /// Those that are busy now. The others have nothing.
    async fn keep_busy(&mut self, sandboxes: &Uncharged) -> Vec<(Watched, Option<u64>)> {
        let busy = sandboxes.busy().await;
        let kept = busy.iter().map(|(one, _)| {
            let new = || Counted { tenant: one.tenant().clone(), ..Counted::default() };
            (one.live.id.clone(), self.sandboxes.remove(&one.live.id).unwrap_or_else(new))
        });
        self.sandboxes = kept.collect();
        let now = Instant::now();
        self.left_alone.retain(|_, until| *until > now);
        busy
    }

    fn of(&self, one: &Watched) -> &Counted {
        &self.sandboxes[&one.live.id]
    }

    fn total(&self, bytes: impl Fn(&Held) -> u64) -> u64 {
        self.sandboxes.values().map(|counted| bytes(&counted.held)).fold(0, u64::saturating_add)
    }

    fn fresh(&self) -> impl Iterator<Item = &Counted> {
        self.sandboxes.values().filter(|counted| counted.is_fresh)
    }

    fn is_whole(&self) -> bool {
        self.sandboxes.values().all(|counted| counted.is_fresh && counted.held.is_whole)
    }

    fn suspects(&self, bytes: impl Fn(&Held) -> u64) -> Vec<Suspect> {
        let fresh = self.sandboxes.iter().filter(|(_, counted)| counted.is_fresh);
        let suspect = |(id, Counted { tenant, held, .. }): (&SandboxId, &Counted)| Suspect {
            id: id.clone(),
            tenant: tenant.clone(),
            bytes: bytes(held),
        };
        fresh.map(suspect).collect()
    }

    fn meet_hidden(&mut self, is_missing: bool, now: Instant) {
        for Counted { held, hidden, .. } in self.sandboxes.values_mut() {
            hidden.meet(&held.hidden, is_missing, now);
        }
    }

    fn tenants_with_several(&self) -> impl Iterator<Item = &Arc<str>> {
        let mut seen = HashSet::new();
        self.sandboxes.values().map(|counted| &counted.tenant).filter(move |tenant| !seen.insert(*tenant))
    }

    /// Too much is missing. Once all that could have gone to and fro was counted together, it is with those who hide something.
    fn together(&self, was_together: bool, now: Instant) -> Option<Together> {
        let hide = || self.sandboxes.values().filter(|counted| !counted.held.hidden.is_empty());
        let again = hide().filter_map(|counted| counted.hidden.again()).max();
        let mut due: HashMap<_, _> = HashMap::new();
        if !was_together {
            let left_alone = |tenant| self.left_alone.get(tenant).copied().unwrap_or(now);
            due.extend(self.tenants_with_several().map(|tenant| (tenant, left_alone(tenant))));
        }
        let hides_from = if was_together { again } else { Some(now) };
        due.extend(hide().filter_map(|counted| Some((&counted.tenant, hides_from?))));
        let from = due.values().min()?.max(&now).to_owned();
        let tenants = due.into_iter().filter(|(_, due)| *due <= from).map(|(tenant, _)| tenant.clone()).collect();
        Some(Together { tenants, from })
    }

    fn forget(&mut self, ended: &[Suspect]) {
        ended.iter().for_each(|one| drop(self.sandboxes.remove(&one.id)));
    }
}

struct Task {
    bound: u64,
    until: Instant,
    shared: Arc<Shared>,
    with_mappings: bool,
    drops_lists: bool,
}

/// Those of a group stand still together, each with the sockets that lose what they hide. `None` of one that could not be looked at, which
/// is nothing against it.
async fn look(group: Vec<(Watched, HashSet<u64>)>, task: Task) -> Vec<Option<Held>> {
    let nothing = vec![None; group.len()];
    if Instant::now() >= task.until {
        return nothing;
    }
    let all: Vec<_> = group.iter().map(|(one, _)| one.live.clone()).collect();
    let until = task.until;
    let looked = spawn_blocking(move || look_blocking(&group, &task));
    // While it reads a list it moves where the guest is in it, so they are thawed here only where it hangs.
    let held = timeout(until.saturating_duration_since(Instant::now()) + HANGING, looked).await;
    for live in all {
        let _ = live.thaw_at_last(Reason::MemoryLook).await; // what cannot be thawed has ended, or never stood still
    }
    held.ok().and_then(Result::ok).unwrap_or(nothing)
}

fn look_blocking(group: &[(Watched, HashSet<u64>)], task: &Task) -> Vec<Option<Held>> {
    let alone: Vec<_> = group.iter().map(|(one, _)| try_lock(&one.looking)).collect();
    if Instant::now() >= task.until {
        return vec![None; group.len()];
    }
    let (begun, begun_at) = (Instant::now(), sys::monotonic_ns() as usize);
    let frozen: Vec<_> =
        group.iter().zip(&alone).map(|((one, _), alone)| alone.as_ref().map(|_| Frozen::begin(one))).collect();
    let stands_still = |frozen: &Frozen<'_>| {
        let left = STANDING_STILL.saturating_sub(begun.elapsed());
        frozen.0.until_frozen(left).is_ok()
    };
    let still: Vec<_> = frozen.iter().map(|frozen| frozen.as_ref().is_some_and(stands_still)).collect();
    // Where one runs on, another could accept a connection that is waited for here.
    let all_stand_still = still.iter().all(|still| *still);
    let (nothing, mut taken) = (HashSet::new(), Vec::new());
    let held = group.iter().zip(still).map(|((one, takes), is_still)| {
        let Task { bound: enough, until, with_mappings, drops_lists, .. } = *task;
        let takes = if all_stand_still { takes } else { &nothing };
        let look = Look { enough, until, takes, drops_lists, with_mappings, shared: task.shared.inodes() };
        // What takes long is not always in the way of the same others.
        let mut pids = one.group.pids();
        let first = begun_at % pids.len().max(1);
        pids.rotate_left(first);
        is_still.then(|| held::look(&pids, &look, &mut taken)).flatten()
    });
    let held = held.collect();
    drop(frozen);
    drop(taken); // that may take long
    held
}

fn try_lock(looking: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    match looking.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// They go on when it is dropped, also where nobody waits for the look any more, and where it panics.
struct Frozen<'a>(&'a Freezer);

impl<'a> Frozen<'a> {
    /// Where that fails, nobody stands still.
    fn begin(one: &'a Watched) -> Self {
        let _ = one.live.freezer.begin_freeze(Reason::MemoryLook);
        Self(&one.live.freezer)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = self.0.thaw(Reason::MemoryLook);
    }
}

/// Without waiting for inits that do not listen.
fn end(sandboxes: &Uncharged, ends: &[Suspect]) {
    for Watched { live, .. } in sandboxes.watched() {
        if ends.iter().any(|one| one.id == live.id) {
            let ended = live.clone();
            live.tasks.spawn(async move { ended.end_for_memory().await });
        }
    }
}

/// Of all sandboxes of their tenants: descriptors could go from one to another.
async fn drop_lists(sandboxes: &Uncharged, drops: &[Suspect], bound: u64, shared: &Arc<Shared>) {
    if drops.is_empty() {
        return;
    }
    let tenants: HashSet<_> = drops.iter().map(|one| &one.tenant).collect();
    let busy = sandboxes.busy().await;
    for tenant in tenants {
        let group = busy.iter().filter(|(one, _)| one.tenant() == tenant).map(|(one, _)| (one.clone(), HashSet::new()));
        let until = Instant::now() + LOOKING;
        let task = Task { bound, until, shared: shared.clone(), with_mappings: false, drops_lists: true };
        look(group.collect(), task).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn holding(certain: u64) -> Held {
        Held { certain, is_whole: true, ..Held::default() }
    }

    fn counted(tenant: &str, held: Held) -> (SandboxId, Counted) {
        (SandboxId::random(), Counted { tenant: tenant.into(), held, is_fresh: true, ..Counted::default() })
    }

    #[test]
    fn who_has_run_is_counted_again() {
        let known = Counted { held: holding(MIB), cpu: 1_000_000, ..Counted::default() };
        assert!(!known.is_old(Some(1_001_000), 2 * MIB));
        assert!(known.is_old(Some(1_010_000), 2 * MIB) && known.is_old(None, 2 * MIB));
        let large = Counted { held: holding(50 * MIB), ..known.clone() };
        assert!(large.is_old(Some(1_000_000), 2 * MIB), "it may have let go");
        let hides = Counted { held: Held { is_whole: false, ..holding(0) }, ..known };
        assert!(hides.is_old(Some(1_000_000), 2 * MIB), "and this one may have seen to it");
    }

    #[test]
    fn only_what_is_known_now_counts_against_a_sandbox() {
        let mut known = Known::default();
        known.sandboxes.extend([counted("one", holding(MIB)), counted("other", holding(2 * MIB))]);
        known
            .sandboxes
            .values_mut()
            .filter(|one| &*one.tenant == "other")
            .for_each(|one| one.meet(None, None, Duration::ZERO));
        let suspects = known.suspects(|held| held.certain);
        assert_eq!(suspects.iter().map(|one| &*one.tenant).collect::<Vec<_>>(), ["one"]);
        assert!(!known.is_whole());
    }

    #[test]
    fn those_that_could_pass_something_on_or_hide_it_are_looked_at_together() {
        let now = Instant::now();
        let mut known = Known::default();
        known.sandboxes.extend([counted("alone", holding(0)), counted("two", holding(0)), counted("two", holding(0))]);
        let names = |known: &Known, was_together| {
            let together = known.together(was_together, now).map(|together| (together.tenants, together.from));
            together.map(|(tenants, from)| {
                let mut names: Vec<_> = tenants.iter().map(|tenant| tenant.to_string()).collect();
                names.sort();
                (names, from)
            })
        };
        assert_eq!(names(&known, false), Some((vec!["two".to_owned()], now)));
        assert_eq!(names(&known, true), None, "it was seen that they do not");
        known.sandboxes.extend([counted("hides", Held { hidden: vec![7], is_whole: false, ..Held::default() })]);
        known.meet_hidden(true, now);
        assert_eq!(names(&known, false), Some((vec!["hides".to_owned(), "two".to_owned()], now)));
        let later = now + Duration::from_secs(3);
        known.left_alone.insert("two".into(), later);
        assert_eq!(names(&known, false), Some((vec!["hides".to_owned()], now)), "the others had little a moment ago");
        assert_eq!(names(&known, true), Some((vec!["hides".to_owned()], now + Duration::from_secs(1))));
    }
}
