//! The questions that the benchmark answers, one file each, and what they have in common.

mod block;
mod boot_linux;
mod burst;
mod by_memory;
mod cold_start;
mod density;
mod driven;
mod exec;
mod files;
pub mod fork;
mod frames;
mod herd;
mod inside;
mod jail;
mod linux;
mod memory;
mod net;
pub mod restore;
mod restore_linux;
pub mod snapshot;
mod socket;
mod vsock;

use std::path::Path;

use anyhow::Context;
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::cli::Args;
use crate::contestant::Contestant;
use crate::guest::Guest;
use crate::peers::{Machine, Peer};
use crate::process::Launch;
use crate::report::Answer;
use crate::rounds;

/// A question.
pub struct Question {
    /// Its name on the command line.
    pub name: &'static str,
    /// Only root can ask it.
    pub for_root: bool,
    /// Measures.
    pub answer: fn(&Bench) -> anyhow::Result<Answer>,
}

const QUESTIONS: &[Question] = &[
    cold_start::QUESTION,
    by_memory::QUESTION,
    memory::QUESTION,
    exec::QUESTION,
    files::QUESTION,
    restore::QUESTION,
    fork::QUESTION,
    burst::QUESTION,
    density::QUESTION,
    block::QUESTION,
    net::QUESTION,
    vsock::QUESTION,
    boot_linux::QUESTION,
    restore_linux::QUESTION,
    snapshot::QUESTION,
    jail::QUESTION,
    socket::QUESTION,
];

/// Names of questions that can be profiled.
pub const COLD_START: &str = cold_start::QUESTION.name;
/// Another one.
pub const RESTORE: &str = restore::QUESTION.name;
/// The third.
pub const FORK: &str = fork::QUESTION.name;

/// Stands for every question but those that have to be asked by name.
pub const ALL: &str = "all";

/// They boot a Linux guest under every contestant, which takes minutes where guest kernels are
/// interpreted.
const BY_NAME: [&str; 2] = [boot_linux::QUESTION.name, restore_linux::QUESTION.name];

/// What can be asked for.
pub fn names() -> Vec<&'static str> {
    let names = QUESTIONS.iter().map(|question| question.name);
    std::iter::once(ALL).chain(names).collect()
}

/// The questions that `names` stand for, each once. What only root can ask is left out of [`ALL`]
/// by others, who are told.
pub fn asked(names: &[String]) -> impl Iterator<Item = &'static Question> {
    let all = names.iter().any(|name| name == ALL);
    let asked = move |question: &&Question| {
        if names.iter().any(|name| name == question.name) {
            return true;
        }
        let left_out = all && question.for_root && !geteuid().is_root();
        if left_out {
            eprintln!(
                "tine-bench: the question `{}` is left out: only root can ask it",
                question.name
            );
        }
        all && !left_out && !BY_NAME.contains(&question.name)
    };
    QUESTIONS.iter().filter(asked)
}

/// Asks all that `names` stand for.
pub fn ask(bench: &Bench, names: &[String]) -> anyhow::Result<Vec<Answer>> {
    let answer = |question: &Question| {
        (question.answer)(bench).with_context(|| format!("the question `{}`", question.name))
    };
    asked(names).map(answer).collect()
}

/// What a question has to work with.
pub struct Bench {
    /// Who takes part.
    pub contestants: Vec<Contestant>,
    runs: Option<usize>,
    warm_up: usize,
    dir: TempDir,
}

/// Memory of every machine that nobody asks more of, in MiB.
pub const MEMORY: u64 = 128;

impl Bench {
    /// Prepares what all questions need.
    pub fn new(args: &Args, mut contestants: Vec<Contestant>) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
        for (number, contestant) in contestants.iter_mut().enumerate() {
            contestant.copy_to(&dir.path().join(format!("programs-{number}")))?;
        }
        // Pages of a file that was written a moment ago count as dirty memory of its process until they
        // are on disk.
        rustix::fs::sync();
        Ok(Self {
            contestants,
            runs: args.runs,
            warm_up: args.warm_up,
            dir,
        })
    }

    /// The same with nothing done yet.
    pub fn again(&self) -> anyhow::Result<Self> {
        Ok(Self {
            contestants: self.contestants.clone(),
            dir: tempfile::tempdir().context("cannot make a temporary directory")?,
            ..*self
        })
    }

    /// The `tine` that is measured.
    pub fn tine(&self) -> &Path {
        &self.contestants[0].monitor.program
    }

    /// Where a question can keep what it needs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// One command line per contestant, each of which boots the guest that `guest` chooses.
    pub fn launches(&self, guest: impl Fn(&Peer) -> Guest) -> anyhow::Result<Vec<Launch>> {
        self.launches_with(MEMORY, guest)
    }

    /// The same with so much memory, in MiB. Those made before are of no use then: what monitors
    /// are told in files is told anew.
    pub fn launches_with(
        &self,
        memory: u64,
        guest: impl Fn(&Peer) -> Guest,
    ) -> anyhow::Result<Vec<Launch>> {
        let launch = |contestant: &Contestant| {
            let monitor = &contestant.monitor;
            launch(contestant, memory, guest(monitor), self.dir.path())
                .with_context(|| format!("cannot prepare {}", contestant.name))
        };
        self.contestants.iter().map(launch).collect()
    }

    /// How many rounds count, when `default` is what a question asks for.
    pub fn runs(&self, default: usize) -> usize {
        self.runs.unwrap_or(default)
    }

    /// How many rounds before that do not.
    pub fn warm_up(&self) -> usize {
        self.warm_up
    }

    /// Gives each its turn in every round; see [`rounds::run`].
    pub fn rounds<P, T>(
        &self,
        title: &str,
        turns: &[P],
        default_runs: usize,
        once: impl FnMut(&P) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<Vec<T>>> {
        let runs = self.runs(default_runs);
        rounds::run(title, turns, self.warm_up, runs, once)
    }
}

fn launch(
    contestant: &Contestant,
    memory: u64,
    guest: Guest,
    dir: &Path,
) -> anyhow::Result<Launch> {
    let machine = Machine {
        kernel: &guest.write(dir)?,
        memory,
        dir,
    };
    Ok(Launch {
        name: contestant.name.clone(),
        program: contestant.monitor.program.clone(),
        arguments: contestant.monitor.arguments(&machine)?,
        stderr: dir.join("stderr"),
    })
}

/// One field of each sample, sorted as the samples are.
pub fn column<T>(samples: &[Vec<T>], field: impl Fn(&T) -> f64) -> Vec<Vec<f64>> {
    let values = |samples: &Vec<T>| samples.iter().map(&field).collect();
    samples.iter().map(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_asked_once_each() {
        let ask = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            asked(&names)
                .map(|question| question.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(ask(&["memory", "memory"]), ["memory"]);
        let for_root = QUESTIONS
            .iter()
            .filter(|question| question.for_root)
            .count();
        let root = if geteuid().is_root() { 0 } else { for_root };
        let quick = QUESTIONS.len() - BY_NAME.len() - root;
        assert_eq!(ask(&[ALL]).len(), quick);
        assert_eq!(ask(&["memory", ALL]).len(), quick);
        assert_eq!(
            ask(&[ALL, BY_NAME[0], BY_NAME[1], "net", "jail"]).len(),
            QUESTIONS.len()
        );
    }
}
