//! What does moving a file into a guest and out of it cost, beside a byte pump over the same vsock
//! device? And what memory does the agent need for it?

use std::io::{Read, Write};
use std::time::Instant;

use anyhow::{Context, ensure};

use super::linux::http::Connection;
use super::linux::machine::Machine;
use crate::compare::{Measure, Unit};
use crate::contestant::Role;
use crate::questions::{Bench, Question};
use crate::report::Answer;
use crate::rounds;

/// The question.
pub const QUESTION: Question = Question {
    name: "files",
    for_root: false,
    answer,
};

const ABOUT: &str = "A Linux guest that runs (1 vCPU, 192 MiB). 1 MiB into the guest and out of it by \
    `/v1/files/content` of the machine's socket, the file in the guest's memory; against a small program \
    in the guest that takes or sends as many bytes over the same vsock device, and one that also \
    writes them to such a file, or reads them from it. Before that 64 MiB once each way, and \
    the agent's peak of resident memory after them.";

/// Rounds when nobody says otherwise. One takes ten seconds where guests are interpreted.
const RUNS: usize = 6;
/// Rounds before them at most: the large file has warmed everything up.
const WARM_UP: usize = 1;
/// Bytes moved in turn.
const LENGTH: usize = 1 << 20;
/// Bytes moved once: at the interpreter's pace, minutes.
const LARGE: usize = 64 << 20;
const CONTENT: &str = "/v1/files/content?path=/bench/content";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Upload,
    PumpIn,
    PumpIntoFile,
    Download,
    PumpOut,
    PumpOutOfFile,
}

const TURNS: [Turn; 6] = [
    Turn::Upload,
    Turn::PumpIn,
    Turn::PumpIntoFile,
    Turn::Download,
    Turn::PumpOut,
    Turn::PumpOutOfFile,
];

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let machine = Machine::start(bench.dir(), bench.tine())?;
    let mut api = machine.api()?;
    let content: Vec<u8> = (0..LARGE)
        .map(|at| (at ^ at >> 8 ^ at >> 16) as u8)
        .collect();
    let large = [
        ("into the guest", timed(|| upload(&mut api, &content))?),
        ("out of the guest", timed(|| download(&mut api, &content))?),
    ];
    let peak = peak_memory(&mut api)?;
    let content = &content[..LENGTH];
    // What is read is there, whichever turn comes first.
    upload(&mut api, content)?;
    pump_in(&machine, b'I', content)?;
    let (warm_up, runs) = (bench.warm_up().min(WARM_UP), bench.runs(RUNS));
    let values = rounds::run(QUESTION.name, &TURNS, warm_up, runs, |turn| {
        timed(|| match turn {
            Turn::Upload => upload(&mut api, content),
            Turn::Download => download(&mut api, content),
            Turn::PumpIn => pump_in(&machine, b'i', content),
            Turn::PumpIntoFile => pump_in(&machine, b'I', content),
            Turn::PumpOut => pump_out(&machine, b'o', content.len()),
            Turn::PumpOutOfFile => pump_out(&machine, b'O', content.len()),
        })
    })?;
    let mut values = values.into_iter();
    let mut against = |name| {
        let mut row = |name: &str, role| (name.to_owned(), role, values.next().unwrap_or_default());
        let rows = vec![
            row("file", Role::Subject),
            row("byte pump", Role::Peer),
            row("byte pump and file", Role::Peer),
        ];
        Measure::of_rows(name, Unit::Millis, rows)
    };
    let large = large.map(|(name, took)| (name.to_owned(), Role::Peer, vec![took]));
    let peak = ("agent".to_owned(), Role::Peer, vec![peak]);
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures: vec![
            against("1 MiB into the guest"),
            against("1 MiB out of the guest"),
            Measure::of_rows("64 MiB", Unit::Millis, large.into()),
            Measure::of_rows("peak of resident memory", Unit::Kib, vec![peak]),
        ],
    })
}

fn timed(act: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let begun = Instant::now();
    act()?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn upload(api: &mut Connection, content: &[u8]) -> anyhow::Result<()> {
    let answer = api.call("PUT", CONTENT, content)?;
    let status = answer.status;
    ensure!(status == 200, "the upload was answered with {status}");
    Ok(())
}

fn download(api: &mut Connection, content: &[u8]) -> anyhow::Result<()> {
    let answer = api.call("GET", CONTENT, b"")?;
    let same = answer.body == content;
    ensure!(same, "what came back is not what was sent");
    Ok(())
}

fn pump_in(machine: &Machine, purpose: u8, content: &[u8]) -> anyhow::Result<()> {
    let mut helper = machine.helper(purpose)?;
    helper.write_all(content)?;
    helper.end()?;
    let mut done = [0];
    helper.read_exact(&mut done)?;
    Ok(())
}

fn pump_out(machine: &Machine, purpose: u8, length: usize) -> anyhow::Result<()> {
    let mut helper = machine.helper(purpose)?;
    helper.write_all(&(length as u64).to_le_bytes())?;
    let mut left = length;
    let mut buffer = vec![0; 256 << 10];
    while left > 0 {
        let count = helper.read(&mut buffer)?;
        ensure!(count > 0, "the pump ended {left} bytes early");
        left -= count;
    }
    Ok(())
}

/// In KiB, as the guest's kernel knows it of PID 1.
fn peak_memory(api: &mut Connection) -> anyhow::Result<f64> {
    let answer = api.call("GET", "/v1/files/content?path=/proc/1/status", b"")?;
    let text = String::from_utf8_lossy(&answer.body);
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no VmHWM in {text:?}"))
}
