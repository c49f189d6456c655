//! How long does it take from nothing to the guest's first byte, and to the end of it all?

use crate::compare::{Measure, Unit};
use crate::guest::Guest;
use crate::process::Launch;
use crate::questions::{Bench, Question, column};
use crate::report::Answer;

/// The question.
pub const QUESTION: Question = Question {
    name: "cold-start",
    for_root: false,
    answer,
};

const ABOUT: &str = "A process is started for a guest that writes one byte to COM1 and resets the \
    machine: 1 vCPU, 128 MiB. Times run from just before the process is started, to the byte on \
    the monitor's standard output and to the end of its process.";

/// Rounds when nobody says otherwise: a p95 is the second largest value then.
const RUNS: usize = 40;

struct Sample {
    byte: f64,
    end: f64,
    cpu: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let launches = bench.launches(|monitor| Guest::Hello(monitor.reset()))?;
    let samples = bench.rounds(QUESTION.name, &launches, RUNS, once)?;
    let measure = |name, field: fn(&Sample) -> f64| {
        Measure::new(
            name,
            Unit::Millis,
            &bench.contestants,
            column(&samples, field),
        )
    };
    Ok(Answer {
        question: QUESTION.name,
        about: ABOUT,
        measures: vec![
            measure("start to first byte", |sample| sample.byte),
            measure("start to end of process", |sample| sample.end),
            measure("CPU time", |sample| sample.cpu),
        ],
    })
}

fn once(launch: &Launch) -> anyhow::Result<Sample> {
    let mut running = launch.start()?;
    let started = running.started;
    let byte = running.wait_for_sign()?;
    let ended = running.wait_for_end()?;
    let millis = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    Ok(Sample {
        byte: millis(byte - started),
        end: millis(ended.at - started),
        cpu: millis(ended.cpu),
    })
}
