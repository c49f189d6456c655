//! How long does it take to make many machines of one, and what does each cost?

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use tine::machine::Machine;
use tine::snapshot::Loaded;

use crate::api::{Api, Process, Program};
use crate::compare::{Measure, Unit};
use crate::contestant::{Contestant, Role};
use crate::guest::Guest;
use crate::questions::snapshot::{monitors, take};
use crate::questions::{Bench, MEMORY, Question, column};
use crate::report::Answer;
use crate::smaps;

/// The question.
pub const QUESTION: Question = Question {
    name: "fork",
    for_root: false,
    answer,
};

const ABOUT: &str = "A guest that has halted (1 vCPU, 128 MiB) is made 100 times over, and all of them \
    stay: Tine forks the machine while it runs, Firecracker restores a snapshot that it took of its \
    own. Times of a copy run from just before its process is started to the answer to the request that \
    makes it and lets it go on; the parent's part is in the first line alone. `at once`: from the first \
    start until all 100 have been answered. `in one process`: from the call of the library to the vCPU \
    being told to run, one after another, and all by one call. Memory is all that a copy has of its own, \
    its guest's included. Neither has system call filters.";

/// Copies.
const COUNT: usize = 100;
/// Rounds when nobody says otherwise.
const RUNS: usize = 5;

struct Turn {
    program: Program,
    dir: PathBuf,
    /// Firecracker's copies come out of it.
    snapshot: PathBuf,
    kernel: PathBuf,
}

