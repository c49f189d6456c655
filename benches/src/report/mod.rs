//! What a run found, and the forms it is given out in: a table on standard output, JSON, Markdown.

mod markdown;
mod table;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::cli::Args;
use crate::compare::{Measure, Unit};
use crate::contestant::{Contestant, Role};
use crate::host::Facts;
use crate::stats::Interval;

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where and when.
    pub host: Facts,
    /// Who took part, the control left out.
    pub monitors: Vec<MonitorFacts>,
    /// One per question asked.
    pub answers: Vec<Answer>,
}

/// What is told of a monitor.
#[derive(Debug, Serialize)]
pub struct MonitorFacts {
    /// Its name in the tables.
    pub name: String,
    /// What it says of itself.
    pub version: Option<String>,
}

/// The answer to one question.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// The question's name.
    pub question: &'static str,
    /// What was measured, from which instant to which.
    pub about: &'static str,
    /// The quantities.
    pub measures: Vec<Measure>,
}

impl Report {
    /// A report without answers.
    pub fn new(host: Facts, contestants: &[Contestant]) -> Self {
        let monitors = contestants.iter().filter(|c| c.role != Role::Control);
        let facts = |contestant: &Contestant| MonitorFacts {
            name: contestant.name.clone(),
            version: contestant.version.clone(),
        };
        Self {
            host,
            monitors: monitors.map(facts).collect(),
            answers: Vec::new(),
        }
    }
}

/// Prints the table, and writes the files that `args` name.
pub fn write(report: &Report, args: &Args) -> anyhow::Result<()> {
    match io::stdout().write_all(table::render(report).as_bytes()) {
        // Whoever reads has seen enough.
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => {}
        result => result.context("cannot print the table")?,
    }
    if let Some(path) = &args.json {
        let mut json = serde_json::to_string_pretty(report)?;
        json.push('\n');
        write_file(path, &json)?;
    }
    if let Some(path) = &args.markdown {
        write_file(path, &markdown::render(report))?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The columns of a summary, and its cells.
const COLUMNS: [&str; 6] = ["runs", "median", "p95", "p99", "min", "max"];

fn cells(summary: &crate::stats::Summary, unit: Unit) -> [String; 6] {
    let value = |value: f64| match unit {
        Unit::Millis => format!("{value:.2}"),
        // A median may lie between two whole numbers.
        Unit::Micros => format!("{value:.0}"),
        Unit::Kib | Unit::Count => format!("{}", (value * 10.0).round() / 10.0),
    };
    [
        summary.runs.to_string(),
        value(summary.median),
        value(summary.p95),
        value(summary.p99),
        value(summary.min),
        value(summary.max),
    ]
}

fn interval(interval: &Interval) -> String {
    let Interval { value, low, high } = interval;
    format!("{value:.3}, 95% within {low:.3} to {high:.3}")
}

/// One line per comparison of a measure, and one for the noise.
fn remarks(measure: &Measure) -> Vec<String> {
    let comparison = |c: &crate::compare::Comparison| {
        format!("tine / {}: {} ({})", c.peer, interval(&c.ratio), c.verdict)
    };
    let mut remarks: Vec<String> = measure.comparisons.iter().map(comparison).collect();
    let noise = measure.noise.as_ref();
    remarks.extend(noise.map(|noise| format!("noise, tine / itself: {}", interval(noise))));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    /// A report with made-up figures.
    pub fn sample() -> Report {
        let monitor = peers::parse("other=/bin/true {kernel}").unwrap();
        let contestant = |name: &str, role| Contestant {
            name: name.to_owned(),
            role,
            monitor: monitor.clone(),
            version: Some(format!("{name} 1.0")),
        };
        let contestants = [
            contestant("tine", Role::Subject),
            contestant("other", Role::Peer),
            contestant("tine again", Role::Control),
        ];
        let values = |base: f64| (0..8).map(|round| base + f64::from(round % 3)).collect();
        let values = vec![values(20.0), values(80.0), values(20.0)];
        let mut report = Report::new(Facts::gather(), &contestants);
        report.answers.push(Answer {
            question: "how",
            about: "Made up.",
            measures: vec![Measure::new("time", Unit::Millis, &contestants, values)],
        });
        report
    }

    #[test]
    fn json_has_every_value() {
        let json = serde_json::to_value(sample()).unwrap();
        let measure = &json["answers"][0]["measures"][0];
        assert_eq!(measure["unit"], "ms");
        assert_eq!(measure["series"][1]["values"][2], 82.0);
        assert_eq!(measure["comparisons"][0]["verdict"], "less");
        assert_eq!(json["monitors"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn every_contestant_and_remark_is_in_the_texts() {
        let report = sample();
        for text in [table::render(&report), markdown::render(&report)] {
            for part in [
                "tine again",
                "other",
                "21.00",
                "tine needs less",
                "noise",
                "Made up.",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(!text.contains('\x1b'));
        }
    }

    #[test]
    fn columns_line_up() {
        let text = table::render(&sample());
        let rows = text.lines().filter(|line| line.contains(".00"));
        let widths: Vec<_> = rows.filter(|l| !l.contains('%')).map(str::len).collect();
        assert_eq!(widths.len(), 3, "{text}");
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }
}
