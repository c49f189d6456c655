//! A report that was written as JSON, read again. What it says is looked at, for it is drawn and
//! compared: a file may be old, cut short or from elsewhere.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::Report;
use crate::compare::Measure;

/// No report is larger, in bytes: a run of everything with a hundred rounds makes 2 MiB.
const LARGEST: u64 = 256 << 20;

/// Reads the report in `path`.
pub fn read(path: &Path) -> anyhow::Result<Report> {
    let name = path.display();
    let size = fs::metadata(path)
        .with_context(|| format!("cannot read {name}"))?
        .len();
    ensure!(
        size <= LARGEST,
        "{name} has {size} bytes: it is no report of tine-bench"
    );
    let text = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let report: Report = serde_json::from_slice(&text).with_context(|| {
        format!("{name} is no report of this tine-bench: write one with `tine-bench --json FILE`")
    })?;
    for answer in &report.answers {
        for measure in &answer.measures {
            check(measure).with_context(|| {
                let (question, measure) = (&answer.question, &measure.name);
                format!("{name}: `{measure}` of `{question}` makes no sense")
            })?;
        }
    }
    Ok(report)
}

/// Numbers come from clocks and counters, or are differences of such; ratios are positive.
fn check(measure: &Measure) -> anyhow::Result<()> {
    for series in &measure.series {
        let summary = &series.summary;
        let told = [
            summary.median,
            summary.p95,
            summary.p99,
            summary.min,
            summary.max,
        ];
        let mut numbers = series.values.iter().chain(&told);
        if let Some(odd) = numbers.find(|number| number.abs() >= 1e15) {
            bail!("{odd} is not among the numbers that can be measured");
        }
        ensure!(!series.values.is_empty(), "a row has no values");
    }
    let ratios = measure.comparisons.iter().map(|c| &c.ratio);
    for ratio in ratios.chain(&measure.noise) {
        let positive = |number| (0.0..1e15).contains(&number);
        let sorted = ratio.low <= ratio.value && ratio.value <= ratio.high;
        ensure!(
            positive(ratio.low) && positive(ratio.high) && sorted,
            "{ratio:?} is no interval"
        );
    }
    if let Some(point) = &measure.point {
        ensure!(
            (0.0..1e15).contains(&point.x),
            "{} is no place on a curve",
            point.x
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    fn saved(change: impl FnOnce(&mut serde_json::Value)) -> anyhow::Result<Report> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let mut json = serde_json::to_value(sample()).unwrap();
        change(&mut json);
        fs::write(&path, json.to_string()).unwrap();
        read(&path)
    }

    #[test]
    fn what_was_written_is_read() {
        let report = saved(|_| {}).unwrap();
        let (before, after) = (sample(), &report.answers[0].measures[0]);
        assert_eq!(after.name, before.answers[0].measures[0].name);
        assert_eq!(
            after.series[1].values,
            before.answers[0].measures[0].series[1].values
        );
        assert_eq!(report.host.kind, before.host.kind);
    }

    #[test]
    fn numbers_that_no_clock_tells_are_refused_by_name() {
        for (place, odd) in [
            ("/answers/0/measures/0/series/0/values/0", -1e16),
            ("/answers/0/measures/0/series/0/summary/max", 1e300),
            ("/answers/0/measures/0/noise/low", -0.5),
            ("/answers/0/measures/0/comparisons/0/ratio/high", 0.0),
        ] {
            let err = saved(|json| *json.pointer_mut(place).unwrap() = odd.into());
            let err = format!("{:#}", err.expect_err(place));
            assert!(err.contains("`time` of `how`"), "{place}: {err}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        for text in ["", "{}", "[1, 2]", "\0"] {
            fs::write(&path, text).unwrap();
            let err = format!("{:#}", read(&path).expect_err(text));
            assert!(err.contains("x.json is no report"), "{err}");
        }
        assert!(read(&dir.path().join("none")).is_err());
    }
}
