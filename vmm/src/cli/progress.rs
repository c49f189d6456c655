//! How far long work is, for people.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// One line on standard error that tells how far something is. Shown only where somebody may be
/// looking: on a terminal.
pub struct ProgressLine {
    done: &'static str,
    on: bool,
    shown: Option<Instant>,
}

/// Between two lines.
const REDRAW: Duration = Duration::from_millis(100);

impl ProgressLine {
    /// `done` is the word for what has been done, such as `written`.
    pub fn new(done: &'static str) -> Self {
        Self {
            done,
            on: std::io::stderr().is_terminal(),
            shown: None,
        }
    }

    /// Shows the figures, now and then.
    pub fn show(&mut self, bytes: u64, total: u64) {
        let recent = self.shown.is_some_and(|at| at.elapsed() < REDRAW);
        if !self.on || recent {
            return;
        }
        self.shown = Some(Instant::now());
        eprint!(
            "\r{} of {} MiB {}\x1b[K",
            bytes >> 20,
            total >> 20,
            self.done
        );
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
