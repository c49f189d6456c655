//! Where the time goes: system calls and page faults, phase by phase, of one start under a tracer.
//!
//! The tracer is a program of the host: `perf trace`, which sees both, or else `strace`, which sees
//! calls alone. Counts are those of an untraced start; times are not, for both hold the monitor up.
//! Phases end where every monitor can be seen to do the same: at its first call of KVM, when its vCPU
//! runs first, when the guest's first byte is written.

mod trace;

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::contestant::{Contestant, Role};
use crate::guest::Guest;
use crate::process::Launch;
use crate::questions::snapshot::monitors;
use crate::questions::{self, Bench, MEMORY, fork, restore};

/// All that was found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Profiles {
    /// What looked, and what it cannot see.
    pub tool: Cow<'static, str>,
    /// One per question and contestant.
    pub profiles: Vec<Profile>,
}

/// One start.
#[derive(Debug, Serialize, Deserialize)]
pub struct Profile {
    /// The question's name.
    pub of: Cow<'static, str>,
    /// Whose start it is.
    pub contestant: String,
    /// In the order of time.
    pub phases: Vec<Phase>,
}

/// A part of a start.
#[derive(Debug, Serialize, Deserialize)]
pub struct Phase {
    /// What ends it.
    pub until: Cow<'static, str>,
    /// How long it took under the tracer.
    pub millis: f64,
    /// System calls of all threads.
    pub calls: usize,
    /// Page faults that needed no disk.
    pub minor: usize,
    /// And those that did.
    pub major: usize,
    /// Which calls there were most of.
    pub most: Vec<(String, usize)>,
}

/// What the host has to look with.
#[derive(Debug, Clone, Copy)]
enum Tool {
    Perf,
    Strace,
}

impl Tool {
    fn find() -> anyhow::Result<Self> {
        let works = |program: &str, words: &[&str]| {
            let mut command = Command::new(program);
            let silent = command
                .args(words)
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            silent
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        if works(
            "perf",
            &[
                "trace",
                "--syscalls",
                "-F",
                "all",
                "-o",
                "/dev/null",
                "true",
            ],
        ) {
            return Ok(Self::Perf);
        }
        if works("strace", &["-f", "-o", "/dev/null", "true"]) {
            return Ok(Self::Strace);
        }
        bail!(
            "--profile needs a `perf trace` that is allowed to look (Debian: linux-perf), or `strace`"
        )
    }

    fn about(self) -> &'static str {
        match self {
            Self::Perf => "perf trace: system calls and page faults",
            Self::Strace => {
                "strace: system calls; page faults are not told, for `perf trace` does not work here"
            }
        }
    }

    /// What is put before a command line.
    fn words(self, output: &Path) -> Vec<OsString> {
        let words: &[&str] = match self {
            Self::Perf => &["perf", "trace", "--syscalls", "-F", "all", "-o"],
            Self::Strace => &["strace", "-f", "-ttt", "-o"],
        };
        let words = words.iter().map(OsString::from);
        words.chain([output.into()]).collect()
    }
}

/// Looks at what can be looked at of the questions that `names` stand for.
pub fn look(bench: &Bench, names: &[String]) -> anyhow::Result<Profiles> {
    let tool = Tool::find()?;
    let asked: Vec<&str> = questions::asked(names)
        .map(|question| question.name)
        .collect();
    let mut profiles = Vec::new();
    let output = bench.dir().join("trace");
    let mut look =
        |of: &'static str, contestant: &Contestant, by_api: bool| -> anyhow::Result<()> {
            let text = fs::read(&output).context("the tracer has written nothing")?;
            let text = String::from_utf8_lossy(&text);
            let events = match tool {
                Tool::Perf => trace::of_perf(&text),
                Tool::Strace => trace::of_strace(&text),
            };
            let phases = trace::phases(&events, by_api);
            ensure!(
                phases.len() > 1,
                "the trace of {} tells of no machine",
                contestant.name
            );
            profiles.push(Profile {
                of: of.into(),
                contestant: contestant.name.clone(),
                phases,
            });
            Ok(())
        };
    let words = tool.words(&output);
    let others = bench.contestants.iter().filter(|c| c.role != Role::Control);
    let others: Vec<&Contestant> = others.collect();
    if asked.contains(&questions::COLD_START) {
        let launches = bench.launches(|monitor| Guest::Hello(monitor.reset()))?;
        for contestant in &others {
            let launch = launches
                .iter()
                .find(|launch| launch.name == contestant.name);
            cold_start(launch.context("it has no command line")?, &words)?;
            look(questions::COLD_START, contestant, false)?;
        }
    }
    let with_api = monitors(bench, "--profile");
    let with_api: Vec<Contestant> = with_api
        .into_iter()
        .filter(|c| c.role != Role::Control)
        .collect();
    if asked.contains(&questions::RESTORE) {
        let turns = restore::turns(bench, &with_api, Guest::Beat, MEMORY)?;
        for (contestant, turn) in with_api.iter().zip(&turns) {
            let program = turn.program().clone().under(&words);
            let (mut process, mut console) = program.start_with_console(turn.dir())?;
            process.console_to_stdout()?;
            let (path, body) = turn.request();
            process.ask_for_sign("PUT", path, &body, Some(&mut console))?;
            // It is ended, and then the tracer writes down what it saw.
            drop(process);
            look(questions::RESTORE, contestant, true)?;
        }
    }
    if asked.contains(&questions::FORK) {
        for contestant in with_api.iter().filter(|c| c.role != Role::Peer) {
            let (source, program) = fork::one(contestant, bench.dir())?;
            let (mut process, mut console) =
                program.under(&words).start_with_console(bench.dir())?;
            process.console_to_stdout()?;
            let (path, body) = source.request();
            process.ask_for_sign("PUT", path, body, Some(&mut console))?;
            // It is ended, and then the tracer writes down what it saw.
            drop(process);
            look(questions::FORK, contestant, true)?;
        }
    }
    ensure!(
        !profiles.is_empty(),
        "--profile looks at cold-start, restore and fork: ask one of them"
    );
    Ok(Profiles {
        tool: tool.about().into(),
        profiles,
    })
}

fn cold_start(launch: &Launch, words: &[OsString]) -> anyhow::Result<()> {
    let program = PathBuf::from(&words[0]);
    let mut arguments = words[1..].to_vec();
    arguments.push(launch.program.clone().into());
    arguments.extend(launch.arguments.iter().cloned());
    let launch = Launch {
        name: launch.name.clone(),
        program,
        arguments,
        stderr: launch.stderr.clone(),
    };
    let mut running = launch.start()?;
    running.wait_for_sign()?;
    running.wait_for_end()?;
    Ok(())
}
