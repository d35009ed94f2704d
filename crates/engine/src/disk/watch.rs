//! Looks after one sandbox's layer for as long as it lives.

use std::{path::Path, pin::pin, sync::Arc, time::Duration};

use cabana_guest::tree::{Measured, Usage};
use cabana_sandbox::SandboxEvent;
use tokio::{task::spawn_blocking, time::Instant};

use super::{Act, Most};
use crate::{freezer::Reason, live::Live};

/// As fast as something may be expected to fill the disk: what is left says when to look again.
const FASTEST: Usage = Usage { bytes: 1 << 30, entries: 50_000 };
const SOONEST: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(1);

/// A measurement takes at most a tenth of a processor's time, or a half where it is urgent.
const REST: u32 = 9;

/// The last measurement.
struct Look {
    ended: Instant,
    took: Duration,
    /// What was left to the sandbox, and to everybody on this file system.
    left: Usage,
    free: Usage,
}

pub(crate) async fn watch(live: Arc<Live>) {
    let mut ended = live.ends();
    let (mut due, mut pace, mut idle) = (Instant::now(), SOONEST, SOONEST);
    let (mut cpu_then, mut asleep) = (None, false);
    let mut last: Option<Look> = None;
    loop {
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => return,
            () = live.disk.changed.notified() => {
                asleep = false;
                due = due.min(Instant::now() + pace);
                continue;
            }
            () = tokio::time::sleep_until(due), if !asleep && live.disk.state().most.is_some() => {}
        }
        if last.as_ref().is_some_and(|last| last.is_enough(Instant::now(), free(live.disk.own()))) {
            due = Instant::now() + pace;
            continue;
        }
        // Before the measuring: what happens meanwhile is seen the next time.
        let cpu = live.cpu_us();
        let touched = std::mem::take(&mut live.disk.state().touched);
        // Nothing is written by who does not run.
        if !touched && cpu.is_some() && cpu == cpu_then {
            asleep = live.is_empty(); // until somebody says that something begins
            idle = (idle * 2).min(LATEST);
            due = Instant::now() + idle;
            continue;
        }
        cpu_then = cpu;
        let (begun, free) = (Instant::now(), free(live.disk.own()));
        let since = live.disk.state().since;
        let before = last.take().unwrap_or_else(|| Look::before_any(live.disk.state().most, free));
        let Ok(measured) = look(&live, &before).await else {
            last = Some(before);
            due = Instant::now() + LATEST;
            continue;
        };
        live.disk.measured(measured, since);
        act(&live, live.disk.judge(measured)).await;
        let (most, used) = (live.disk.state().most, measured.found());
        last = Some(Look { ended: Instant::now(), took: begun.elapsed(), left: left(most, used), free });
        pace = next(left(most, used));
        idle = pace;
        due = Instant::now() + pace;
    }
}

/// Measures. Somebody inside can make that last for long, and write as much meanwhile as the disk takes: once that is more than
/// was left, all commands stand still until it is known how much it is.
async fn look(live: &Arc<Live>, before: &Look) -> std::io::Result<Measured> {
    let mut measuring = pin!(measured(live));
    let mut frozen = false;
    let measured = loop {
        tokio::select! {
            measured = &mut measuring => break measured,
            () = tokio::time::sleep(SOONEST), if !frozen => {
                if before.is_urgent(free(live.disk.own())) {
                    frozen = true;
                    freeze(live).await;
                }
            }
        }
    };
    if frozen {
        let _ = live.thaw_at_last(Reason::DiskLook).await; // what cannot be thawed has ended, or never stood still
    }
    measured
}

/// Without control groups nothing stands still.
async fn freeze(live: &Arc<Live>) {
    let live = live.clone();
    let _ = spawn_blocking(move || live.freezer.begin_freeze(Reason::DiskLook)).await;
}

impl Look {
    /// When nothing was measured yet: all may be left.
    fn before_any(most: Most, free: Usage) -> Self {
        Self { ended: Instant::now(), took: Duration::ZERO, left: left(most, Usage::default()), free }
    }

    /// Whether the next can wait: it costs something, and as long as all together have not taken what was left to this one,
    /// it has not either.
    fn is_enough(&self, now: Instant, free: Usage) -> bool {
        now < self.ended + self.took * if self.is_urgent(free) { 1 } else { REST }
    }

    /// Whether all together have taken more than what was left to this one.
    fn is_urgent(&self, free: Usage) -> bool {
        let taken = |then: u64, now: u64, left: u64| then.saturating_sub(now) > left;
        taken(self.free.bytes, free.bytes, self.left.bytes) || taken(self.free.entries, free.entries, self.left.entries)
    }
}

/// Of the whole file system.
fn free(own: &Path) -> Usage {
    let found = rustix::fs::statvfs(own);
    found.map_or_else(|_| Usage::default(), |fs| Usage { bytes: fs.f_bfree * fs.f_frsize, entries: fs.f_ffree })
}

/// On a thread that may block.
pub(crate) async fn measured(live: &Arc<Live>) -> std::io::Result<Measured> {
    let live = live.clone();
    let measure = move || super::measure(live.disk.own(), &live.pids());
    spawn_blocking(measure).await.map_err(std::io::Error::other).flatten()
}

async fn act(live: &Live, act: Act) {
    if act == Act::Nothing {
        return;
    }
    if matches!(act, Act::Tell | Act::TellAndEnd) {
        live.tell(SandboxEvent::DiskFull);
    }
    if act == Act::Tell {
        return;
    }
    live.disk.note_ended(live.execs.numbers());
    let _ = live.send(&crate::wire::ToInit::end_all(), &[]).await; // if it is gone, so are they
}

fn left(most: Most, used: Usage) -> Usage {
    let left = |most: Option<u64>, used: u64| most.map_or(u64::MAX, |most| most.saturating_sub(used));
    Usage { bytes: left(most.bytes, used.bytes), entries: left(most.entries, used.entries) }
}

/// How long nothing can happen, or nothing that matters.
fn next(left: Usage) -> Duration {
    let until =
        |left: u64, fastest: u64| Duration::from_secs_f64((left as f64 / fastest as f64).min(LATEST.as_secs_f64()));
    until(left.bytes, FASTEST.bytes).min(until(left.entries, FASTEST.entries)).max(SOONEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_the_limit_the_sooner_the_next_look() {
        let most = Most { bytes: Some(10 << 30), entries: Some(100_000) };
        let at = |bytes, entries| next(left(most, Usage { bytes, entries }));
        assert_eq!(at(0, 0), LATEST);
        assert_eq!(at((10 << 30) - (512 << 20), 0), Duration::from_millis(500));
        assert_eq!(at(0, 90_000), Duration::from_millis(200));
        for (bytes, entries) in [(10 << 30, 0), (20 << 30, 0), (0, 200_000)] {
            assert_eq!(at(bytes, entries), SOONEST);
        }
    }

    #[test]
    fn a_long_measurement_is_repeated_soon_only_when_the_disk_has_filled() {
        let usage = |mib: u64| Usage { bytes: mib << 20, entries: 1000 };
        let (ended, took) = (Instant::now(), Duration::from_secs(1));
        let look = Look { ended, took, left: Usage { entries: u64::MAX, ..usage(100) }, free: usage(5000) };
        let after = |seconds| ended + Duration::from_secs(seconds);
        assert!(look.is_enough(after(5), usage(4950)), "not even all of it together is too much");
        assert!(!look.is_enough(after(10), usage(4950)));
        assert!(!look.is_enough(after(5), usage(4800)));
        assert!(look.is_enough(ended, usage(4800)), "it rests as long as it works");
    }
}
