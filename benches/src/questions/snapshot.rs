//! How long does a guest stand still for a snapshot, and how long until that is on disk?

use std::fs::{self, File};
use std::io::{PipeReader, Read};
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::api::{Api, Process, Program};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::guest::{Guest, TOUCHED_FROM};
use crate::questions::{Bench, Question, column};
use crate::report::Answer;
use crate::rounds;

/// The question.
pub const QUESTION: Question = Question {
    name: "snapshot",
    for_root: false,
    answer,
};

const ABOUT: &str = "A guest writes to each page of so much memory from ring 3, and then a byte to COM1 \
    some 3,000 times a second. A full snapshot is taken meanwhile. The pause by the monitor's own \
    account is Tine's `pause_us`, and for Firecracker the time from the request to pause to the answer \
    to the request to resume. The pause as seen from outside is the longest time between two reads of \
    the guest's bytes around the snapshot; the same without a snapshot, for as long before it, is the \
    price of the measurement. Durable: from the first request to the answer of Tine, to fsync of \
    Firecracker's files. The second snapshot is taken 0.2 s later of the same machine.";

/// Rounds when nobody says otherwise: each of them writes memory to disk.
const RUNS: usize = 8;
/// How long the guest's bytes are looked at before a snapshot, and after it.
const AROUND: Duration = Duration::from_millis(200);

/// Names of the measures with so much memory touched, in MiB.
struct Size {
    touched: u64,
    own: &'static str,
    seen: &'static str,
    noise: &'static str,
    durable: &'static str,
    disk: &'static str,
    second: &'static str,
    second_durable: &'static str,
}

const SIZES: [Size; 2] = [
    Size {
        touched: 112,
        own: "112 MiB touched: pause by own account",
        seen: "112 MiB touched: pause seen from outside",
        noise: "112 MiB touched: longest gap without a snapshot",
        durable: "112 MiB touched: time to durable",
        disk: "112 MiB touched: size on disk",
        second: "112 MiB touched: second pause seen from outside",
        second_durable: "112 MiB touched: second time to durable",
    },
    Size {
        touched: 1024,
        own: "1 GiB touched: pause by own account",
        seen: "1 GiB touched: pause seen from outside",
        noise: "1 GiB touched: longest gap without a snapshot",
        durable: "1 GiB touched: time to durable",
        disk: "1 GiB touched: size on disk",
        second: "1 GiB touched: second pause seen from outside",
        second_durable: "1 GiB touched: second time to durable",
    },
];

/// Those of the contestants that snapshots can be asked of; who cannot take part is named.
pub fn monitors(bench: &Bench, question: &str) -> Vec<Contestant> {
    let can = |contestant: &&Contestant| {
        let can = Program::of(contestant).is_some();
        if !can {
            let name = &contestant.name;
            eprintln!("tine-bench: {name} has no part in {question}: its API is not known here");
        }
        can
    };
    bench.contestants.iter().filter(can).cloned().collect()
}

/// A snapshot that has been taken.
pub struct Taken {
    /// The guest's pause, as the monitor has it.
    pub pause: Duration,
    /// From the first request until it was durable.
    pub durable: Duration,
}

/// Takes a snapshot into the directory `target`, which is not there yet; the guest goes on.
pub fn take(
    program: &Program,
    process: &mut Process,
    target: &Path,
    kind: &str,
) -> anyhow::Result<Taken> {
    if program.api() == Api::Tine {
        let taken = process.ask("PUT", "/v1/snapshots", &json!({ "path": target }))?;
        let pause = taken.body["pause_us"]
            .as_u64()
            .context("an answer without pause_us")?;
        return Ok(Taken {
            pause: Duration::from_micros(pause),
            durable: taken.answer - taken.asked,
        });
    }
    fs::create_dir(target).context("cannot make a directory")?;
    let files = ["state", "memory"].map(|name| target.join(name));
    let paused = process.ask("PATCH", "/vm", &json!({ "state": "Paused" }))?;
    let body = json!({
        "snapshot_path": files[0], "mem_file_path": files[1], "snapshot_type": kind,
    });
    process.ask("PUT", "/snapshot/create", &body)?;
    let resumed = process.ask("PATCH", "/vm", &json!({ "state": "Resumed" }))?;
    for file in files {
        File::open(file)?
            .sync_all()
            .context("cannot write a snapshot to disk")?;
    }
    Ok(Taken {
        pause: resumed.answer - paused.asked,
        durable: paused.asked.elapsed(),
    })
}

