//! How long does it take from nothing to the guest's first byte, and to the end of it all?

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use crate::api::{Program, instance_start};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::guest::Guest;
use crate::process::Launch;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, MEMORY, Question, column};
use crate::report::Answer;

/// The question.
pub const QUESTION: Question = Question {
    name: "cold-start",
    for_root: false,
    answer,
};

const ABOUT: &str = "A process is started for a guest that writes one byte to COM1 and resets the \
    machine: 1 vCPU, 128 MiB. Times run from just before the process is started, to the byte on \
    the monitor's standard output and to the end of its process. The parts are those of the same start \
    through the socket of an API, seen by its client, which is told of the socket by inotify and \
    makes one request after the other; neither has system call filters there.";

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
    let mut measures = vec![
        measure("start to first byte", |sample| sample.byte),
        measure("start to end of process", |sample| sample.end),
        measure("CPU time", |sample| sample.cpu),
    ];
    measures.extend(parts(bench)?);
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

/// What happens one after the other when the start goes through an API.
const PARTS: [&str; 4] = [
    "process started: its socket takes a connection",
    "first answer",
    "machine configured",
    "start requested: the guest's first byte",
];

fn parts(bench: &Bench) -> anyhow::Result<Vec<Measure>> {
    let contestants = monitors(bench, QUESTION.name);
    let kernel = Guest::Hang.write(bench.dir())?;
    let samples = bench.rounds("cold-start by API", &contestants, RUNS, |contestant| {
        through_api(contestant, bench.dir(), &kernel).with_context(|| contestant.name.clone())
    })?;
    let part = |(number, name): (usize, &&'static str)| {
        let values = column(&samples, |sample: &[f64; 4]| sample[number]);
        Measure::new(*name, Unit::Millis, &contestants, values).part_of("through the API")
    };
    Ok(PARTS.iter().enumerate().map(part).collect())
}

fn through_api(contestant: &Contestant, dir: &Path, kernel: &Path) -> anyhow::Result<[f64; 4]> {
    let program = Program::of(contestant).context("it has no API")?;
    let (mut process, mut console) = program.start_with_console(dir)?;
    let first = process.ask("GET", "/version", &Value::Null)?;
    process.configure(kernel, MEMORY, &Value::Null)?;
    let configured = Instant::now();
    let start = instance_start();
    let started = process.ask_for_sign("PUT", "/actions", &start, Some(&mut console))?;
    let byte = started.sign.context("the guest gave no sign")?;
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok([
        millis(process.connected - process.started),
        millis(first.answer - process.connected),
        millis(configured - first.answer),
        millis(byte - configured),
    ])
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
