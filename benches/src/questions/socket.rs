//! How long until a new process answers its first request, and how long do many requests take?

use std::time::Duration;

use serde_json::Value;

use crate::api::{Api, Program};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::questions::{Bench, Question, column, snapshot};
use crate::report::Answer;

/// The question.
pub const QUESTION: Question = Question {
    name: "socket",
    for_root: false,
    answer,
};

const ABOUT: &str = "A process is started with a socket for its API, of which inotify tells. \
    On the first connection one request is made, `GET /` of each, and then a thousand more one after the \
    other: `GET /v1/machine` of Tine, `GET /` of Firecracker, no machine configured. The first answer's \
    time runs from just before the process is started.";

/// Rounds when nobody says otherwise: a p95 is the second largest value then.
const RUNS: usize = 40;
/// Requests after the first.
const REQUESTS: usize = 1000;

struct Sample {
    first: f64,
    many: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = snapshot::monitors(bench, QUESTION.name);
    let samples = bench.rounds(QUESTION.name, &contestants, RUNS, |contestant| {
        once(bench, contestant)
    })?;
    let measure = |name, field: fn(&Sample) -> f64| {
        Measure::new(name, Unit::Millis, &contestants, column(&samples, field))
    };
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures: vec![
            measure("start to first answer", |sample| sample.first),
            measure("1,000 requests", |sample| sample.many),
        ],
    })
}

fn once(bench: &Bench, contestant: &Contestant) -> anyhow::Result<Sample> {
    let program = Program::of(contestant).expect("one with an API");
    let path = match program.api() {
        Api::Tine => "/v1/machine",
        Api::Firecracker => "/",
    };
    let null = std::fs::File::open("/dev/null")?;
    let mut process = program.start(bench.dir(), null)?;
    let first = process.ask("GET", "/", &Value::Null)?;
    let mut last = first.answer;
    for _ in 0..REQUESTS {
        last = process.ask("GET", path, &Value::Null)?.answer;
    }
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(Sample {
        first: millis(first.answer - process.started),
        many: millis(last - first.answer),
    })
}
