//! What may be said of two monitors: a ratio, what it is worth, and when it is better to say
//! nothing.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::contestant::{Contestant, Role};
use crate::stats::{self, Interval, Summary};
pub use crate::unit::Unit;

/// One quantity, of every contestant. Less of it is better, unless its unit says otherwise.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measure {
    /// What it is.
    pub name: Cow<'static, str>,
    /// In what unit.
    pub unit: Unit,
    /// The whole that it is a part of, if it is one; parts follow one another in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_of: Option<Cow<'static, str>>,
    /// Where it stands on a curve, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// Per contestant, in the report's order.
    pub series: Vec<Series>,
    /// The subject against itself, if that can be told.
    pub noise: Option<Interval>,
    /// The subject against each peer.
    pub comparisons: Vec<Comparison>,
}

/// A place on a curve: what it costs for so much of something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The curve's name.
    pub curve: Cow<'static, str>,
    /// What its axis counts, with the unit.
    pub axis: Cow<'static, str>,
    /// How much of that.
    pub x: f64,
}

/// One contestant's values.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    /// Whose.
    pub contestant: String,
    /// What is told of them.
    pub summary: Summary,
    /// All of them, in the order of rounds.
    pub values: Vec<f64>,
}

/// The subject's share of a peer's value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Comparison {
    /// Whose value is one.
    pub peer: String,
    /// Median of the ratios round by round.
    pub ratio: Interval,
    /// What it is worth.
    pub verdict: Verdict,
}

/// What a ratio shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl Verdict {
    /// In words, of a measure in `unit`.
    pub fn words(self, unit: Unit) -> &'static str {
        match (self, unit.more_is_better()) {
            (Verdict::Less, false) => "tine needs less",
            (Verdict::More, false) => "tine needs more",
            (Verdict::Less, true) => "tine does less",
            (Verdict::More, true) => "tine does more",
            (Verdict::TooFewRounds, _) => "no verdict: too few rounds",
            (Verdict::NoDifference, _) => "no verdict: the interval includes 1",
            (Verdict::WithinNoise, _) => "no verdict: the difference is within the noise",
        }
    }

    /// Whether it speaks for the subject, if it says anything at all.
    pub fn good(self, unit: Unit) -> Option<bool> {
        match self {
            Verdict::Less => Some(!unit.more_is_better()),
            Verdict::More => Some(unit.more_is_better()),
            _ => None,
        }
    }
}

/// With fewer rounds, all of them can fall on one side by chance more often than once in 20
/// times, and no interval made of them would be worth its name.
const FEWEST_ROUNDS: usize = 6;

impl Measure {
    /// Compares `values`, which stand in the order of `contestants` and of rounds.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
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
    pub fn of_rows(
        name: impl Into<Cow<'static, str>>,
        unit: Unit,
        rows: Vec<(String, Role, Vec<f64>)>,
    ) -> Self {
        let of = |role| rows.iter().filter(move |row| row.1 == role);
        let subject = of(Role::Subject).next().map(|row| row.2.as_slice());
        let subject = subject.unwrap_or_default();
        let noise = of(Role::Control).find_map(|row| ratio(subject, &row.2));
        let others = rows.iter().filter(|row| row.1.is_compared_with());
        let comparisons = others.filter_map(|(peer, _, theirs)| {
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
            name: name.into(),
            unit,
            part_of: None,
            point: None,
            series: series.collect(),
            noise,
            comparisons,
        }
    }

    /// The same as a part of `whole`.
    pub fn part_of(mut self, whole: impl Into<Cow<'static, str>>) -> Self {
        self.part_of = Some(whole.into());
        self
    }

    /// The same as a point of `curve`, with `x` on `axis`.
    pub fn at(mut self, curve: impl Into<Cow<'static, str>>, axis: &'static str, x: f64) -> Self {
        let (curve, axis) = (curve.into(), axis.into());
        self.point = Some(Point { curve, axis, x });
        self
    }
}

fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Interval> {
    stats::ratios(ours, theirs).map(|ratios| stats::median_interval(&ratios))
}

/// What `ratio` of so many rounds shows where the subject differs from itself by `noise`.
pub fn verdict(rounds: usize, ratio: &Interval, noise: Option<&Interval>) -> Verdict {
    if rounds < FEWEST_ROUNDS {
        return Verdict::TooFewRounds;
    }
    if (ratio.low..=ratio.high).contains(&1.0) {
        return Verdict::NoDifference;
    }
    let noise = noise.map_or(0.0, |noise| distance(noise.low).max(distance(noise.high)));
    match ratio.value {
        value if distance(value) <= noise => Verdict::WithinNoise,
        value if value < 1.0 => Verdict::Less,
        _ => Verdict::More,
    }
}

/// How far a factor is from 1: half as much is as far as twice as much.
pub fn distance(factor: f64) -> f64 {
    factor.ln().abs()
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
