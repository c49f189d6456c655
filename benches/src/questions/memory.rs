//! What does the monitor itself cost beside its guest's memory?

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;

use crate::compare::{Measure, Unit};
use crate::guest::Guest;
use crate::process::Launch;
use crate::questions::{Bench, MEMORY, Question, column};
use crate::report::Answer;
use crate::smaps;

/// The question.
pub const QUESTION: Question = Question {
    name: "memory",
    for_root: false,
    answer,
};

const ABOUT: &str = "While a guest is halted after its first byte (1 vCPU, 128 MiB): private dirty \
    memory of the monitor's process in all its mappings but the guest's memory, its threads and \
    its open descriptors.";

/// Rounds when nobody says otherwise: memory hardly varies.
const RUNS: usize = 10;

/// How long a monitor has to come to rest after its guest's byte.
const REST: Duration = Duration::from_millis(200);

struct Sample {
    dirty: u64,
    threads: usize,
    descriptors: usize,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let launches = bench.launches(|_| Guest::Hang)?;
    let samples = bench.rounds(QUESTION.name, &launches, RUNS, once)?;
    let measure = |name, unit, field: fn(&Sample) -> f64| {
        Measure::new(name, unit, &bench.contestants, column(&samples, field))
    };
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures: vec![
            measure("private dirty memory", Unit::Kib, |s| s.dirty as f64),
            measure("threads", Unit::Count, |s| s.threads as f64),
            measure("descriptors", Unit::Count, |s| s.descriptors as f64),
        ],
    })
}

fn once(launch: &Launch) -> anyhow::Result<Sample> {
    let mut running = launch.start()?;
    running.wait_for_sign()?;
    sleep(REST);
    let pid = running.id();
    let mappings = smaps::of_process(pid)?;
    Ok(Sample {
        dirty: smaps::monitor_private_dirty(&mappings, MEMORY)
            .with_context(|| launch.name.clone())?,
        threads: entries(&format!("/proc/{pid}/task"))?,
        descriptors: entries(&format!("/proc/{pid}/fd"))?,
    })
}

fn entries(path: &str) -> anyhow::Result<usize> {
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {path}"))?;
    Ok(entries.count())
}
