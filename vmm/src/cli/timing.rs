//! `--timing`: how long each phase took, one line a phase, on standard error.

use std::time::{Duration, Instant};

/// A stopwatch over the phases of a run.
pub struct Timing {
    on: bool,
    last: Instant,
    start: Instant,
}

impl Timing {
    /// A stopwatch started now, which prints only when `on`.
    pub fn start(on: bool) -> Self {
        let now = Instant::now();
        Self {
            on,
            last: now,
            start: now,
        }
    }

    /// Ends a phase.
    pub fn phase(&mut self, name: &str) {
        let now = Instant::now();
        if self.on {
            let took = millis(now - self.last);
            let total = millis(now - self.start);
            eprintln!("timing: {name:<22} {took:>10} ms  (at {total:>10} ms)");
        }
        self.last = now;
    }
}

fn millis(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64() * 1e3)
}
