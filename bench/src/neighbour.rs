//! A sandbox beside one that takes all it can get: what the work of the one costs while the other misbehaves. Both have the
//! limits that a platform gives to strangers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, ensure};
use cabana_sandbox::{Event, ExecSpec, Sandbox, SandboxPath};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::{
    rhythm::Turns,
    stats::percentile,
    subject::{Subject, run},
};

/// What the neighbour takes all of: the words of `inside/hostile.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Takes {
    Forks,
    Memory,
    Disk,
    Inodes,
    Output,
    Watches,
    Descriptors,
    Terminals,
}

impl Takes {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Forks => "forks",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Output => "output",
            Self::Watches => "watches",
            Self::Descriptors => "descriptors",
            Self::Terminals => "terminals",
        }
    }
}

#[derive(Default)]
pub(crate) struct Neighbours {
    /// What was measured so far, for the worst.
    beside: Mutex<BTreeMap<Takes, Vec<f64>>>,
}

impl Neighbours {
    pub(crate) async fn alone(&self, subject: &Subject, samples: usize) -> Result<Vec<f64>> {
        let mut turns = Turns::of_long(samples);
        while turns.next().await {
            turns.tell(subject.work().await?);
        }
        Ok(turns.told())
    }

    pub(crate) async fn beside(&self, subject: &Subject, takes: Takes, samples: usize) -> Result<Vec<f64>> {
        let neighbour = subject.create().await?;
        let told = self.work_beside(subject, &neighbour, takes, samples).await;
        subject.destroy(neighbour.as_ref()).await?;
        let told = told.with_context(|| format!("beside a neighbour that takes all {}", takes.word()))?;
        self.lock().entry(takes).or_default().extend(&told);
        Ok(told)
    }

    async fn work_beside(
        &self,
        subject: &Subject,
        neighbour: &Arc<dyn Sandbox>,
        takes: Takes,
        samples: usize,
    ) -> Result<Vec<f64>> {
        let spec = ExecSpec::argv([HOSTILE, takes.word()], SandboxPath::root());
        let mut attack = neighbour.exec(spec).await?;
        let first = attack.events.next().await.context("it says nothing")??;
        ensure!(matches!(first, Event::Output(_)), "it ended at once: {first:?}");
        // As a server does: whoever asked for the output gets it. It ends with the neighbour, or with this.
        let mut readers = JoinSet::new();
        readers.spawn(async move { while let Some(Ok(_)) = attack.events.next().await {} });
        self.alone(subject, samples).await
    }

    /// The samples beside the neighbour that hurts most, and which it is.
    pub(crate) fn worst(&self) -> Result<(Takes, Vec<f64>)> {
        let beside = self.lock();
        let median = |samples: &[f64]| percentile(samples, 50.0).unwrap_or(0.0);
        let worst = beside.iter().max_by(|(_, a), (_, b)| median(a).total_cmp(&median(b)));
        worst.map(|(takes, samples)| (*takes, samples.clone())).context("no neighbour was measured")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Takes, Vec<f64>>> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a sandbox sees the bench's programs.
pub(crate) const PROGRAMS: &str = "/opt/bench";
const HOSTILE: &str = "/opt/bench/hostile";
const WORK: &str = "/opt/bench/work";

impl Subject {
    /// A sandbox that is made, does its work and ends. The end is not measured.
    async fn work(&self) -> Result<f64> {
        let start = std::time::Instant::now();
        let sandbox = self.create().await?;
        let ran = run(sandbox.as_ref(), &[WORK]).await;
        let took = crate::rhythm::nanoseconds(start);
        self.destroy(sandbox.as_ref()).await?;
        ran.map(|_| took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_the_one_with_the_highest_median() {
        let neighbours = Neighbours::default();
        assert!(neighbours.worst().is_err());
        neighbours.lock().insert(Takes::Forks, vec![1.0, 2.0, 90.0]);
        neighbours.lock().insert(Takes::Disk, vec![3.0, 4.0, 5.0]);
        let (worst, samples) = neighbours.worst().unwrap();
        assert_eq!((worst, samples), (Takes::Disk, vec![3.0, 4.0, 5.0]));
    }
}
