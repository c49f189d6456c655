//! How does the cost of a start and of a restore grow with the machine's memory?

use std::fs;

use anyhow::Context;

use crate::compare::{Measure, Unit};
use crate::guest::Guest;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, Question, column, restore};
use crate::report::Answer;

/// The question.
pub const QUESTION: Question = Question {
    name: "by-memory",
    for_root: false,
    answer,
};

const ABOUT: &str = "What `cold-start` and `restore` measure, with machines of 128 MiB to 8 GiB: from just \
    before a process is started to the first byte of a guest that does nothing else; and from just \
    before the request to restore a snapshot of a guest that writes all the time, and that touched no \
    more than a few pages, to its first byte. Restores are of monitors whose API is known.";

/// In MiB.
const SIZES: [u64; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
/// Rounds when nobody says otherwise.
const RUNS: usize = 20;
/// What sizes are of.
const AXIS: &str = "guest memory, MiB";

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let mut measures = Vec::new();
    for size in SIZES {
        let launches = bench.launches_with(size, |monitor| Guest::Hello(monitor.reset()))?;
        let name = format!("cold start with {size} MiB");
        let times = bench.rounds(&name, &launches, RUNS, |launch| {
            let mut running = launch.start()?;
            let byte = running.wait_for_sign()?;
            let took = byte - running.started;
            running.wait_for_end()?;
            Ok(took.as_secs_f64() * 1e3)
        })?;
        let measure = Measure::new(name, Unit::Millis, &bench.contestants, times);
        measures.push(measure.at("cold start: to the first byte", AXIS, size as f64));
    }
    let contestants = monitors(bench, QUESTION.name);
    for size in SIZES {
        let turns = restore::turns(bench, &contestants, Guest::Speak, size)?;
        let name = format!("restore of {size} MiB");
        let samples = bench.rounds(&name, &turns, RUNS, restore::once)?;
        let values = column(&samples, |sample| sample.byte);
        let measure = Measure::new(name, Unit::Millis, &contestants, values);
        measures.push(measure.at("restore: request to the first byte", AXIS, size as f64));
        for turn in turns {
            fs::remove_dir_all(turn.dir()).context("cannot remove a snapshot")?;
        }
    }
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}
