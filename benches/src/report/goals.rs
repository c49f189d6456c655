//! The project's goals, each with what this run has to say to it.

use super::Report;
use super::groups::Grid;
use crate::compare::{Measure, Series};
use crate::stats::{self, Interval};

/// A goal, and the measure that tells whether it is met.
struct Goal {
    what: &'static str,
    question: &'static str,
    measure: &'static str,
    most: Most,
}

/// What is not to be exceeded.
enum Most {
    /// So many of the measure's unit.
    Of(f64),
    /// Such a share of what another takes.
    Share(&'static str, f64),
}

const FIRECRACKER: &str = "firecracker";

const GOALS: [Goal; 12] = [
    Goal {
        what: "process start to the guest's first byte: a third of Firecracker's",
        question: "cold-start",
        measure: "start to first byte",
        most: Most::Share(FIRECRACKER, 1.0 / 3.0),
    },
    Goal {
        what: "restore request to the guest's first byte, 128 MiB: a fifth",
        question: "restore",
        measure: "128 MiB: request to first byte",
        most: Most::Share(FIRECRACKER, 0.2),
    },
    Goal {
        what: "the same with 4 GiB",
        question: "restore",
        measure: "4 GiB: request to first byte",
        most: Most::Share(FIRECRACKER, 0.2),
    },
    Goal {
        what: "fork in one process, a child: 1 ms, one after another",
        question: "fork",
        measure: "in one process: median of 100",
        most: Most::Of(1.0),
    },
    Goal {
        what: "the same, 100 at once: 100 ms for all",
        question: "fork",
        measure: "in one process, 100 at once: all running",
        most: Most::Of(100.0),
    },
    Goal {
        what: "fork as a process of its own: 4 ms",
        question: "fork",
        measure: "one after another: median of 100",
        most: Most::Of(4.0),
    },
    Goal {
        what: "128 at once in one process, until all run: a third of Firecracker's",
        question: "burst",
        measure: "128 at once: all of them running, in one process",
        most: Most::Share(FIRECRACKER, 1.0 / 3.0),
    },
    Goal {
        what: "the same as processes of their own",
        question: "burst",
        measure: "128 at once: all of them running",
        most: Most::Share(FIRECRACKER, 1.0 / 3.0),
    },
    Goal {
        what: "pause for a full snapshot of 1 GiB: 30 ms",
        question: "snapshot",
        measure: "1 GiB touched: pause by own account",
        most: Most::Of(30.0),
    },
    Goal {
        what: "private dirty memory of the monitor: below Firecracker's",
        question: "memory",
        measure: "private dirty memory",
        most: Most::Share(FIRECRACKER, 1.0),
    },
    Goal {
        what: "exec round trip: 1.5 times the guest's own fork+exec",
        question: "exec",
        measure: "tine exec, tiny program",
        most: Most::Share("fork+exec in the guest", 1.5),
    },
    Goal {
        what: "first answer of the API's socket: below Firecracker's",
        question: "socket",
        measure: "start to first answer",
        most: Most::Share(FIRECRACKER, 1.0),
    },
];

/// Those that this run measured; nothing if there is none.
pub fn grid(report: &Report) -> Option<Grid> {
    let rows: Vec<_> = GOALS.iter().filter_map(|goal| row(report, goal)).collect();
    let head = ["goal", "here", "95% within", ""].map(str::to_owned);
    (!rows.is_empty()).then(|| Grid {
        head: head.to_vec(),
        rows,
    })
}

fn row(report: &Report, goal: &Goal) -> Option<Vec<String>> {
    let answer = report
        .answers
        .iter()
        .find(|answer| answer.question == goal.question)?;
    let measure = answer
        .measures
        .iter()
        .find(|measure| measure.name == goal.measure)?;
    let (found, most, write) = found(measure, &goal.most)?;
    let verdict = match found {
        Interval { high, .. } if high <= most => "met",
        Interval { low, .. } if low > most => "missed",
        _ => "cannot be told: the interval includes it",
    };
    Some(vec![
        goal.what.to_owned(),
        write(found.value),
        format!("{} to {}", write(found.low), write(found.high)),
        verdict.to_owned(),
    ])
}

type Write = Box<dyn Fn(f64) -> String>;

/// What was found, what it is not to exceed, and how both are written.
fn found(measure: &Measure, most: &Most) -> Option<(Interval, f64, Write)> {
    match *most {
        Most::Share(peer, most) => {
            let comparison = measure.comparisons.iter().find(|c| c.peer == peer)?;
            let write = |value| format!("{value:.3}");
            Some((comparison.ratio, most, Box::new(write)))
        }
        Most::Of(most) => {
            let Series { values, .. } = measure.series.first()?;
            let unit = measure.unit;
            let write = move |value| format!("{} {}", unit.number(value), unit.name());
            Some((stats::median_interval(values), most, Box::new(write)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Unit;
    use crate::contestant::Role;
    use crate::report::tests::sample;

    fn told(question: &'static str, measure: &'static str, ours: f64, spread: f64) -> Vec<String> {
        let mut report = sample();
        let values = |base: f64| -> Vec<f64> {
            (0..9)
                .map(|round| base * (1.0 + spread * f64::from(round - 4)))
                .collect()
        };
        let rows = vec![
            ("tine".to_owned(), Role::Subject, values(ours)),
            (FIRECRACKER.to_owned(), Role::Peer, vec![9.0; 9]),
        ];
        report.answers[0].question = question.into();
        report.answers[0].measures = vec![Measure::of_rows(measure, Unit::Millis, rows)];
        grid(&report).map_or_else(Vec::new, |grid| grid.rows[0].clone())
    }

    #[test]
    fn a_goal_is_met_when_the_whole_interval_says_so() {
        let cold =
            |ours, spread| told("cold-start", "start to first byte", ours, spread)[3].clone();
        assert_eq!(cold(2.0, 0.01), "met");
        assert_eq!(cold(4.0, 0.01), "missed");
        assert!(cold(3.0, 0.1).starts_with("cannot be told"));
        let row = told("fork", "one after another: median of 100", 2.5, 0.01);
        assert_eq!((row[1].as_str(), row[3].as_str()), ("2.50 ms", "met"));
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        assert!(grid(&sample()).is_none());
        assert!(told("fork", "something else", 1.0, 0.0).is_empty());
    }
}
