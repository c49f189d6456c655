//! Many machines that live at the same time, restored from one snapshot, and the proof that they do:
//! their guests beat.

use std::fs;
use std::io::{PipeReader, Read, pipe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::restore::Turn;
use crate::api::{Ahead, Process};

/// How long a guest may be silent that beats ten times a second, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Descriptors that this program has besides those of machines.
const OTHERS: u64 = 64;

/// The machines. Dropping it ends them all.
#[derive(Default)]
pub struct Herd {
    machines: Vec<Member>,
}

/// One of them.
pub struct Member {
    /// Its monitor.
    pub process: Process,
    console: PipeReader,
    /// From before its process was started, or told what to be, until its vCPU was told to run.
    pub took: Duration,
}

/// A process that waits for its machine, and its guest's console.
pub struct Vacant {
    ahead: Ahead,
    console: PipeReader,
}

impl Vacant {
    /// A process of its own in `dir`.
    pub fn start(turn: &Turn, dir: &Path) -> anyhow::Result<Self> {
        let (console, theirs) = pipe().context("cannot make a pipe")?;
        let ahead = turn.program().start_ahead(dir, theirs)?;
        Ok(Self { ahead, console })
    }

    /// Restores the turn's snapshot in it.
    pub fn restore(self, turn: &Turn) -> anyhow::Result<Member> {
        Member::restore(turn, self.ahead.up()?, self.console)
    }
}

impl Member {
    /// A process of its own in `dir`, restored from the turn's snapshot.
    pub fn start(turn: &Turn, dir: &Path) -> anyhow::Result<Self> {
        let (process, console) = turn.program().start_with_console(dir)?;
        Self::restore(turn, process, console)
    }

    fn restore(turn: &Turn, mut process: Process, console: PipeReader) -> anyhow::Result<Self> {
        process.console_to_stdout()?;
        let (path, body) = turn.request();
        let answered = process.ask("PUT", path, &body)?;
        let took = answered.answer - process.started;
        Ok(Self {
            process,
            console,
            took,
        })
    }
}

impl Herd {
    /// Adds one.
    pub fn push(&mut self, member: Member) {
        self.machines.push(member);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.machines.iter()
    }

    /// Reads away what guests have written so far.
    pub fn drain(&mut self) -> anyhow::Result<()> {
        self.read_ready(Duration::ZERO, &mut vec![false; self.machines.len()])
    }

    /// Waits until each guest has written something from now on.
    pub fn wait_for_beats(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        let deadline = Instant::now() + PATIENCE;
        let mut heard = vec![false; self.machines.len()];
        while heard.contains(&false) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (silent, all) = (heard.iter().filter(|h| !**h).count(), heard.len());
            ensure!(!left.is_zero(), "{silent} of {all} guests do not run");
            self.read_ready(left, &mut heard)?;
        }
        Ok(())
    }

    /// Reads what there is within `patience` of those not `heard` yet.
    fn read_ready(&mut self, patience: Duration, heard: &mut [bool]) -> anyhow::Result<()> {
        let limit = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        let silent = self
            .machines
            .iter_mut()
            .zip(heard)
            .filter(|(_, heard)| !**heard);
        let mut silent: Vec<_> = silent.collect();
        let fds = silent
            .iter()
            .map(|(member, _)| PollFd::new(&member.console, PollFlags::IN));
        let mut fds: Vec<PollFd> = fds.collect();
        poll(&mut fds, Some(&limit)).context("cannot wait for guests")?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut bytes = [0; 4096];
        for ((member, heard), ready) in silent.iter_mut().zip(ready) {
            if ready {
                let len = member
                    .console
                    .read(&mut bytes)
                    .context("cannot read a console")?;
                ensure!(len > 0, member.process.complaint("the machine has ended"));
                **heard = true;
            }
        }
        Ok(())
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        // All at once: the kernel takes a while to take each apart.
        for member in &mut self.machines {
            member.process.kill();
        }
    }
}

/// A directory for each of `count` machines.
pub fn dirs(parent: &Path, count: usize) -> anyhow::Result<Vec<PathBuf>> {
    let dirs = (0..count).map(|number| {
        let dir = parent.join(format!("machine-{number}"));
        fs::create_dir_all(&dir).context("cannot make a directory")?;
        Ok(dir)
    });
    dirs.collect()
}

/// Lets this program have as many descriptors as `count` machines need.
pub fn allow(count: usize) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let needed = count as u64 * 3 + OTHERS;
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let most = limit.maximum.unwrap_or(u64::MAX);
    ensure!(
        most >= needed,
        "{count} machines need {needed} descriptors here, and the limit is {most}: raise it (ulimit -Hn)"
    );
    let raised = Rlimit {
        current: Some(needed),
        ..limit
    };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of descriptors")
}
