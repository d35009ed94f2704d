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
use crate::{freezer::Reason, live::Live};

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

/// How long one may take to stand still, and to be counted then. What lasts longer nobody can look at.
const STANDING_STILL: Duration = Duration::from_secs(1);
const COUNTING: Duration = Duration::from_secs(10);
const COUNTED_AT_ONCE: usize = 4;

/// Descriptors are where nobody can look now and then, as in connections that are not accepted yet. Who has some there each of so many
/// times, while what has grown is nowhere else, has it there.
const UNSEEN: u8 = 3;

/// The sandboxes of one engine.
#[derive(Default)]
pub(crate) struct Uncharged {
    lives: Mutex<Vec<Weak<Live>>>,
    /// A command has begun.
    woken: Notify,
    /// Some have lived on without a server, and have nobody knows what.
    found: AtomicBool,
    closed: CancellationToken,
}

impl Uncharged {
    /// Without a control group nobody knows its processes.
    pub(crate) fn add(&self, live: &Arc<Live>) {
        if live.with_lease(|lease| lease.cgroup.is_some()) != Some(true) {
            return;
        }
        let mut lives = self.all();
        lives.retain(|live| live.strong_count() > 0);
        lives.push(Arc::downgrade(live));
        drop(lives);
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

    fn lives(&self) -> Vec<Arc<Live>> {
        self.all().iter().filter_map(Weak::upgrade).collect()
    }

    fn is_busy(&self) -> bool {
        self.lives().iter().any(|live| !live.is_empty())
    }

    fn all(&self) -> MutexGuard<'_, Vec<Weak<Live>>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until the engine closes. It does nothing while no command runs.
pub(crate) async fn watch(sandboxes: Arc<Uncharged>) {
    let closed = sandboxes.closed.clone();
    let _ = closed.run_until_cancelled(watch_all(&sandboxes)).await;
}

async fn watch_all(sandboxes: &Uncharged) {
    let Some(memory) = kib("MemTotal:") else { return };
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let fastest = FASTEST.saturating_mul(processors);
    let (mut level, mut known) = (None, HashMap::new());
    let mut asked = None::<Instant>;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= LATEST) {
            while !sandboxes.is_busy() {
                level = None;
                sandboxes.woken.notified().await;
            }
            asked = Some(Instant::now());
        }
        let now = kib("SUnreclaim:").unwrap_or(0);
        let level = level.get_or_insert_with(|| Level::new(bound(memory), now));
        level.sink_to(now);
        if level.left(now) > 0 && !sandboxes.found.swap(false, Ordering::AcqRel) {
            sleep(pace(level.left(now), fastest)).await;
            continue;
        }
        let begun = Instant::now();
        let still;
        (known, still) = count(sandboxes, known, level.bound).await;
        let total = known.values().map(|known| known.held.bytes).sum();
        let suspects: Vec<_> = known.iter().map(|(id, known)| (id.clone(), known.held, known.unseen)).collect();
        let ends = choose(level.bound, level.used(now), suspects);
        let is_unsettled = level.settle(now, total, known.values().any(|known| known.held.unseen));
        end(still, &ends).await;
        for id in &ends {
            known.remove(id);
        }
        // The count takes half of the time at most. What was ended goes on taking it for a moment.
        let rest = if ends.is_empty() && !is_unsettled { SOONEST } else { LATEST / 20 };
        sleep(begun.elapsed().max(rest)).await;
    }
}

/// What is known of a sandbox.
#[derive(Clone, Copy, Default)]
struct Known {
    held: Held,
    /// Of the processor's time it had used when it was counted, in microseconds.
    cpu: u64,
    /// How often in a row some of it could not be seen.
    unseen: u8,
}

impl Known {
    /// Whether it may have something else by now.
    fn is_old(&self, cpu: Option<u64>, little: u64) -> bool {
        let Some(cpu) = cpu else { return true }; // nobody counts it
        let taken = u128::from(cpu.saturating_sub(self.cpu)) * u128::from(FASTEST) / 1_000_000;
        taken >= u128::from(little) || self.held.bytes > little || self.held.unseen
    }

