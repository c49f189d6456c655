//! Statistics of small samples: order statistics, and bootstrap intervals of a median.
//!
//! Nothing here assumes a distribution: times of processes have none that is well behaved.

use serde::{Deserialize, Serialize};

/// What is told of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many values there are.
    pub runs: usize,
    /// Half of the values lie below it.
    pub median: f64,
    /// 95th percentile, nearest rank.
    pub p95: f64,
    /// 99th percentile, nearest rank.
    pub p99: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Summary {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        Self {
            runs: sorted.len(),
            median: median_of_sorted(&sorted),
            p95: nearest_rank(&sorted, 95),
            p99: nearest_rank(&sorted, 99),
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        }
    }
}

/// An estimate and what it lies within, with 95% confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// How many resamples an interval is made of.
const RESAMPLES: usize = 10_000;
/// The same values give the same interval.
const SEED: u64 = 0x7469_6e65;

/// The median, and its 95% interval by the percentile bootstrap.
pub fn median_interval(values: &[f64]) -> Interval {
    let mut random = Random::new(SEED);
    let mut resample = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            resample.fill_with(|| values[random.below(values.len())]);
            resample.sort_by(f64::total_cmp);
            median_of_sorted(&resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = RESAMPLES / 40;
    Interval {
        value: median_of_sorted(&sorted(values)),
        low: medians[tail],
        high: medians[RESAMPLES - 1 - tail],
    }
}

/// `ours / theirs`, pair by pair. `None` if a value to divide by is not positive.
pub fn ratios(ours: &[f64], theirs: &[f64]) -> Option<Vec<f64>> {
    let positive = |value: &f64| *value > 0.0;
    let usable = !ours.is_empty() && ours.len() == theirs.len() && theirs.iter().all(positive);
    usable.then(|| ours.iter().zip(theirs).map(|(a, b)| a / b).collect())
}

fn sorted(values: &[f64]) -> Vec<f64> {
    assert!(!values.is_empty(), "an empty sample has no statistics");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

/// The smallest value that `percent` of all values do not exceed.
fn nearest_rank(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.max(1) - 1]
}

/// Numbers that look random, the same ones every time: SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

impl Random {
    /// The sequence that `seed` stands for.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number from 0 to `limit - 1`.
    pub fn below(&mut self, limit: usize) -> usize {
        // The high half of a product: its bias is far below what a sample could show.
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// Puts `items` in another order, each order as likely as any other (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let summary = Summary::of(&values);
        assert_eq!(summary.runs, 200);
        assert_eq!((summary.p95, summary.p99), (190.0, 198.0));
        assert_eq!(
            (summary.min, summary.median, summary.max),
            (1.0, 100.5, 200.0)
        );
    }

    #[test]
    fn one_value_is_all_of_them() {
        let summary = Summary::of(&[7.0]);
        assert_eq!((summary.median, summary.p95, summary.p99), (7.0, 7.0, 7.0));
        let interval = median_interval(&[7.0]);
        assert_eq!(
            (interval.low, interval.value, interval.high),
            (7.0, 7.0, 7.0)
        );
    }

    #[test]
    fn small_samples_have_their_maximum_as_high_percentile() {
        let values: Vec<f64> = (1..=19).map(f64::from).collect();
        assert_eq!(Summary::of(&values).p95, 19.0);
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(Summary::of(&values).p95, 19.0);
    }

    #[test]
    fn the_interval_is_the_one_that_order_statistics_give() {
        // For 25 values, order statistics 8 and 18 enclose the median with 95.7% confidence.
        let values: Vec<f64> = (1..=25).map(f64::from).collect();
        let interval = median_interval(&values);
        assert_eq!(interval.value, 13.0);
        assert!((7.0..=9.0).contains(&interval.low), "{interval:?}");
        assert!((17.0..=19.0).contains(&interval.high), "{interval:?}");
        assert_eq!(interval, median_interval(&values), "the same every time");
    }

    #[test]
    fn intervals_hold_the_truth_about_as_often_as_they_say() {
        let mut random = Random::new(1);
        let held = (0..100).filter(|_| {
            let values: Vec<f64> = (0..15).map(|_| random.below(1000) as f64).collect();
            let interval = median_interval(&values);
            (interval.low..=interval.high).contains(&499.5)
        });
        let held = held.count();
        assert!((88..=100).contains(&held), "{held} of 100");
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        assert_eq!(ratios(&[1.0, 6.0], &[2.0, 3.0]), Some(vec![0.5, 2.0]));
        assert_eq!(ratios(&[1.0], &[0.0]), None);
        assert_eq!(ratios(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(ratios(&[], &[]), None);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<usize> = (0..10).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..10).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..10).collect::<Vec<_>>());
    }
}
