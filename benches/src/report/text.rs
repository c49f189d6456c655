//! Words and numbers that all forms of the report have in common.

use crate::compare::{Comparison, Measure, Unit};
use crate::stats::{Interval, Summary};

/// The columns of a summary.
pub const COLUMNS: [&str; 6] = ["runs", "median", "p95", "p99", "min", "max"];

/// What stands in them.
pub fn cells(summary: &Summary, unit: Unit) -> [String; 6] {
    [
        summary.runs.to_string(),
        unit.number(summary.median),
        unit.number(summary.p95),
        unit.number(summary.p99),
        unit.number(summary.min),
        unit.number(summary.max),
    ]
}

/// An estimate with what it lies within.
pub fn interval(interval: &Interval) -> String {
    let Interval { value, low, high } = interval;
    format!("{value:.3}, 95% within {low:.3} to {high:.3}")
}

/// A comparison as a sentence.
pub fn comparison(comparison: &Comparison, unit: Unit) -> String {
    let Comparison {
        peer,
        ratio,
        verdict,
    } = comparison;
    format!(
        "tine / {peer}: {} ({})",
        interval(ratio),
        verdict.words(unit)
    )
}

/// The noise as a sentence.
pub fn noise(noise: &Interval) -> String {
    format!("noise, tine / itself: {}", interval(noise))
}

/// One line per comparison of a measure, and one for the noise.
pub fn remarks(measure: &Measure) -> Vec<String> {
    let comparisons = measure.comparisons.iter();
    let mut remarks: Vec<String> = comparisons.map(|c| comparison(c, measure.unit)).collect();
    remarks.extend(measure.noise.as_ref().map(noise));
    remarks
}

/// The name of a thing as the word behind an axis of a curve.
pub fn amount(value: f64) -> String {
    match value.fract() == 0.0 && value.abs() < 1e9 {
        true => format!("{value:.0}"),
        false => format!("{value:.3}"),
    }
}