    fn seen(self, held: Held, cpu: u64) -> Self {
        Self { held, cpu, unseen: if held.unseen { self.unseen.saturating_add(1) } else { 0 } }
    }
}

/// All that may have taken something stand still before the first is counted: what is handed on, closed or forked meanwhile would be
/// missed. Each goes on as soon as it is known to have little; the others are returned, too.
async fn count(
    sandboxes: &Uncharged,
    mut known: HashMap<SandboxId, Known>,
    bound: u64,
) -> (HashMap<SandboxId, Known>, Vec<Arc<Live>>) {
    let (mut all, mut suspects, lives) = (HashMap::new(), Vec::new(), sandboxes.lives());
    let little = bound / UNKNOWN / (lives.len() as u64).max(LEAST_SHARES);
    for live in lives {
        let (before, cpu) = (known.remove(&live.id).unwrap_or_default(), live.cpu_us());
        if live.is_empty() {
            continue;
        }
        if before.is_old(cpu, little) {
            suspects.push((live, before, cpu.unwrap_or_default()));
        } else {
            all.insert(live.id.clone(), before.seen(before.held, before.cpu));
        }
    }
    let frozen: Vec<_> = suspects.iter().map(|(live, ..)| live.clone()).collect();
    let _ = spawn_blocking(move || {
        for live in frozen {
            let _ = live.freezer.begin_freeze(Reason::MemoryLook); // who cannot be frozen is not seen
        }
    })
    .await;
    let counted = stream::iter(suspects).map(|(live, before, cpu)| async move {
        let held = look(&live, bound).await;
        let has_little = held.bytes <= little && !held.unseen;
        if has_little {
            go_on(&live).await;
        }
        (has_little, live, before.seen(held, cpu))
    });
    let mut still = Vec::new();
    for (has_little, live, known) in counted.buffer_unordered(COUNTED_AT_ONCE).collect::<Vec<_>>().await {
        all.insert(live.id.clone(), known);
        if !has_little {
            still.push(live);
        }
    }
    (all, still)
}

async fn look(live: &Arc<Live>, bound: u64) -> Held {
    let look = spawn_blocking({
        let live = live.clone();
        move || match live.freezer.until_frozen(STANDING_STILL) {
            Ok(()) => held::count(&live.pids(), bound, std::time::Instant::now() + COUNTING),
            Err(_) => Held::UNSEEN,
        }
    });
    timeout(STANDING_STILL + 2 * COUNTING, look).await.ok().and_then(Result::ok).unwrap_or(Held::UNSEEN)
}

/// Ends the commands of some of them, and lets the others go on.
async fn end(still: Vec<Arc<Live>>, ends: &[SandboxId]) {
    for live in still {
        if ends.contains(&live.id) {
            live.end_for_memory().await;
        }
        go_on(&live).await;
    }
}

async fn go_on(live: &Arc<Live>) {
    let _ = live.thaw_at_last(Reason::MemoryLook).await; // what cannot be thawed has ended, or never stood still
}

/// A pure decision: whose commands end. `used` is by how much it has grown, `suspects` who has how much of it, and how often some of
/// it was not seen.
fn choose(bound: u64, used: u64, mut suspects: Vec<(SandboxId, Held, u8)>) -> Vec<SandboxId> {
    suspects.sort_by_key(|(_, held, _)| std::cmp::Reverse(held.bytes));
    let mut left: u64 = suspects.iter().map(|(_, held, _)| held.bytes).fold(0, u64::saturating_add);
    let is_elsewhere = used.saturating_sub(left) > bound;
    let mut ends = Vec::new();
    for (id, held, unseen) in suspects {
        if left > bound || is_elsewhere && unseen >= UNSEEN {
            left = left.saturating_sub(held.bytes);
            ends.push(id);
        }
    }
    ends
}

