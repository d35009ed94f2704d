//! A thousand sandboxes that live at once: what each costs in memory, and what the last ones cost in time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::task::spawn_blocking;

use crate::{machine::mem_available, rhythm::nanoseconds, subject::Subject};

const CROWD: usize = 1000;
const HUNDRED: usize = 100;

pub(crate) struct Crowd {
    creates: Vec<f64>,
    pub(crate) available_before: f64,
    pub(crate) available_after: f64,
}

impl Crowd {
    pub(crate) async fn gather(subject: &Arc<Subject>) -> Result<Self> {
        // Nothing is told of these: they warm what the first hundred would otherwise pay for.
        for _ in 0..3 {
            let sandbox = subject.create().await?;
            subject.destroy(sandbox.as_ref()).await?;
        }
        // What earlier series wrote must not be written back while these are timed.
        spawn_blocking(rustix::fs::sync).await?;
        let available_before = settled().await?;
        let mut creates = Vec::with_capacity(CROWD);
        let mut sandboxes = Vec::with_capacity(CROWD);
        let mut failure = None;
        while sandboxes.len() < CROWD {
            let start = Instant::now();
            match subject.create().await {
                Ok(sandbox) => sandboxes.push(sandbox),
                Err(error) => {
                    failure = Some(error.context(format!("with {} sandboxes alive", sandboxes.len())));
                    break;
                }
            }
            creates.push(nanoseconds(start));
        }
        let available_after = settled().await?;
        subject.destroy_all(sandboxes).await.context("the end of the thousand")?;
        match failure {
            Some(error) => Err(error),
            None => Ok(Self { creates, available_before, available_after }),
        }
    }

    pub(crate) fn first(&self) -> Vec<f64> {
        self.creates[..HUNDRED].to_vec()
    }

    pub(crate) fn last(&self) -> Vec<f64> {
        self.creates[CROWD - HUNDRED..].to_vec()
    }

    pub(crate) fn kib_each(&self) -> f64 {
        (self.available_before - self.available_after) / CROWD as f64
    }
}

/// MemAvailable once it has come to rest: namespaces that ended a moment ago are still being freed. What the kernel keeps of
/// files because nobody needs the memory is let go first: how much of it counts as available, the kernel only guesses.
async fn settled() -> Result<f64> {
    std::fs::write("/proc/sys/vm/drop_caches", "3")?;
    const STEP: Duration = Duration::from_millis(500);
    const STILL_KIB: u64 = 2048;
    let mut last = mem_available()?;
    for _ in 0..20 {
        tokio::time::sleep(STEP).await;
        let now = mem_available()?;
        if now.abs_diff(last) < STILL_KIB {
            return Ok(now as f64);
        }
        last = now;
    }
    Ok(last as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd() -> Crowd {
        let creates = (0..CROWD).map(|i| i as f64).collect();
        Crowd { creates, available_before: 900_000.0, available_after: 550_000.0 }
    }

    #[test]
    fn the_fall_of_available_memory_is_shared_by_the_thousand() {
        assert_eq!(crowd().kib_each(), 350.0);
    }

    #[test]
    fn the_first_and_the_last_hundred_are_a_hundred_each() {
        let crowd = crowd();
        assert_eq!((crowd.first().len(), crowd.first()[99]), (100, 99.0));
        assert_eq!((crowd.last().len(), crowd.last()[0]), (100, 900.0));
    }
}
