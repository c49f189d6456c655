//! How long does it take from a request to restore a snapshot until the guest runs?

use std::io::PipeReader;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::api::{Answered, Api, Process, Program};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::guest::{Guest, TOUCHED_FROM};
use crate::questions::snapshot::{monitors, take};
use crate::questions::{Bench, Question, column};
use crate::report::Answer;

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
    monitor: `tine restore`, and for Firecracker its API as soon as there is a socket. Neither has \
    system call filters. The parts are those of a process that is started for a restore: \
    until its socket takes a connection, until a first answer, and from the request to the guest's \
    first byte. `100 MiB written`: a guest that writes to each page of so much memory over and over \
    was snapshotted, and the time runs from the request until it has surely been through once, which \
    is its second byte after it.";

/// Rounds when nobody says otherwise.
const RUNS: usize = 40;

/// A size in MiB, and what it is called.
const SIZES: [(u64, &str); 2] = [(128, "128 MiB"), (4096, "4 GiB")];
/// How much a guest writes to after a restore: pages of 4 KiB.
const WRITTEN: u64 = 100 * 256;

/// A contestant and its snapshot.
pub struct Turn {
    program: Program,
    tine: PathBuf,
    snapshot: PathBuf,
    dir: PathBuf,
}

impl Turn {
    /// Where all that it has is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What processes are started of.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Where its snapshot is.
    pub fn snapshot(&self) -> &Path {
        &self.snapshot
    }

    /// The request that restores the snapshot and lets the guest go on.
    pub fn request(&self) -> (&'static str, Value) {
        let snapshot = &self.snapshot;
        match self.program.api() {
            Api::Tine => ("/v1/restore", json!({ "snapshot": snapshot })),
            Api::Firecracker => {
                let memory =
                    json!({ "backend_type": "File", "backend_path": snapshot.join("memory") });
                let body = json!({
                    "snapshot_path": snapshot.join("state"), "mem_backend": memory, "resume_vm": true,
                });
                ("/snapshot/load", body)
            }
        }
    }
}

