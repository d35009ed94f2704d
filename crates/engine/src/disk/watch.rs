//! Looks after one sandbox's layer for as long as it lives.

use std::{sync::Arc, time::Duration};

use cabana_guest::tree::Usage;
use cabana_sandbox::SandboxEvent;
use tokio::{task::spawn_blocking, time::Instant};

use super::{Act, Most};
use crate::live::Live;

/// As fast as something may be expected to fill the disk: what is left says when to look again.
const FASTEST: Usage = Usage { bytes: 1 << 30, entries: 50_000 };
const SOONEST: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(1);

/// A measurement takes at most a tenth of a processor's time.
const REST: u32 = 9;

pub(crate) async fn watch(live: Arc<Live>) {
    let mut ended = live.ends();
    let (mut due, mut pace, mut idle) = (Instant::now(), SOONEST, SOONEST);
    let mut cpu_then = None;
    loop {
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => return,
            () = live.disk.changed.notified() => {
                due = due.min(Instant::now() + pace);
                continue;
            }
            () = tokio::time::sleep_until(due), if live.disk.state().most.is_some() => {}
        }
        // Before the measuring: what happens meanwhile is seen the next time.
        let cpu = live.cpu_us();
        let touched = std::mem::take(&mut live.disk.state().touched);
        // Nothing is written by who does not run.
        if !touched && cpu.is_some() && cpu == cpu_then {
            idle = (idle * 2).min(LATEST);
            due = Instant::now() + idle;
            continue;
        }
        cpu_then = cpu;
        let begun = Instant::now();
        let since = live.disk.state().since;
        let Ok(used) = measured(&live).await else {
            due = Instant::now() + LATEST;
            continue;
        };
        live.disk.measured(used, since);
        act(&live, live.disk.judge(used)).await;
        pace = next(live.disk.state().most, used).max(begun.elapsed() * REST);
        idle = pace;
        due = Instant::now() + pace;
    }
}

/// On a thread that may block.
pub(crate) async fn measured(live: &Arc<Live>) -> std::io::Result<Usage> {
    let live = live.clone();
    let measure = move || super::measure(live.disk.own(), &live.pids());
    spawn_blocking(measure).await.map_err(std::io::Error::other).flatten()
}

async fn act(live: &Live, act: Act) {
    if act == Act::Nothing {
        return;
    }
    live.disk.note_ended(live.execs.numbers());
    if act == Act::TellAndEnd {
        live.tell(SandboxEvent::DiskFull);
    }
    let _ = live.send(&crate::wire::ToInit::end_all(), &[]).await; // if it is gone, so are they
}

/// How long nothing can happen, or nothing that matters.
fn next(most: Most, used: Usage) -> Duration {
    let until = |most: Option<u64>, used: u64, fastest: u64| {
        most.map_or(LATEST, |most| Duration::from_secs_f64(most.saturating_sub(used) as f64 / fastest as f64))
    };
    let bytes = until(most.bytes, used.bytes, FASTEST.bytes);
    bytes.min(until(most.entries, used.entries, FASTEST.entries)).clamp(SOONEST, LATEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_the_limit_the_sooner_the_next_look() {
        let most = Most { bytes: Some(10 << 30), entries: Some(100_000) };
        let at = |bytes, entries| next(most, Usage { bytes, entries });
        assert_eq!(at(0, 0), LATEST);
        assert_eq!(at((10 << 30) - (512 << 20), 0), Duration::from_millis(500));
        assert_eq!(at(0, 90_000), Duration::from_millis(200));
        for (bytes, entries) in [(10 << 30, 0), (20 << 30, 0), (0, 200_000)] {
            assert_eq!(at(bytes, entries), SOONEST);
        }
    }
}
