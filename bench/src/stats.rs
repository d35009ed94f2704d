//! Percentiles, and nothing that hides a tail: no means, no trimming.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) n: usize,
}

impl Summary {
    /// `None` of nothing.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        Some(Self { p50: percentile(samples, 50.0)?, p99: percentile(samples, 99.0)?, n: samples.len() })
    }

    pub(crate) fn map(self, convert: impl Fn(f64) -> f64) -> Self {
        Self { p50: convert(self.p50), p99: convert(self.p99), n: self.n }
    }
}

/// By nearest rank: always one of the samples. Of few samples the 99th is the worst one, not a guess beyond it.
pub(crate) fn percentile(samples: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample_of_the_right_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50.0), Some(50.0));
        assert_eq!(percentile(&hundred, 99.0), Some(99.0));
        assert_eq!(percentile(&hundred, 100.0), Some(100.0));
        assert_eq!(percentile(&hundred, 0.0), Some(1.0));
    }

    #[test]
    fn of_few_samples_the_99th_is_the_worst() {
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 99.0), Some(3.0));
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 50.0), Some(2.0));
        assert_eq!(percentile(&[7.0], 50.0), Some(7.0));
    }

    #[test]
    fn there_is_no_summary_of_nothing() {
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(Summary::of(&[]), None);
    }
}
