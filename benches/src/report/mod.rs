//! What a run found, and the forms it is given out in: a table on standard output, JSON, Markdown,
//! a page of HTML. What JSON was written can be read again.

mod goals;
mod groups;
mod html;
mod markdown;
mod saved;
mod table;
mod text;

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::cli::Args;
use crate::compare::Measure;
use crate::contestant::{Contestant, Role};
use crate::guard::Guard;
use crate::host::Facts;
use crate::profile::Profiles;
pub use saved::read;

/// Everything that a run found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where and when.
    pub host: Facts,
    /// Who took part, the control left out.
    pub monitors: Vec<MonitorFacts>,
    /// One per question asked.
    pub answers: Vec<Answer>,
    /// What came of the comparison with an earlier build or report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// Where the time goes, if that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profiles>,
}

/// What is told of a monitor.
#[derive(Debug, Serialize, Deserialize)]
pub struct MonitorFacts {
    /// Its name in the tables.
    pub name: String,
    /// What it says of itself.
    pub version: Option<String>,
    /// Its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// The answer to one question.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The question's name.
    pub question: Cow<'static, str>,
    /// What was measured, from which instant to which.
    pub about: Cow<'static, str>,
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
            program: Some(contestant.monitor.program.display().to_string()),
        };
        Self {
            host,
            monitors: monitors.map(facts).collect(),
            answers: Vec::new(),
            guard: None,
            profile: None,
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
    if let Some(path) = &args.html {
        write_file(path, &html::render(report))?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::compare::Unit;
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
            question: "how".into(),
            about: "Made up.".into(),
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
