//! Computes medians, each with an interval that contains the true median with a known probability, and decides whether
//! two medians differ.
//!
//! The ends of the interval are two of the samples (order statistics), so the interval assumes nothing about the
//! distribution of the samples. On a shared machine, samples are skewed and have outliers.

use serde::{Deserialize, Serialize};

/// Coverage that an interval should have.
const WANTED: f64 = 0.95;

/// The median of some samples, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// The median of the samples.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Probability that the interval contains the true median. Below six samples it is less than 95 %, because not even
    /// the smallest and the largest sample enclose the median that often.
    pub coverage: f64,
}

impl Summary {
    /// Summarises the samples that are numbers; `None` if there are none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let median = if count % 2 == 1 { sorted[count / 2] } else { (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0 };
        // The narrowest pair of order statistics whose coverage suffices; else the widest pair.
        let narrow = (0..count / 2).rev().find(|&cut| coverage(count, cut) >= WANTED);
        let cut = narrow.unwrap_or(0);
        let (low, high) = if count == 1 { (least, most) } else { (sorted[cut], sorted[count - 1 - cut]) };
        Some(Self { count, median, low, high, coverage: coverage(count, cut) })
    }

    /// Reports whether the two intervals have no value in common. Otherwise, the data does not show which median is
    /// larger.
    pub fn differs_from(&self, other: &Self) -> bool {
        self.high < other.low || other.high < self.low
    }
}

/// Probability that the median lies between the order statistics `cut` and `count - 1 - cut` (counted from 0): all but
/// the cases in which at most `cut` samples lie on one of its sides.
fn coverage(count: usize, cut: usize) -> f64 {
    let mut outside = 0.0;
    let mut ways = 1.0;
    for below in 0..=cut {
        outside += ways;
        ways *= (count - below) as f64 / (below + 1) as f64;
    }
    (1.0 - 2.0 * outside / 2f64.powi(count as i32)).max(0.0)
}

/// Returns the mean distance between adjacent values. If the values are delays, this is their jitter (RFC 3550, without
/// its smoothing).
pub fn jitter(delays: &[f64]) -> f64 {
    let steps = delays.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    steps.sum::<f64>() / (delays.len().max(2) - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[f64]) -> Summary {
        Summary::of(samples).expect("there are samples")
    }

    #[test]
    fn six_samples_are_the_fewest_whose_range_covers_the_median_in_19_of_20_cases() {
        assert!((of(&[1.0, 2.0, 3.0, 4.0, 5.0]).coverage - 0.9375).abs() < 1e-12);
        let six = of(&[6.0, 1.0, 5.0, 2.0, 4.0, 3.0]);
        assert!((six.coverage - 0.96875).abs() < 1e-12);
        assert_eq!((six.median, six.low, six.high), (3.5, 1.0, 6.0));
    }

    #[test]
    fn with_more_samples_outliers_leave_the_interval() {
        // The published table for the sign test: of 9 samples the 2nd and the 8th, with 96.1 %; of 20 the 6th and 15th.
        let nine = of(&[0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 900.0]);
        assert_eq!((nine.low, nine.high), (10.0, 16.0));
        assert!((nine.coverage - 0.9609).abs() < 1e-4);
        let twenty = of(&(1..=20).map(f64::from).collect::<Vec<_>>());
        assert_eq!((twenty.low, twenty.high), (6.0, 15.0));
    }

    #[test]
    fn one_sample_is_its_own_interval_and_proves_nothing() {
        let one = of(&[7.0]);
        assert_eq!((one.low, one.median, one.high, one.coverage), (7.0, 7.0, 7.0, 0.0));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN]), None);
    }

    #[test]
    fn intervals_differ_only_if_they_are_apart() {
        let (a, b, c) = (of(&[1.0, 2.0, 3.0]), of(&[3.0, 4.0, 5.0]), of(&[3.5, 9.0]));
        assert!(!a.differs_from(&b) && !b.differs_from(&a));
        assert!(a.differs_from(&c) && c.differs_from(&a));
        assert!(!a.differs_from(&a));
    }

    #[test]
    fn jitter_is_the_mean_step() {
        assert!((jitter(&[1.0, 3.0, 2.0]) - 1.5).abs() < 1e-12);
        assert!(jitter(&[5.0]).abs() < 1e-12 && jitter(&[]).abs() < 1e-12);
    }
}