struct Sample {
    own: f64,
    seen: f64,
    noise: f64,
    durable: f64,
    disk: f64,
    second: f64,
    second_durable: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let (warm_up, runs) = (bench.warm_up().min(1), bench.runs(RUNS));
    let mut measures = Vec::new();
    for size in &SIZES {
        let guest = Guest::Touch {
            pages: size.touched * 256,
        };
        let dir = bench.dir().join(format!("snapshot-{}", size.touched));
        fs::create_dir(&dir).context("cannot make a directory")?;
        let kernel = guest.write(&dir)?;
        let memory = TOUCHED_FROM + size.touched;
        let once = |contestant: &Contestant| {
            once(contestant, &dir, &kernel, memory).with_context(|| contestant.name.clone())
        };
        let samples = rounds::run(size.own, &contestants, warm_up, runs, once)?;
        let mut measure = |name, unit, field: fn(&Sample) -> f64| {
            let values = column(&samples, field);
            measures.push(Measure::new(name, unit, &contestants, values));
        };
        measure(size.own, Unit::Millis, |sample| sample.own);
        measure(size.seen, Unit::Millis, |sample| sample.seen);
        measure(size.noise, Unit::Millis, |sample| sample.noise);
        measure(size.durable, Unit::Millis, |sample| sample.durable);
        measure(size.disk, Unit::Kib, |sample| sample.disk);
        measure(size.second, Unit::Millis, |sample| sample.second);
        measure(size.second_durable, Unit::Millis, |sample| {
            sample.second_durable
        });
    }
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

fn once(contestant: &Contestant, dir: &Path, kernel: &Path, memory: u64) -> anyhow::Result<Sample> {
    let program = Program::of(contestant).context("it has no API")?;
    let targets = ["first", "second"].map(|name| dir.join(name));
    let (mut process, console) = program.start_with_console(dir)?;
    process.boot(kernel, memory, &Value::Null)?;
    let watch = Watch::over(console);
    watch.begun()?;
    let begin = Instant::now();
    thread::sleep(AROUND);
    let asked = Instant::now();
    let first = take(&program, &mut process, &targets[0], "Full")?;
    thread::sleep(AROUND);
    let again = Instant::now();
    let second = take(&program, &mut process, &targets[1], "Full")?;
    thread::sleep(AROUND);
    let end = Instant::now();
    drop(process);
    let reads = watch.finish()?;
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    let sample = Sample {
        own: millis(first.pause),
        seen: longest(&reads, asked, again)?,
        noise: longest(&reads, begin, asked)?,
        durable: millis(first.durable),
        disk: on_disk(&targets[0])? as f64 / 1024.0,
        second: longest(&reads, again, end)?,
        second_durable: millis(second.durable),
    };
    for target in targets {
        fs::remove_dir_all(target).context("cannot remove a snapshot")?;
    }
    Ok(sample)
}

/// Notes when a guest's bytes come.
struct Watch {
    thread: JoinHandle<std::io::Result<Vec<Instant>>>,
    begun: mpsc::Receiver<()>,
}

impl Watch {
    fn over(mut console: PipeReader) -> Self {
        let (tell, begun) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut reads = Vec::with_capacity(1 << 16);
            let mut bytes = [0; 4096];
            while console.read(&mut bytes)? > 0 {
                reads.push(Instant::now());
                if reads.len() == 1 {
                    let _ = tell.send(());
                }
            }
            Ok(reads)
        });
        Self { thread, begun }
    }

    /// Waits for the first byte.
    fn begun(&self) -> anyhow::Result<()> {
        self.begun
            .recv_timeout(Duration::from_secs(120))
            .context("the guest has written nothing")
    }

    /// When bytes came, once the monitor is gone.
    fn finish(self) -> anyhow::Result<Vec<Instant>> {
        let reads = self.thread.join().ok().context("a thread failed")?;
        reads.context("cannot read a console")
    }
}

/// The longest time between two reads of which one lies between `from` and `to`, in milliseconds.
fn longest(reads: &[Instant], from: Instant, to: Instant) -> anyhow::Result<f64> {
    let within = |time: &Instant| (from..=to).contains(time);
    let pairs = reads.windows(2).filter(|pair| pair.iter().any(within));
    match pairs.map(|pair| pair[1] - pair[0]).max() {
        Some(gap) => Ok(gap.as_secs_f64() * 1e3),
        None => bail!("the guest has stopped writing"),
    }
}

/// What the files of a directory take of their disk, in bytes.
fn on_disk(dir: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(dir).context("cannot read a snapshot's directory")? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}
