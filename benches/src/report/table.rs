//! The report as aligned plain text.

use std::fmt::Write;

use super::groups::{Grid, Group, groups, phases};
use super::text::remarks;
use super::{Answer, Report, goals};

/// Width of a column of numbers.
const NUMBER: usize = 9;
/// Where prose is broken.
const LINE: usize = 100;

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = format!("{}\n", wrap(&report.host.to_string()));
    for monitor in &report.monitors {
        let version = monitor.version.as_deref().unwrap_or("version unknown");
        let _ = writeln!(text, "{}: {}", plain(&monitor.name), plain(version));
    }
    for answer in &report.answers {
        render_answer(&mut text, answer);
    }
    if let Some(found) = &report.profile {
        let _ = writeln!(text, "\nBy {}.", plain(&found.tool));
        for profile in &found.profiles {
            let title = plain(&format!("{}, {}", profile.of, profile.contestant));
            let _ = write!(text, "\n{title}");
            render_grid(&mut text, &phases(profile));
        }
    }
    if let Some(grid) = goals::grid(report) {
        render_grid(&mut text, &grid);
    }
    if let Some(guard) = &report.guard {
        text.push('\n');
        for line in guard.lines() {
            let _ = writeln!(text, "{}", plain(&line));
        }
    }
    text
}

fn render_answer(text: &mut String, answer: &Answer) {
    let (question, about) = (plain(&answer.question), wrap(&plain(&answer.about)));
    let _ = write!(text, "\n{question}\n{about}\n");
    for group in groups(&answer.measures) {
        let grid = group.grid();
        if let Group::One(measure) = group {
            render_grid(text, &grid);
            for remark in remarks(measure) {
                let _ = writeln!(text, "  {}", plain(&remark));
            }
        } else {
            let _ = write!(text, "\n{}", plain(&group.title()));
            render_grid(text, &grid);
        }
    }
}

fn render_grid(text: &mut String, grid: &Grid) {
    let cells = std::iter::once(&grid.head).chain(&grid.rows);
    let mut widths = vec![NUMBER - 2; grid.head.len()];
    for row in cells.clone() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for (number, row) in cells.enumerate() {
        let indent = if number == 0 { "\n" } else { "  " };
        text.push_str(indent);
        let first = widths[0] + usize::from(number == 0) * 2;
        let _ = write!(text, "{:first$}", plain(&row[0]));
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {:>width$}", plain(cell));
        }
        text.push('\n');
    }
}

/// Without what a terminal would act on.
fn plain(text: &str) -> String {
    let printable = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    text.chars().map(printable).collect()
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
