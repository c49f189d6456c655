//! The report as aligned plain text.

use std::fmt::Write;

use super::{Answer, COLUMNS, Report, cells, remarks};
use crate::compare::Measure;

/// Width of a column of numbers.
const NUMBER: usize = 9;
/// Where prose is broken.
const LINE: usize = 100;

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = format!("{}\n", wrap(&report.host.to_string()));
    for monitor in &report.monitors {
        let version = monitor.version.as_deref().unwrap_or("version unknown");
        let _ = writeln!(text, "{}: {version}", monitor.name);
    }
    for answer in &report.answers {
        render_answer(&mut text, answer);
    }
    text
}

fn render_answer(text: &mut String, answer: &Answer) {
    let _ = write!(text, "\n{}\n{}\n", answer.question, wrap(answer.about));
    for measure in &answer.measures {
        render_measure(text, measure);
    }
}

fn render_measure(text: &mut String, measure: &Measure) {
    let title = format!("{}, {}", measure.name, measure.unit.name());
    let names = measure.series.iter().map(|s| s.contestant.len() + 2);
    let first = names.chain([title.len()]).max().unwrap_or_default();
    let row = |text: &mut String, name: &str, cells: [&str; 6]| {
        let _ = write!(text, "{name:first$}");
        for cell in cells {
            let _ = write!(text, "{cell:>NUMBER$}");
        }
        text.push('\n');
    };
    text.push('\n');
    row(text, &title, COLUMNS);
    for series in &measure.series {
        let name = format!("  {}", series.contestant);
        let cells = cells(&series.summary, measure.unit);
        row(text, &name, cells.each_ref().map(String::as_str));
    }
    for remark in remarks(measure) {
        let _ = writeln!(text, "  {remark}");
    }
}

/// Breaks prose into lines.
fn wrap(prose: &str) -> String {
    let mut text = String::with_capacity(prose.len());
    let mut width = 0;
    for word in prose.split_whitespace() {
        let len = word.chars().count();
        if width > 0 {
            let fits = width + 1 + len <= LINE;
            text.push(if fits { ' ' } else { '\n' });
            width = if fits { width + 1 } else { 0 };
        }
        text.push_str(word);
        width += len;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_broken_between_words() {
        let prose = "word ".repeat(50);
        let text = wrap(&prose);
        assert!(text.lines().all(|line| line.len() <= LINE));
        assert_eq!(text.split_whitespace().count(), 50);
        assert_eq!(wrap(""), "");
    }
}
