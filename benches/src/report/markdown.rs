//! The report as Markdown, for README and NOTES.

use std::fmt::Write;

use super::groups::{Grid, Group, groups, phases};
use super::text::remarks;
use super::{Answer, Report, goals};

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = format!("{}.\n\n", plain(&report.host.to_string()));
    for monitor in &report.monitors {
        let version = monitor.version.as_deref().unwrap_or("version unknown");
        let _ = writeln!(text, "- {}: {}", plain(&monitor.name), plain(version));
    }
    if let Some(guard) = &report.guard {
        let _ = writeln!(text);
        for line in guard.lines() {
            let _ = writeln!(text, "- {}", plain(&line));
        }
    }
    if let Some(grid) = goals::grid(report) {
        render_grid(&mut text, &grid);
    }
    for answer in &report.answers {
        render_answer(&mut text, answer);
    }
    if let Some(found) = &report.profile {
        let _ = writeln!(text, "\nBy {}.", plain(&found.tool));
        for profile in &found.profiles {
            let title = plain(&format!("{}, {}", profile.of, profile.contestant));
            let _ = write!(text, "\n### {title}\n");
            render_grid(&mut text, &phases(profile));
        }
    }
    text
}

fn render_answer(text: &mut String, answer: &Answer) {
    let (question, about) = (plain(&answer.question), plain(&answer.about));
    let _ = write!(text, "\n### {question}\n\n{about}\n");
    for group in groups(&answer.measures) {
        if let Group::One(measure) = group {
            render_grid(text, &group.grid());
            text.push('\n');
            for remark in remarks(measure) {
                let _ = writeln!(text, "- {}", plain(&remark));
            }
        } else {
            let _ = write!(text, "\n{}:\n", plain(&group.title()));
            render_grid(text, &group.grid());
        }
    }
}

fn render_grid(text: &mut String, grid: &Grid) {
    let row = |text: &mut String, cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| plain(cell)).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    text.push('\n');
    row(text, &grid.head);
    let _ = writeln!(text, "|---|{}", "---:|".repeat(grid.head.len() - 1));
    for cells in &grid.rows {
        row(text, cells);
    }
}

/// Text that a reader of Markdown shows as it is: no cell ends, no tag or link begins.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '<' | '[' | '!' => plain.extend(['\\', character]),
            character if character.is_control() => plain.push(' '),
            character => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_markup() {
        assert_eq!(plain("a|b<img>[x](y)\nz"), "a\\|b\\<img>\\[x](y) z");
    }
}