/// One restore; milliseconds.
pub struct Sample {
    /// Start of the process to a connection.
    connect: f64,
    /// From there to the first answer.
    first: f64,
    /// Request to the guest's first byte.
    pub byte: f64,
    /// Request to the answer.
    answer: f64,
    /// Start of a process that does nothing else to the first byte.
    whole: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let mut measures = Vec::new();
    for (memory, size) in SIZES {
        let turns = turns(bench, &contestants, Guest::Speak, memory)?;
        let samples = bench.rounds(&format!("restore {size}"), &turns, RUNS, once)?;
        let mut measure = |name: &str, field: fn(&Sample) -> f64| {
            let (name, values) = (format!("{size}: {name}"), column(&samples, field));
            measures.push(Measure::new(name, Unit::Millis, &contestants, values));
        };
        measure("request to first byte", |sample| sample.byte);
        measure("request to answer", |sample| sample.answer);
        measure("start to first byte", |sample| sample.whole);
        if memory == SIZES[0].0 {
            measures.extend(parts(&contestants, &samples));
        }
    }
    measures.push(written(bench, &contestants)?);
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

fn parts(contestants: &[Contestant], samples: &[Vec<Sample>]) -> [Measure; 3] {
    let part = |name, field: fn(&Sample) -> f64| {
        let values = column(samples, field);
        let part = Measure::new(name, Unit::Millis, contestants, values);
        part.part_of("128 MiB: a process of its own")
    };
    [
        part("process started: its socket takes a connection", |s| {
            s.connect
        }),
        part("first answer", |s| s.first),
        part("restore requested: the guest's first byte", |s| s.byte),
    ]
}

/// Until the guest has been through its memory.
fn written(bench: &Bench, contestants: &[Contestant]) -> anyhow::Result<Measure> {
    let guest = Guest::Passes { pages: WRITTEN };
    let turns = turns(bench, contestants, guest, TOUCHED_FROM + WRITTEN / 256)?;
    let times = bench.rounds("restore and write", &turns, RUNS / 2, |turn| {
        let (mut process, mut console) = ready(turn)?;
        let restored = load(turn, &mut process, &mut console)?;
        let again = process.ask_for_sign("GET", "/version", &Value::Null, Some(&mut console))?;
        let again = again.sign.context("the guest gave no second sign")?;
        Ok((again - restored.asked).as_secs_f64() * 1e3)
    })?;
    let name = "116 MiB: request to 100 MiB written";
    Ok(Measure::new(name, Unit::Millis, contestants, times))
}

/// Has each contestant take a snapshot of its own of `guest`.
pub fn turns(
    bench: &Bench,
    contestants: &[Contestant],
    guest: Guest,
    memory: u64,
) -> anyhow::Result<Vec<Turn>> {
    let turns = contestants.iter().map(|contestant| {
        let dir = tempfile::Builder::new()
            .prefix("restore")
            .tempdir_in(bench.dir());
        let dir = dir.context("cannot make a directory")?.keep();
        prepare(contestant, &dir, guest, memory)
            .with_context(|| format!("cannot prepare {}", contestant.name))
    });
    let turns = turns.collect::<anyhow::Result<Vec<_>>>()?;
    // What was written must not go to disk while something is measured.
    rustix::fs::sync();
    Ok(turns)
}

fn prepare(contestant: &Contestant, dir: &Path, guest: Guest, memory: u64) -> anyhow::Result<Turn> {
    let program = Program::of(contestant).context("it has no API")?;
    let kernel = guest.write(dir)?;
    let snapshot = dir.join("snapshot");
    let (mut process, mut console) = program.start_with_console(dir)?;
    process.boot(&kernel, memory, &Value::Null)?;
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
    Ok(Turn {
        program,
        tine: contestant.monitor.program.clone(),
        snapshot,
        dir: dir.to_owned(),
    })
}

/// A process that is up.
fn ready(turn: &Turn) -> anyhow::Result<(Process, PipeReader)> {
    let (mut process, console) = turn.program.start_with_console(&turn.dir)?;
    process.ask("GET", "/version", &Value::Null)?;
    process.console_to_stdout()?;
    Ok((process, console))
}

/// A request to a process that is up, and then one that is started for it.
pub fn once(turn: &Turn) -> anyhow::Result<Sample> {
    let (mut process, mut console) = turn.program.start_with_console(&turn.dir)?;
    // An answer: it is up.
    let up = process.ask("GET", "/version", &Value::Null)?;
    process.console_to_stdout()?;
    let restored = load(turn, &mut process, &mut console)?;
    let sign = restored.sign.context("the guest gave no sign")?;
    let millis = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    let (connect, first) = (
        millis(process.connected - process.started),
        millis(up.answer - process.connected),
    );
    drop(process);
    Ok(Sample {
        connect,
        first,
        byte: millis(sign - restored.asked),
        answer: millis(restored.answer - restored.asked),
        whole: whole(turn)?,
    })
}

fn load(turn: &Turn, process: &mut Process, console: &mut PipeReader) -> anyhow::Result<Answered> {
    let (path, body) = turn.request();
    process.ask_for_sign("PUT", path, &body, Some(console))
}

/// From nothing to the first byte.
fn whole(turn: &Turn) -> anyhow::Result<f64> {
    let passed = match turn.program.api() {
        Api::Tine => {
            let launch = crate::process::Launch {
                name: "tine restore".to_owned(),
                program: turn.tine.clone(),
                arguments: ["restore".into(), "--console".into(), "stdout".into()]
                    .into_iter()
                    .chain([turn.snapshot.clone().into()])
                    .collect(),
                stderr: turn.dir.join("stderr"),
            };
            let mut running = launch.start()?;
            let sign = running.wait_for_sign()?;
            sign - running.started
        }
        Api::Firecracker => {
            let (mut process, mut console) = turn.program.start_with_console(&turn.dir)?;
            let restored = load(turn, &mut process, &mut console)?;
            restored.sign.context("the guest gave no sign")? - process.started
        }
    };
    Ok(passed.as_secs_f64() * 1e3)
}
