//! What may be said of two monitors: a ratio, what it is worth, and when it is better to say
//! nothing.

use serde::Serialize;

use crate::contestant::{Contestant, Role};
use crate::stats::{self, Interval, Summary};

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// 1024 bytes.
    #[serde(rename = "KiB")]
    Kib,
    /// Things.
    #[serde(rename = "")]
    Count,
}

impl Unit {
    /// As it stands behind a measure's name.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Millis => "ms",
            Unit::Micros => "µs",
            Unit::Kib => "KiB",
            Unit::Count => "number",
        }
    }
}

/// One quantity, of every contestant. Less of it is better.
#[derive(Debug, Serialize)]
pub struct Measure {
    /// What it is.
    pub name: &'static str,
    /// In what unit.
    pub unit: Unit,
    /// Per contestant, in the report's order.
    pub series: Vec<Series>,
    /// The subject against itself, if that can be told.
    pub noise: Option<Interval>,
    /// The subject against each peer.
    pub comparisons: Vec<Comparison>,
}

/// One contestant's values.
#[derive(Debug, Serialize)]
pub struct Series {
    /// Whose.
    pub contestant: String,
    /// What is told of them.
    pub summary: Summary,
    /// All of them, in the order of rounds.
    pub values: Vec<f64>,
}

/// The subject's share of a peer's value.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Whose value is one.
    pub peer: String,
    /// Median of the ratios round by round.
    pub ratio: Interval,
    /// What it is worth.
    pub verdict: Verdict,
}

/// What a ratio shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The subject needs less.
    Less,
    /// The subject needs more.
    More,
    /// Nothing: there were too few rounds.
    TooFewRounds,
    /// Nothing: the interval includes 1.
    NoDifference,
    /// Nothing: the subject differs as much from itself.
    WithinNoise,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Less => "tine needs less",
            Verdict::More => "tine needs more",
            Verdict::TooFewRounds => "no verdict: too few rounds",
            Verdict::NoDifference => "no verdict: the interval includes 1",
            Verdict::WithinNoise => "no verdict: the difference is within the noise",
        })
    }
}

/// With fewer rounds, all of them can fall on one side by chance more often than once in 20
/// times, and no interval made of them would be worth its name.
const FEWEST_ROUNDS: usize = 6;

impl Measure {
    /// Compares `values`, which stand in the order of `contestants` and of rounds.
    pub fn new(
        name: &'static str,
        unit: Unit,
        contestants: &[Contestant],
        values: Vec<Vec<f64>>,
    ) -> Self {
        let rows = contestants.iter().zip(values);
        let rows = rows.map(|(contestant, values)| {
            let name = contestant.name.clone();
            (name, contestant.role, values)
        });
        Self::of_rows(name, unit, rows.collect())
    }

    /// Compares rows of a name, a role and values each.
    pub fn of_rows(name: &'static str, unit: Unit, rows: Vec<(String, Role, Vec<f64>)>) -> Self {
        let of = |role| rows.iter().filter(move |row| row.1 == role);
        let subject = of(Role::Subject).next().map(|row| row.2.as_slice());
        let subject = subject.unwrap_or_default();
        let noise = of(Role::Control).find_map(|row| ratio(subject, &row.2));
        let comparisons = of(Role::Peer).filter_map(|(peer, _, theirs)| {
            let ratio = ratio(subject, theirs)?;
            Some(Comparison {
                peer: peer.clone(),
                ratio,
                verdict: verdict(subject.len(), &ratio, noise.as_ref()),
            })
        });
        let comparisons = comparisons.collect();
        let series = rows.into_iter().map(|(contestant, _, values)| Series {
            contestant,
            summary: Summary::of(&values),
            values,
        });
        Self {
            name,
            unit,
            series: series.collect(),
            noise,
            comparisons,
        }
    }
}

fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Interval> {
    stats::ratios(ours, theirs).map(|ratios| stats::median_interval(&ratios))
}

fn verdict(rounds: usize, ratio: &Interval, noise: Option<&Interval>) -> Verdict {
    if rounds < FEWEST_ROUNDS {
        return Verdict::TooFewRounds;
    }
    if (ratio.low..=ratio.high).contains(&1.0) {
        return Verdict::NoDifference;
    }
    // Ratios are compared as factors: half as much is as far from 1 as twice as much.
    let distance = |factor: f64| factor.ln().abs();
    let noise = noise.map_or(0.0, |noise| distance(noise.low).max(distance(noise.high)));
    match ratio.value {
        value if distance(value) <= noise => Verdict::WithinNoise,
        value if value < 1.0 => Verdict::Less,
        _ => Verdict::More,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, value: f64, high: f64) -> Interval {
        Interval { value, low, high }
    }

    #[test]
    fn a_clear_difference_gets_a_verdict() {
        let noise = interval(0.95, 1.0, 1.05);
        let judge = |ratio| verdict(30, &ratio, Some(&noise));
        assert_eq!(judge(interval(0.2, 0.25, 0.3)), Verdict::Less);
        assert_eq!(judge(interval(1.5, 2.0, 2.5)), Verdict::More);
    }

    #[test]
    fn an_interval_around_one_gets_none() {
        let judge = |ratio| verdict(30, &ratio, None);
        assert_eq!(judge(interval(0.9, 0.95, 1.01)), Verdict::NoDifference);
        assert_eq!(judge(interval(1.0, 1.0, 1.0)), Verdict::NoDifference);
    }

    #[test]
    fn a_difference_that_the_subject_has_from_itself_gets_none() {
        let ratio = interval(0.85, 0.9, 0.95);
        let loud = interval(0.98, 1.05, 1.2);
        assert_eq!(verdict(30, &ratio, Some(&loud)), Verdict::WithinNoise);
        let quiet = interval(0.99, 1.0, 1.02);
        assert_eq!(verdict(30, &ratio, Some(&quiet)), Verdict::Less);
    }

    #[test]
    fn few_rounds_get_none() {
        let ratio = interval(0.2, 0.25, 0.3);
        assert_eq!(verdict(5, &ratio, None), Verdict::TooFewRounds);
        assert_eq!(verdict(6, &ratio, None), Verdict::Less);
    }
}