/// What the kernel cannot give up, in bytes: what sandboxes have is a part of it.
struct Level {
    bound: u64,
    /// What is not theirs.
    base: u64,
    counted: u64,
}

impl Level {
    /// What there was before any of them ran is not theirs.
    fn new(bound: u64, now: u64) -> Self {
        Self { bound, base: now, counted: now }
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

    /// What they have was counted. Where it is elsewhere, and some could not be seen, they are counted again first.
    fn settle(&mut self, now: u64, total: u64, unseen: bool) -> bool {
        let is_elsewhere = self.used(now).saturating_sub(total) > self.bound;
        if is_elsewhere && unseen {
            return true;
        }
        (self.base, self.counted) = (now.saturating_sub(total), now);
        false
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

    fn ends(used: u64, named: &[(&'static str, u64, u8)]) -> Vec<&'static str> {
        let ids: HashMap<_, _> = named.iter().map(|(name, ..)| (SandboxId::random(), *name)).collect();
        let of = |name: &str| named.iter().find(|(known, ..)| *known == name).unwrap();
        let suspects = ids.iter().map(|(id, name)| {
            let (_, mib, unseen) = *of(name);
            (id.clone(), Held { bytes: mib * MIB, unseen: unseen > 0 }, unseen)
        });
        choose(100 * MIB, used * MIB, suspects.collect()).iter().map(|id| ids[id]).collect()
    }

    #[test]
    fn the_largest_end_until_the_rest_is_within_the_bound() {
        assert!(ends(300, &[("a", 60, 0), ("b", 40, 0)]).is_empty(), "what is not theirs is not their fault");
        assert_eq!(ends(300, &[("small", 5, 0), ("large", 250, 0), ("other", 20, 0)]), ["large"]);
        assert_eq!(ends(300, &[("a", 90, 0), ("b", 80, 0), ("c", 70, 0), ("d", 30, 0)]), ["a", "b"]);
    }

    #[test]
    fn what_is_hidden_again_and_again_is_taken_for_what_is_missing() {
        assert!(ends(300, &[("passes", 1, 2), ("other", 1, 0)]).is_empty());
        assert_eq!(ends(300, &[("hides", 1, 3), ("other", 1, 0)]), ["hides"]);
        assert!(ends(150, &[("hides", 90, 3)]).is_empty(), "nothing is missing");
    }

    #[test]
    fn what_grows_is_counted_before_it_is_too_much() {
        let mut level = Level::new(100 * MIB, 20 * MIB);
        assert_eq!(level.left(60 * MIB), 60 * MIB);
        assert_eq!(level.left(150 * MIB), 0);
        assert!(!level.settle(150 * MIB, 10 * MIB, false));
        assert_eq!((level.used(150 * MIB), level.left(150 * MIB)), (10 * MIB, 90 * MIB));
        level.sink_to(50 * MIB);
        assert_eq!(level.left(50 * MIB), 100 * MIB, "what went was somebody else's");
        assert!(!level.settle(150 * MIB, 99 * MIB, false));
        assert_eq!(level.left(150 * MIB), 25 * MIB, "who has nearly all does not have all counted all the time");
        assert!(level.settle(400 * MIB, 10 * MIB, true));
        assert_eq!(level.left(400 * MIB), 0);
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
        let known = Known { held: Held { bytes: MIB, unseen: false }, cpu: 1_000_000, unseen: 0 };
        assert!(!known.is_old(Some(1_001_000), 2 * MIB));
        assert!(known.is_old(Some(1_010_000), 2 * MIB) && known.is_old(None, 2 * MIB));
        let large = Known { held: Held { bytes: 50 * MIB, unseen: false }, ..known };
        assert!(large.is_old(Some(1_000_000), 2 * MIB), "it may have let go");
        let hides = Known { held: Held { unseen: true, ..known.held }, ..known };
        assert!(hides.is_old(Some(1_000_000), 2 * MIB), "and this one may have seen to it");
    }
}
