//! How often a thing is done, and how long before each: the same for floors, peers and ours.

use std::time::{Duration, Instant};

/// The first turns pay for cold caches. They are run and not told, as in `floor/rhythm.h`.
const WARM_UP: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhythm {
    pub(crate) samples: usize,
    pub(crate) pause: Duration,
}

impl Rhythm {
    pub(crate) fn back_to_back(samples: usize) -> Self {
        Self { samples, pause: Duration::ZERO }
    }

    pub(crate) fn spaced(samples: usize) -> Self {
        Self { samples, pause: Duration::from_millis(200) }
    }

    pub(crate) fn turns(self) -> Turns {
        Turns { rhythm: self, warm_up: WARM_UP, begun: 0, told: Vec::with_capacity(self.samples) }
    }
}

/// `while turns.next().await { …; turns.tell(nanoseconds); }`
pub(crate) struct Turns {
    rhythm: Rhythm,
    warm_up: usize,
    begun: usize,
    told: Vec<f64>,
}

impl Turns {
    /// For what takes a second each: one turn warms enough.
    pub(crate) fn of_long(samples: usize) -> Self {
        Self { warm_up: 1, ..Rhythm::back_to_back(samples).turns() }
    }

    /// Whether there is one more, after its pause.
    pub(crate) async fn next(&mut self) -> bool {
        if self.begun == self.warm_up + self.rhythm.samples {
            return false;
        }
        self.begun += 1;
        if self.begun > self.warm_up && !self.rhythm.pause.is_zero() {
            tokio::time::sleep(self.rhythm.pause).await;
        }
        true
    }

    pub(crate) fn tell(&mut self, nanoseconds: f64) {
        if self.begun > self.warm_up {
            self.told.push(nanoseconds);
        }
    }

    pub(crate) fn told(self) -> Vec<f64> {
        self.told
    }
}

pub(crate) fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_turns_are_run_and_not_told() {
        let mut turns = Rhythm::back_to_back(2).turns();
        let mut run = 0.0;
        while turns.next().await {
            run += 1.0;
            turns.tell(run);
        }
        assert_eq!(turns.told(), [4.0, 5.0]);
    }
}
