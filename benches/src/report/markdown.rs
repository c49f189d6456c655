//! The report as Markdown, for README and NOTES.

use std::fmt::Write;

use super::{Answer, COLUMNS, Report, cells, remarks};
use crate::compare::Measure;

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = format!("{}.\n\n", report.host);
    for monitor in &report.monitors {
        let version = monitor.version.as_deref().unwrap_or("version unknown");
        let _ = writeln!(text, "- {}: {version}", monitor.name);
    }
    for answer in &report.answers {
        render_answer(&mut text, answer);
    }
    text
}

fn render_answer(text: &mut String, answer: &Answer) {
    let _ = write!(text, "\n### {}\n\n{}\n", answer.question, answer.about);
    for measure in &answer.measures {
        render_measure(text, measure);
    }
}

fn render_measure(text: &mut String, measure: &Measure) {
    let _ = write!(text, "\n| {}, {} |", measure.name, measure.unit.name());
    for column in COLUMNS {
        let _ = write!(text, " {column} |");
    }
    let _ = write!(text, "\n|---|{}\n", "---:|".repeat(COLUMNS.len()));
    for series in &measure.series {
        // A bar would end the cell.
        let name = series.contestant.replace('|', "\\|");
        let cells = cells(&series.summary, measure.unit);
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text.push('\n');
    for remark in remarks(measure) {
        let _ = writeln!(text, "- {remark}");
    }
}
