//! How quick is a drive?

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use super::driven;
use crate::api::{Program, instance_start};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, MEMORY, Question, column};
use crate::report::Answer;
use crate::stats::Random;

/// The question.
pub const QUESTION: Question = Question {
    name: "block",
    for_root: false,
    answer,
};

const ABOUT: &str = "A bare-metal guest (1 vCPU, 128 MiB) keeps requests to a virtio-blk drive in flight and \
    polls for them in ring 3, without interrupts, so that neither its kernel nor an idle vCPU is part of \
    it. The drive is a raw file of 256 MiB in the host's page cache, with each monitor's own defaults. \
    The rate is what the guest has done in some tenths of a second after a warm-up; with one in flight, \
    the time of a request is its reciprocal. Processor time is that of all threads of the monitor but \
    the vCPU's, which is always busy. Writes go to the page cache: no flush is asked for.";

/// The drive's size in bytes.
const DRIVE: u64 = 256 << 20;
/// Rounds when nobody says otherwise.
const RUNS: usize = 12;
/// Signs that are looked at.
const SIGNS: usize = 4;

/// What a guest does.
struct Load {
    name: &'static str,
    /// Bytes of a request.
    size: u32,
    depth: u32,
    write: bool,
    random: bool,
    /// Requests for each sign.
    count: u32,
    /// Whether the time of a request is told, not the rate.
    latency: bool,
}

const LOADS: [Load; 4] = [
    Load {
        name: "read 4 KiB at random, 1 in flight",
        size: 4 << 10,
        depth: 1,
        write: false,
        random: true,
        count: 2000,
        latency: true,
    },
    Load {
        name: "read 4 KiB at random, 32 in flight",
        size: 4 << 10,
        depth: 32,
        write: false,
        random: true,
        count: 16_000,
        latency: false,
    },
    Load {
        name: "read 128 KiB in a row, 8 in flight",
        size: 128 << 10,
        depth: 8,
        write: false,
        random: false,
        count: 2000,
        latency: false,
    },
    Load {
        name: "write 128 KiB in a row, 8 in flight",
        size: 128 << 10,
        depth: 8,
        write: true,
        random: false,
        count: 1000,
        latency: false,
    },
];

/// Of one machine.
struct Sample {
    requests_per_second: f64,
    mib_per_second: f64,
    millis_per_gib: f64,
    micros: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let drive = bench.dir().join("drive.raw");
    make_drive(&drive).with_context(|| format!("cannot make a drive, {}", drive.display()))?;
    let mut measures = Vec::new();
    for load in &LOADS {
        let places = (DRIVE / u64::from(load.size)) as u32;
        let (write, random) = (u32::from(load.write), u32::from(load.random));
        let arguments = [load.size, load.count, load.depth, write, places, random];
        let kernel = driven::write(driven::BLOCK, &arguments, bench.dir(), "block")?;
        let samples = bench.rounds(load.name, &contestants, RUNS, |contestant| {
            once(contestant, bench.dir(), &kernel, &drive, load)
                .with_context(|| contestant.name.clone())
        })?;
        let mut measure = |what: &str, unit, field: fn(&Sample) -> f64| {
            let (name, values) = (format!("{}{what}", load.name), column(&samples, field));
            measures.push(Measure::new(name, unit, &contestants, values));
        };
        match load.latency {
            true => measure("", Unit::Micros, |s| s.micros),
            false if load.random => measure("", Unit::PerSecond, |s| s.requests_per_second),
            false => measure("", Unit::MibPerSecond, |s| s.mib_per_second),
        }
        measure(": processor time", Unit::MillisPerGib, |s| s.millis_per_gib);
    }
    fs::remove_file(&drive).context("cannot remove a drive")?;
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

/// Data that no file system would leave out, on disk: nothing is written back later on.
fn make_drive(path: &Path) -> std::io::Result<()> {
    let mut random = Random::new(1);
    let mut part = vec![0; 1 << 20];
    part.fill_with(|| random.below(256) as u8);
    let mut file = File::create(path)?;
    for _ in 0..DRIVE / part.len() as u64 {
        file.write_all(&part)?;
    }
    file.sync_all()
}

fn once(
    contestant: &Contestant,
    dir: &Path,
    kernel: &Path,
    drive: &Path,
    load: &Load,
) -> anyhow::Result<Sample> {
    let program = Program::of(contestant).context("it has no API")?;
    let (mut process, mut console) = program.start_with_console(dir)?;
    process.configure(kernel, MEMORY, &Value::Null)?;
    let body = json!({
        "drive_id": "bench", "path_on_host": drive, "is_root_device": false, "is_read_only": false,
    });
    process.ask("PUT", "/drives/bench", &body)?;
    process.ask("PUT", "/actions", &instance_start())?;
    let seen = driven::watch(&process, &mut console, SIGNS)?;
    let requests = f64::from(load.count) * SIGNS as f64;
    let mib = requests * f64::from(load.size) / f64::from(1 << 20);
    let seconds = seen.took.as_secs_f64();
    Ok(Sample {
        requests_per_second: requests / seconds,
        mib_per_second: mib / seconds,
        millis_per_gib: seen.spent.as_secs_f64() * 1e3 * 1024.0 / mib,
        micros: seconds * 1e6 / requests,
    })
}