struct Sample {
    fork: f64,
    median: f64,
    p95: f64,
    p99: f64,
    burst: f64,
    burst_p95: f64,
    dirty: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let turns = contestants.iter().enumerate().map(|(number, contestant)| {
        prepare(
            contestant,
            &bench.dir().join(format!("fork-{number}")),
            Guest::Hang,
        )
        .with_context(|| format!("cannot prepare {}", contestant.name))
    });
    let turns = turns.collect::<anyhow::Result<Vec<_>>>()?;
    let samples = bench.rounds(QUESTION.name, &turns, RUNS, once)?;
    let mut measures = Vec::new();
    let mut measure = |name, unit, field: fn(&Sample) -> f64| {
        measures.push(Measure::new(
            name,
            unit,
            &contestants,
            column(&samples, field),
        ));
    };
    measure("the fork itself, or nothing", Unit::Millis, |s| s.fork);
    measure("one after another: median of 100", Unit::Millis, |s| {
        s.median
    });
    measure("one after another: p95", Unit::Millis, |s| s.p95);
    measure("one after another: p99", Unit::Millis, |s| s.p99);
    measure("100 at once: all answered", Unit::Millis, |s| s.burst);
    measure("100 at once: p95 of a copy", Unit::Millis, |s| s.burst_p95);
    measure("private dirty memory of an idle copy", Unit::Kib, |s| {
        s.dirty
    });
    // The library is this program's own: an earlier build's processes have nothing to do with it.
    let of_tine = |(contestant, turn): &(&Contestant, &Turn)| {
        turn.program.api() == Api::Tine && contestant.role != Role::Before
    };
    let ours = contestants.iter().zip(&turns).filter(of_tine);
    let (ours, tine): (Vec<&Contestant>, Vec<&Turn>) = ours.unzip();
    let ours: Vec<Contestant> = ours.into_iter().cloned().collect();
    let inside = bench.rounds("fork in one process", &tine, RUNS, |turn| inside(turn))?;
    let mut measure = |name, field: fn(&Inside) -> f64| {
        let values = column(&inside, field);
        measures.push(Measure::new(name, Unit::Millis, &ours, values));
    };
    measure("in one process: median of 100", |s| s.median);
    measure("in one process: p95", |s| s.p95);
    measure("in one process, 100 at once: all running", |s| s.at_once);
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

fn prepare(contestant: &Contestant, dir: &Path, guest: Guest) -> anyhow::Result<Turn> {
    let program = Program::of(contestant).context("it has no API")?;
    fs::create_dir(dir).context("cannot make a directory")?;
    let kernel = guest.write(dir)?;
    let snapshot = dir.join("snapshot");
    if program.api() == Api::Firecracker {
        let mut parent = parent(&program, dir, &kernel)?;
        take(&program, &mut parent, &snapshot, "Full")?;
    }
    Ok(Turn {
        program,
        dir: dir.to_owned(),
        snapshot,
        kernel,
    })
}

/// A machine whose guest has halted.
fn parent(program: &Program, dir: &Path, kernel: &Path) -> anyhow::Result<Process> {
    let (mut process, mut console) = program.start_with_console(dir)?;
    process.boot(kernel, MEMORY, &Value::Null)?;
    process.ask_for_sign("GET", "/version", &Value::Null, Some(&mut console))?;
    Ok(process)
}

/// Where copies come from, and how long it took to have it.
pub struct Source {
    request: (&'static str, Value),
    took: Duration,
    _parent: Option<Process>,
}

impl Source {
    /// The request that makes one.
    pub fn request(&self) -> (&'static str, &Value) {
        (self.request.0, &self.request.1)
    }
}

/// A source of copies of a guest that beats, and the program that takes one.
pub fn one(contestant: &Contestant, dir: &Path) -> anyhow::Result<(Source, Program)> {
    let dir = dir.join("one");
    let turn = prepare(contestant, &dir, Guest::Beat)?;
    Ok((source(&turn, "fork.sock")?, turn.program))
}

fn source(turn: &Turn, socket: &str) -> anyhow::Result<Source> {
    // The parent removes the socket of the round before when it comes to it.
    let _ = std::fs::remove_file(turn.dir.join(socket));
    if turn.program.api() == Api::Firecracker {
        let memory = turn.snapshot.join("memory");
        let body = json!({
            "snapshot_path": turn.snapshot.join("state"),
            "mem_backend": { "backend_type": "File", "backend_path": memory },
            "resume_vm": true,
        });
        return Ok(Source {
            request: ("/snapshot/load", body),
            took: Duration::ZERO,
            _parent: None,
        });
    }
    let mut parent = parent(&turn.program, &turn.dir, &turn.kernel)?;
    let socket = turn.dir.join(socket);
    let body = json!({ "count": COUNT, "socket": socket });
    let forked = parent.ask("POST", "/v1/fork", &body)?;
    Ok(Source {
        request: ("/v1/restore", json!({ "fork": socket })),
        took: forked.answer - forked.asked,
        _parent: Some(parent),
    })
}

/// One copy, and how long it took.
fn copy(turn: &Turn, dir: &Path, source: &Source) -> anyhow::Result<(Process, f64)> {
    let mut process = turn.program.start(dir, std::process::Stdio::null())?;
    let (path, body) = &source.request;
    let made = process.ask("PUT", path, body)?;
    let took = (made.answer - process.started).as_secs_f64() * 1e3;
    Ok((process, took))
}

fn once(turn: &Turn) -> anyhow::Result<Sample> {
    let (mut times, fork, dirty) = {
        let source = source(turn, "one.sock")?;
        let copies = (0..COUNT).map(|_| copy(turn, &turn.dir, &source));
        let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
        let dirty = copies.iter().map(|(process, _)| dirty(process.id()));
        let dirty = dirty.sum::<anyhow::Result<u64>>()?;
        let times: Vec<f64> = copies.iter().map(|(_, took)| *took).collect();
        (times, source.took, dirty as f64 / COUNT as f64)
    };
    let (burst, mut burst_times) = burst(turn)?;
    Ok(Sample {
        fork: fork.as_secs_f64() * 1e3,
        median: rank(&mut times, 50),
        p95: rank(&mut times, 95),
        p99: rank(&mut times, 99),
        burst,
        burst_p95: rank(&mut burst_times, 95),
        dirty,
    })
}

/// All at the same time.
fn burst(turn: &Turn) -> anyhow::Result<(f64, Vec<f64>)> {
    let source = source(turn, "burst.sock")?;
    let dirs = (0..COUNT).map(|n| turn.dir.join(format!("copy-{n}")));
    let dirs: Vec<PathBuf> = dirs.collect();
    for dir in &dirs {
        fs::create_dir_all(dir).context("cannot make a directory")?;
    }
    let start = Instant::now();
    let copies = thread::scope(|scope| {
        let threads = dirs
            .iter()
            .map(|dir| scope.spawn(|| copy(turn, dir, &source)));
        let threads: Vec<_> = threads.collect();
        let join = threads.into_iter().map(|thread| match thread.join() {
            Ok(copy) => copy,
            Err(_) => anyhow::bail!("a thread failed"),
        });
        join.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let all = start.elapsed().as_secs_f64() * 1e3;
    Ok((all, copies.iter().map(|(_, took)| *took).collect()))
}

/// Copies inside this process, in milliseconds: one after another, and the whole of as many at once.
struct Inside {
    median: f64,
    p95: f64,
    at_once: f64,
}

fn inside(turn: &Turn) -> anyhow::Result<Inside> {
    let source = source(turn, "inside.sock")?;
    let socket = turn.dir.join("inside.sock");
    let loaded = Loaded::receive(&socket)?;
    let config = loaded.description.config();
    let (mut machines, mut times) = (Vec::new(), Vec::new());
    for _ in 0..COUNT {
        let start = Instant::now();
        let memory = loaded.memory.clone();
        let machine = Machine::restore(&config, memory, &loaded.sections, |_| {})?;
        machine.resume();
        times.push(start.elapsed().as_secs_f64() * 1e3);
        machines.push(machine);
    }
    drop(machines);
    let configs = vec![config; COUNT];
    let start = Instant::now();
    let (memory, sections) = (&loaded.memory, &loaded.sections);
    let made = Machine::restore_each(
        &configs,
        memory,
        sections,
        |_, _| {},
        |_, machine| machine.inspect(Machine::resume),
    );
    let at_once = start.elapsed().as_secs_f64() * 1e3;
    made.into_iter().collect::<Result<Vec<_>, _>>()?;
    drop(source);
    Ok(Inside {
        median: rank(&mut times, 50),
        p95: rank(&mut times, 95),
        at_once,
    })
}

/// KiB that are the process's own.
fn dirty(pid: u32) -> anyhow::Result<u64> {
    let mappings = smaps::of_process(pid as i32)?;
    Ok(mappings.iter().map(|mapping| mapping.private_dirty).sum())
}

fn rank(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
