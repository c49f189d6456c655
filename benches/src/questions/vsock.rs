//! How quick is the socket between host and guest?

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::driven;
use crate::api::{Program, instance_start};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, MEMORY, Question, column};
use crate::report::Answer;
use crate::stats::Summary;

/// The question.
pub const QUESTION: Question = Question {
    name: "vsock",
    for_root: false,
    answer,
};

const ABOUT: &str = "A bare-metal guest (1 vCPU, 128 MiB) drives its virtio-vsock device and polls in ring \
    3, without interrupts; it connects to a port of the host, where the benchmark listens on the Unix \
    socket that stands for it. Out of the guest it sends as much as the host has room for, 16 KiB at a \
    time; into it, the host writes 64 KiB at a time, into buffers of 4 KiB as a Linux guest has them; \
    there and back are 64 bytes, a thousand times one after the other. Rates are those after a warm-up, \
    of 128 MiB. With two processors, three threads share them: vCPU, device and benchmark. Processor \
    time is that of all threads of the monitor but the vCPU's, which is always \
    busy, and not the benchmark's own.";

/// Rounds when nobody says otherwise.
const RUNS: usize = 12;
/// The port on the host.
const PORT: u32 = 5000;
/// Bytes the guest sends at a time at most.
const SENT: u32 = 16 << 10;
/// Bytes that the guest answers with one, when it takes them; the unit of what is measured.
const PART: usize = 16 << 20;
/// Parts, behind one of warm-up.
const PARTS: usize = 8;
/// Bytes there and back, and how often.
const PING: usize = 64;
const PINGS: usize = 1000;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Out,
    In,
    Both,
}

/// What one machine did; micros of [`Way::Both`], the rest of the others.
#[derive(Default)]
struct Sample {
    mib_per_second: f64,
    millis_per_gib: f64,
    median: f64,
    p99: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let mut measures = Vec::new();
    for (number, (way, name)) in [
        (Way::Out, "out of the guest"),
        (Way::In, "into the guest"),
        (Way::Both, "64 bytes there and back"),
    ]
    .into_iter()
    .enumerate()
    {
        let arguments = [number as u32, PORT, SENT, PART as u32];
        let kernel = driven::write(driven::VSOCK, &arguments, bench.dir(), "vsock")?;
        let samples = bench.rounds(name, &contestants, RUNS, |contestant| {
            once(contestant, bench.dir(), &kernel, way).with_context(|| contestant.name.clone())
        })?;
        let mut measure = |what: &str, unit, field: fn(&Sample) -> f64| {
            let values = column(&samples, field);
            measures.push(Measure::new(
                format!("{name}{what}"),
                unit,
                &contestants,
                values,
            ));
        };
        if way == Way::Both {
            measure(": median of 1,000", Unit::Micros, |s| s.median);
            measure(": p99", Unit::Micros, |s| s.p99);
        } else {
            measure("", Unit::MibPerSecond, |s| s.mib_per_second);
            measure(": processor time", Unit::MillisPerGib, |s| s.millis_per_gib);
        }
    }
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

fn once(contestant: &Contestant, dir: &Path, kernel: &Path, way: Way) -> anyhow::Result<Sample> {
    let program = Program::of(contestant).context("it has no API")?;
    let socket = dir.join("v.sock");
    let announced = dir.join(format!("v.sock_{PORT}"));
    for left in [&socket, &announced] {
        // Not there the first time.
        let _ = fs::remove_file(left);
    }
    let listener = UnixListener::bind(&announced).context("cannot listen")?;
    let mut process = program.start(dir, Stdio::null())?;
    process.configure(kernel, MEMORY, &Value::Null)?;
    let body = json!({ "guest_cid": 3, "uds_path": socket });
    process.ask("PUT", "/vsock", &body)?;
    process.ask("PUT", "/actions", &instance_start())?;
    let mut stream = process.accept(&listener)?;
    if way == Way::Both {
        return ping(&mut stream);
    }
    let mut buffer = vec![0; 64 << 10];
    part(&mut stream, &mut buffer, way)?;
    let (begin, before) = (Instant::now(), driven::spent(&process)?);
    for _ in 0..PARTS {
        part(&mut stream, &mut buffer, way)?;
    }
    let (took, spent) = (
        begin.elapsed(),
        driven::spent(&process)?.saturating_sub(before),
    );
    let mib = ((PARTS * PART) >> 20) as f64;
    Ok(Sample {
        mib_per_second: mib / took.as_secs_f64(),
        millis_per_gib: spent.as_secs_f64() * 1e3 * 1024.0 / mib,
        ..Sample::default()
    })
}

/// A part of what is sent, in one direction.
fn part(stream: &mut UnixStream, buffer: &mut [u8], way: Way) -> anyhow::Result<()> {
    let mut left = PART;
    while left > 0 {
        let most = left.min(buffer.len());
        if way == Way::In {
            stream
                .write_all(&buffer[..most])
                .context("the guest takes nothing")?;
            left -= most;
        } else {
            let len = stream
                .read(&mut buffer[..most])
                .context("the guest sends nothing")?;
            ensure!(len > 0, "the guest hung up");
            left -= len;
        }
    }
    if way == Way::In {
        stream
            .read_exact(&mut buffer[..1])
            .context("the guest does not answer")?;
    }
    Ok(())
}

fn ping(stream: &mut UnixStream) -> anyhow::Result<Sample> {
    let mut times = Vec::with_capacity(PINGS);
    let mut bytes = [0; PING];
    for number in 0..PINGS {
        let sent = [number as u8; PING];
        let begin = Instant::now();
        stream.write_all(&sent).context("the guest takes nothing")?;
        stream
            .read_exact(&mut bytes)
            .context("the guest does not answer")?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
        ensure!(bytes == sent, "the guest sent something else back");
    }
    let Summary { median, p99, .. } = Summary::of(&times);
    Ok(Sample {
        median,
        p99,
        ..Sample::default()
    })
}
