//! How long does it take from a request to restore a snapshot until the guest runs?

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::api::{Answered, Api, Process, Program};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::guest::Guest;
use crate::questions::snapshot::{monitors, take};
use crate::questions::{Bench, Question, column};
use crate::report::Answer;
use crate::rounds;

/// The question.
pub const QUESTION: Question = Question {
    name: "restore",
    for_root: false,
    answer,
};

const ABOUT: &str = "A guest that writes one byte to COM1 over and over (1 vCPU) was snapshotted by \
    each monitor itself. Times run from just before the request to restore it, and to go on, is \
    written to the socket of a process that is up, to the first byte of the guest and to the answer; \
    and from just before a process is started to the guest's first byte, with the means of each \
    monitor: `tine restore`, and for Firecracker its API as soon as there is a socket. Firecracker runs \
    without its system call filters.";

/// Rounds when nobody says otherwise.
const RUNS: usize = 40;

/// Names of the measures at a size in MiB.
struct Size {
    memory: u64,
    byte: &'static str,
    answer: &'static str,
    whole: &'static str,
}

const SIZES: [Size; 2] = [
    Size {
        memory: 128,
        byte: "128 MiB: request to first byte",
        answer: "128 MiB: request to answer",
        whole: "128 MiB: start to first byte",
    },
    Size {
        memory: 4096,
        byte: "4 GiB: request to first byte",
        answer: "4 GiB: request to answer",
        whole: "4 GiB: start to first byte",
    },
];

struct Turn {
    program: Program,
    tine: PathBuf,
    /// One per size.
    snapshots: Vec<PathBuf>,
    dir: PathBuf,
}

struct Sample {
    byte: f64,
    answer: f64,
    whole: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let turns = contestants.iter().enumerate().map(|(number, contestant)| {
        prepare(contestant, &bench.dir().join(format!("restore-{number}")))
            .with_context(|| format!("cannot prepare {}", contestant.name))
    });
    let turns = turns.collect::<anyhow::Result<Vec<_>>>()?;
    // What was written must not go to disk while something is measured.
    rustix::fs::sync();
    let (warm_up, runs) = (bench.warm_up(), bench.runs(RUNS));
    let mut measures = Vec::new();
    for (index, size) in SIZES.iter().enumerate() {
        let once = |turn: &Turn| once(turn, index);
        let samples = rounds::run(size.byte, &turns, warm_up, runs, once)?;
        let mut measure = |name, field: fn(&Sample) -> f64| {
            let values = column(&samples, field);
            measures.push(Measure::new(name, Unit::Millis, &contestants, values));
        };
        measure(size.byte, |sample| sample.byte);
        measure(size.answer, |sample| sample.answer);
        measure(size.whole, |sample| sample.whole);
    }
    Ok(Answer {
        question: QUESTION.name,
        about: ABOUT,
        measures,
    })
}

/// Has the contestant take its snapshots.
fn prepare(contestant: &Contestant, dir: &Path) -> anyhow::Result<Turn> {
    let program = Program::of(contestant).context("it has no API")?;
    fs::create_dir(dir).context("cannot make a directory")?;
    let kernel = Guest::Speak.write(dir)?;
    let mut snapshots = Vec::new();
    for size in &SIZES {
        let snapshot = dir.join(format!("{}", size.memory));
        let (mut process, mut console) = program.start_with_console(dir)?;
        process.boot(&kernel, size.memory, &Value::Null)?;
        // Until its guest speaks; then the pipe is full, and its vCPU waits to write.
        process.ask_for_sign("GET", "/version", &Value::Null, Some(&mut console))?;
        let drain = std::thread::spawn(move || std::io::copy(&mut console, &mut std::io::sink()));
        take(&program, &mut process, &snapshot, "Diff")?;
        drop(process);
        drain
            .join()
            .ok()
            .context("a thread failed")?
            .context("cannot read a console")?;
        snapshots.push(snapshot);
    }
    Ok(Turn {
        program,
        tine: contestant.monitor.program.clone(),
        snapshots,
        dir: dir.to_owned(),
    })
}

fn once(turn: &Turn, size: usize) -> anyhow::Result<Sample> {
    let snapshot = &turn.snapshots[size];
    let (mut process, mut console) = turn.program.start_with_console(&turn.dir)?;
    // An answer: it is up.
    process.ask("GET", "/version", &Value::Null)?;
    process.console_to_stdout()?;
    let restored = load(turn, &mut process, snapshot, &mut console)?;
    let sign = restored.sign.context("the guest gave no sign")?;
    drop(process);
    let millis = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    Ok(Sample {
        byte: millis(sign - restored.asked),
        answer: millis(restored.answer - restored.asked),
        whole: whole(turn, snapshot)?,
    })
}

fn load(
    turn: &Turn,
    process: &mut Process,
    snapshot: &Path,
    console: &mut std::io::PipeReader,
) -> anyhow::Result<Answered> {
    let (path, body) = match turn.program.api() {
        Api::Tine => ("/v1/restore", json!({ "snapshot": snapshot })),
        Api::Firecracker => {
            let memory = json!({ "backend_type": "File", "backend_path": snapshot.join("memory") });
            let body = json!({
                "snapshot_path": snapshot.join("state"), "mem_backend": memory, "resume_vm": true,
            });
            ("/snapshot/load", body)
        }
    };
    process.ask_for_sign("PUT", path, &body, Some(console))
}

/// From nothing to the first byte.
fn whole(turn: &Turn, snapshot: &Path) -> anyhow::Result<f64> {
    let passed = match turn.program.api() {
        Api::Tine => {
            let launch = crate::process::Launch {
                name: "tine restore".to_owned(),
                program: turn.tine.clone(),
                arguments: ["restore".into(), "--console".into(), "stdout".into()]
                    .into_iter()
                    .chain([snapshot.into()])
                    .collect(),
                stderr: turn.dir.join("stderr"),
            };
            let mut running = launch.start()?;
            let sign = running.wait_for_sign()?;
            sign - running.started
        }
        Api::Firecracker => {
            let (mut process, mut console) = turn.program.start_with_console(&turn.dir)?;
            let restored = load(turn, &mut process, snapshot, &mut console)?;
            restored.sign.context("the guest gave no sign")? - process.started
        }
    };
    Ok(passed.as_secs_f64() * 1e3)
}
