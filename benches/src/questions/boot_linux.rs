//! How long does a Linux guest take from nothing to the result of its first command, and who takes it?

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::restore_linux::{Booted, boot, exec};
use crate::api::Program;
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, Question, column};
use crate::report::Answer;
use crate::rounds;

/// The question.
pub const QUESTION: Question = Question {
    name: "boot-linux",
    for_root: false,
    answer,
};

const ABOUT: &str = "The same Linux guest (1 vCPU, 128 MiB, Tine's kernel and agent, a vsock and an entropy \
    device) is booted by each monitor through its API: from just before the monitor's process is started, \
    to its first answer, to all settings made, to the agent being there (Tine says so; the agent calls \
    Firecracker's vsock), to the result of a first command (/bin/true). The kernel's part is what its own \
    clock says when it starts the first process, the agent; that clock starts a little later than the \
    guest. On software KVM no guest uses XSAVE, which its interpreter lacks. Neither has system call filters.";

/// Rounds when nobody says otherwise: each takes a minute where kernels are interpreted.
const RUNS: usize = 6;

/// What follows one another, in milliseconds.
const PARTS: [&str; 5] = [
    "process started: first answer",
    "machine configured",
    "start requested: the kernel starts the agent",
    "the agent is there",
    "first result",
];

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let (warm_up, runs) = (bench.warm_up().min(1), bench.runs(RUNS));
    let once = |contestant: &Contestant| {
        once(contestant, bench.dir()).with_context(|| contestant.name.clone())
    };
    let samples = rounds::run(QUESTION.name, &contestants, warm_up, runs, once)?;
    let whole = column(&samples, |parts: &[f64; 5]| parts.iter().sum());
    let mut measures = vec![Measure::new(
        "start to first result",
        Unit::Millis,
        &contestants,
        whole,
    )];
    for (number, name) in PARTS.into_iter().enumerate() {
        let values = column(&samples, |parts: &[f64; 5]| parts[number]);
        let measure = Measure::new(name, Unit::Millis, &contestants, values);
        measures.push(measure.part_of("from nothing to the first result"));
    }
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

fn once(contestant: &Contestant, dir: &Path) -> anyhow::Result<[f64; 5]> {
    let program = Program::of(contestant).context("it has no API")?;
    let Booted {
        mut process,
        first,
        configured,
        agent,
    } = boot(&program, dir)?;
    let request = json!({ "request_id": "first", "argv": ["/bin/true"] });
    let record = exec(&program, &mut process, dir, &request)?;
    let result = Instant::now();
    ensure!(record["exit_code"] == 0, "/bin/true: {record}");
    let request = json!({ "request_id": "clock", "argv": ["/bin/dmesg"] });
    let kernel = kernel_time(&exec(&program, &mut process, dir, &request)?)?;
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    let kernel = kernel.min(agent - configured);
    Ok([
        millis(first - process.started),
        millis(configured - first),
        millis(kernel),
        millis(agent - configured - kernel),
        millis(result - agent),
    ])
}

/// What the kernel's clock said when it started the first process.
fn kernel_time(record: &Value) -> anyhow::Result<Duration> {
    let text = record["stdout"].as_str().unwrap_or_default();
    let line = text
        .lines()
        .find(|line| line.contains("] Run /init as init process"));
    let seconds = line.and_then(|line| {
        line.split_once(']')?
            .0
            .split_once('[')?
            .1
            .trim()
            .parse()
            .ok()
    });
    let seconds = seconds.filter(|seconds: &f64| (0.0..1e6).contains(seconds));
    let seconds = seconds.context("the kernel's log does not say when it started the agent")?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_clock_is_read_from_its_log() {
        let log = |text: &str| kernel_time(&json!({ "stdout": text }));
        let text = "[    0.000000] Linux version 6\n[   12.345678] Run /init as init process\n";
        assert_eq!(log(text).unwrap(), Duration::from_secs_f64(12.345_678));
        for text in [
            "",
            "[ x] Run /init as init process",
            "[1e300] Run /init as init process",
        ] {
            assert!(log(text).is_err(), "{text:?}");
        }
    }
}
