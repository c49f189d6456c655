//! How quick is the network?

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::geteuid;
use serde_json::{Value, json};

use super::driven::{self, wait_for_sign};
use super::frames::{Frames, TYPE, network_of_its_own};
use crate::api::{Program, instance_start};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, MEMORY, Question, column};
use crate::report::Answer;
use crate::stats::Summary;

/// The question.
pub const QUESTION: Question = Question {
    name: "net",
    for_root: true,
    answer,
};

const ABOUT: &str = "A bare-metal guest (1 vCPU, 128 MiB) drives its virtio-net device and polls in ring 3, \
    without interrupts and without offloads; the monitor has a TAP device in a network of its own, for \
    which the benchmark has to be root. Out of the guest: frames of 1514 bytes as fast as the device takes \
    them, which the host's kernel drops behind the TAP device. There and back: the benchmark sends frames \
    into the TAP device, the guest sends each back; 60 bytes, a thousand times one after the other, and \
    1514 bytes with 32 on their way. Processor time is that of all threads of the monitor but the vCPU's, \
    which is always busy. With two processors, the benchmark's own thread shares one of them. What the \
    host could flood a guest with is not measured: a TAP device drops what is too much.";

/// Rounds when nobody says otherwise.
const RUNS: usize = 12;
/// The device's name, where nobody else sees it.
const TAP: &str = "bench0";
/// Frames for each sign, and signs that are looked at.
const COUNT: u32 = 10_000;
const SIGNS: usize = 4;
/// Of a full frame, and of the smallest, without checksums.
const FULL: usize = 1514;
const SMALL: usize = 60;
/// How often a small one goes there and back.
const PINGS: usize = 1000;
/// How many full ones, so many at a time.
const FLIGHTS: usize = 20_000;
const ON_THE_WAY: usize = 32;
/// How long a frame may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one machine did.
#[derive(Default)]
struct Sample {
    frames_per_second: f64,
    millis_per_gib: f64,
    median: f64,
    p99: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Out,
    Ping,
    Flights,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    ensure!(geteuid().is_root(), "only root can make a TAP device");
    let contestants = monitors(bench, QUESTION.name);
    // What it starts is in its network, and the device goes with it.
    let measures = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            network_of_its_own(TAP)?;
            measures(bench, &contestants)
        });
        thread.join().ok().context("a thread failed")?
    });
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures: measures?,
    })
}

fn measures(bench: &Bench, contestants: &[Contestant]) -> anyhow::Result<Vec<Measure>> {
    let mut measures = Vec::new();
    for (way, name) in [
        (Way::Out, "1514 bytes out of the guest"),
        (Way::Ping, "60 bytes there and back"),
        (Way::Flights, "1514 bytes there and back, 32 on their way"),
    ] {
        let arguments = [u32::from(way != Way::Out), FULL as u32, COUNT];
        let kernel = driven::write(driven::NET, &arguments, bench.dir(), "net")?;
        let samples = bench.rounds(name, contestants, RUNS, |contestant| {
            once(contestant, bench.dir(), &kernel, way).with_context(|| contestant.name.clone())
        })?;
        let mut measure = |what: &str, unit, field: fn(&Sample) -> f64| {
            let values = column(&samples, field);
            measures.push(Measure::new(
                format!("{name}{what}"),
                unit,
                contestants,
                values,
            ));
        };
        if way == Way::Ping {
            measure(": median of 1,000", Unit::Micros, |s| s.median);
            measure(": p99", Unit::Micros, |s| s.p99);
        } else {
            measure(", frames", Unit::PerSecond, |s| s.frames_per_second);
            measure(": processor time", Unit::MillisPerGib, |s| s.millis_per_gib);
        }
    }
    Ok(measures)
}

fn once(contestant: &Contestant, dir: &Path, kernel: &Path, way: Way) -> anyhow::Result<Sample> {
    let program = Program::of(contestant).context("it has no API")?;
    let frames = match way {
        // Nobody takes frames that only have to be gone.
        Way::Out => None,
        _ => Some(Frames::open(TAP, PATIENCE)?),
    };
    let (mut process, mut console) = program.start_with_console(dir)?;
    process.configure(kernel, MEMORY, &Value::Null)?;
    let body = json!({ "iface_id": "eth0", "host_dev_name": TAP });
    process.ask("PUT", "/network-interfaces/eth0", &body)?;
    process.ask("PUT", "/actions", &instance_start())?;
    let Some(frames) = frames else {
        let seen = driven::watch(&process, &mut console, SIGNS)?;
        return Ok(throughput(SIGNS * COUNT as usize, seen.took, seen.spent));
    };
    wait_for_sign(&process, &mut console)?;
    if way == Way::Ping {
        let times = (0..PINGS).map(|number| ping(&frames, number));
        let times = times.collect::<anyhow::Result<Vec<f64>>>()?;
        let Summary { median, p99, .. } = Summary::of(&times);
        return Ok(Sample {
            median,
            p99,
            ..Sample::default()
        });
    }
    let (begin, before) = (Instant::now(), driven::spent(&process)?);
    flights(&frames)?;
    let (took, spent) = (
        begin.elapsed(),
        driven::spent(&process)?.saturating_sub(before),
    );
    // There and back: each byte is moved twice, and counted once.
    Ok(throughput(FLIGHTS, took, spent))
}

fn throughput(frames: usize, took: Duration, spent: Duration) -> Sample {
    let gib = (frames * FULL) as f64 / f64::from(1 << 30);
    Sample {
        frames_per_second: frames as f64 / took.as_secs_f64(),
        millis_per_gib: spent.as_secs_f64() * 1e3 / gib,
        ..Sample::default()
    }
}

/// A frame with a number in it.
fn frame(size: usize, number: usize) -> Vec<u8> {
    let mut frame = vec![0; size];
    frame[..6].fill(0xff);
    frame[6] = 0x02;
    frame[12..14].copy_from_slice(&TYPE);
    frame[14..18].copy_from_slice(&(number as u32).to_le_bytes());
    frame
}

/// Microseconds there and back.
fn ping(frames: &Frames, number: usize) -> anyhow::Result<f64> {
    let sent = frame(SMALL, number);
    let mut back = [0; FULL + 1];
    let begin = Instant::now();
    frames.send(&sent)?;
    let len = frames.receive(&mut back)?;
    let took = begin.elapsed();
    ensure!(back[..len] == sent, "the guest sent another frame back");
    Ok(took.as_secs_f64() * 1e6)
}

/// So many at a time; they come back in their order.
fn flights(frames: &Frames) -> anyhow::Result<()> {
    let mut back = [0; FULL + 1];
    let mut next = frame(FULL, 0);
    for number in 0..FLIGHTS + ON_THE_WAY {
        if number < FLIGHTS {
            next[14..18].copy_from_slice(&(number as u32).to_le_bytes());
            frames.send(&next)?;
        }
        if let Some(awaited) = number.checked_sub(ON_THE_WAY) {
            let len = frames.receive(&mut back)?;
            let awaited = (awaited as u32).to_le_bytes();
            ensure!(
                len == FULL && back[14..18] == awaited,
                "a frame was lost on its way"
            );
        }
    }
    Ok(())
}
