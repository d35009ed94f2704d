//! What sandboxes used over time, for as long as somebody looks.
//!
//! Nothing is measured for nobody: the first look at a sandbox gives what it uses now, and from then on it is measured now and again
//! until nobody has looked for a while. A measurement reads all of a sandbox's own files, so the larger it is, the rarer it is done.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cabana_model::{SandboxId, SandboxState, Time};
use cabana_sandbox::Usage;
use tokio::time::Instant;

use crate::{Caller, Result, Runtime, sandboxes::Slot};

/// What a sandbox used at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Time,
    pub usage: Usage,
    /// How many processors it kept busy since the one before.
    pub busy: f64,
}

/// Between two samples; longer where one takes long.
const EVERY: Duration = Duration::from_secs(5);
/// Who looks more often than this gets the last one again.
const FRESH: Duration = Duration::from_millis(500);
/// Of the time at most a twentieth goes into measuring one sandbox.
const SHARE: u32 = 20;
/// Between the first two looks, which tell how busy it is.
const BETWEEN: Duration = Duration::from_millis(100);
/// Of one sandbox: twenty minutes.
const MOST: usize = 240;
/// Of all: who comes later sees what is used now, and no more.
const MOST_SERIES: usize = 1024;
/// After so long without a look it is let go.
const KEPT: Duration = Duration::from_secs(600);

/// By the provider's ids: what is made later under the same name is another one.
#[derive(Default)]
pub(crate) struct AllSeries(Mutex<HashMap<SandboxId, Arc<Series>>>);

#[derive(Default)]
struct Series {
    samples: Mutex<VecDeque<Sample>>,
    looked: Mutex<Option<Instant>>,
    /// One measures at a time, from what the last one read: when, and how much time of processors was spent by then.
    last: tokio::sync::Mutex<Option<(Instant, Duration)>>,
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Series {
    fn is_forgotten(&self) -> bool {
        locked(&self.looked).is_none_or(|looked| looked.elapsed() > KEPT)
    }

    /// Nothing where it does not run. How long it took is for whoever measures again.
    async fn measure(&self, slot: &Slot, clock: &crate::Clock) -> Result<Duration> {
        let mut last = self.last.lock().await;
        if last.is_some_and(|(when, _)| when.elapsed() < FRESH) {
            return Ok(Duration::ZERO);
        }
        let running = slot.record().state == SandboxState::Running;
        let Some(sandbox) = slot.live().filter(|_| running) else {
            *last = None;
            return Ok(Duration::ZERO);
        };
        let begun = Instant::now();
        let (before, spent_before) = match *last {
            Some(before) => before,
            None => {
                let spent = sandbox.usage().await?.cpu;
                tokio::time::sleep(BETWEEN).await;
                (begun, spent)
            }
        };
        let usage = sandbox.usage().await?;
        let spent = usage.cpu.saturating_sub(spent_before).as_secs_f64();
        let busy = spent / before.elapsed().as_secs_f64().max(f64::EPSILON);
        *last = Some((Instant::now(), usage.cpu));
        let mut samples = locked(&self.samples);
        if samples.len() >= MOST {
            samples.pop_front();
        }
        samples.push_back(Sample { at: clock.now(), usage, busy });
        Ok(begun.elapsed())
    }
}

impl Runtime {
    /// From the oldest on: what was seen while somebody looked, and what is used now if it runs. It is not woken, and not kept awake.
    pub async fn samples(&self, caller: &Caller, sandbox: &SandboxId) -> Result<Vec<Sample>> {
        let slot = self.0.sandboxes.of_id(caller, sandbox).await?;
        let physical = slot.record().physical.clone();
        let (series, is_new) = {
            let mut all = locked(&self.0.series.0);
            match all.get(&physical) {
                Some(series) => (series.clone(), false),
                None if all.len() >= MOST_SERIES => (Arc::default(), false),
                None => {
                    let series = Arc::<Series>::default();
                    all.insert(physical.clone(), series.clone());
                    (series, true)
                }
            }
        };
        *locked(&series.looked) = Some(Instant::now());
        if is_new {
            self.0.tasks.spawn(self.clone().sampling(physical, series.clone(), slot.clone()));
        }
        series.measure(&slot, &self.0.clock).await?;
        let samples = locked(&series.samples).iter().copied().collect();
        Ok(samples)
    }

    async fn sampling(self, physical: SandboxId, series: Arc<Series>, slot: Arc<Slot>) {
        let mut pause = EVERY;
        while self.closing_after(pause).await && !series.is_forgotten() && !slot.is_deleting() {
            let took = series.measure(&slot, &self.0.clock).await.unwrap_or_default();
            pause = EVERY.max(took * SHARE);
        }
        locked(&self.0.series.0).remove(&physical);
    }
}
