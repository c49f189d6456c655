//! Processes that are started before there are machines for them: what a start does without knowing which
//! machine it is for has been done, and they wait for the rest of their arguments.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{LaunchError, Launcher, at_a_time, check_room};
use crate::ready::Readiness;

/// Most bytes of what a process printed that an error shows.
const SAID: usize = 2000;

/// A process that is ended when this is dropped.
#[derive(Debug)]
struct Held(Option<Child>);

/// One that waits. It ends by itself when this program does.
#[derive(Debug)]
struct Waiting {
    child: Held,
    line: Readiness,
    /// What it prints goes here; it has no name yet.
    log: File,
}

/// Those that a launcher and its clones have.
#[derive(Debug, Clone, Default)]
pub(super) struct Reserve(Arc<Mutex<Vec<Waiting>>>);

impl Launcher {
    /// Has `count` processes started that wait for machines, beside those that have one: the next machines
    /// that this launcher or a clone of it starts take one each, and so much of a start is behind them. What
    /// was taken is replaced by the next call of this, at a time that suits the caller. They end
    /// with the last clone of this, and with this program, and have no files until then. Each takes some 220 KiB of
    /// memory.
    ///
    /// # Errors
    ///
    /// When the host has no room for so many, or the program cannot be started or ends at once. Those that
    /// were started stay.
    pub async fn stand_by(&self, count: usize) -> Result<(), LaunchError> {
        let missing = count.saturating_sub(self.standing_by());
        let place = self.dir.ancestors().find(|dir| dir.is_dir());
        let needed = u32::try_from(missing).unwrap_or(u32::MAX);
        check_room(needed, place.unwrap_or(Path::new(".")))?;
        let turns = Arc::new(Semaphore::new(at_a_time()));
        let mut set = JoinSet::new();
        for _ in 0..missing {
            let (launcher, turns) = (self.clone(), turns.clone());
            set.spawn(async move {
                // Never closed.
                let _turn = turns.acquire().await;
                let started = Waiting::start(&launcher.program, &launcher.dir).await?;
                launcher.reserve.lock().push(started);
                Ok(())
            });
        }
        let mut all = set.join_all().await.into_iter();
        all.try_for_each(|started: io::Result<()>| started)
            .map_err(|source| LaunchError::Ahead {
                program: self.program.clone(),
                source,
            })
    }

    /// How many processes wait for machines ([`Self::stand_by`]).
    pub fn standing_by(&self) -> usize {
        let mut waiting = self.reserve.lock();
        waiting.retain_mut(Waiting::lives);
        waiting.len()
    }
}

impl Reserve {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a process that waits become one with these arguments, whose output is in the new file `log`;
    /// none where none waits.
    pub(super) fn take(
        &self,
        words: &[&OsStr],
        log: &Path,
    ) -> io::Result<Option<(Child, Readiness)>> {
        loop {
            // Not while it is locked: a dead one is waited for when it is dropped.
            let next = self.lock().pop();
            let Some(mut waiting) = next else {
                return Ok(None);
            };
            if waiting.lives() && waiting.line.say(words).is_ok() {
                waiting.name_log(log)?;
                let Waiting {
                    mut child, line, ..
                } = waiting;
                return Ok(child.0.take().map(|child| (child, line)));
            }
        }
    }
}

impl Waiting {
    async fn start(program: &Path, dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        // It gets its name with its machine, and is gone without one.
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let log = options.custom_flags(libc::O_TMPFILE).open(dir)?;
        let (line, theirs) = Readiness::new()?;
        let child = Command::new(program)
            // A descriptor that a process gets without a call of ours between its start and its program's.
            .args(["--args-fd", "0", "--ready-fd", "0"])
            .current_dir("/")
            .stdin(theirs)
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            // The keys of a terminal are not meant for it.
            .process_group(0)
            .spawn()?;
        let waiting = Self {
            child: Held(Some(child)),
            line,
            log,
        };
        match waiting.line.heard().await {
            Ok(true) => Ok(waiting),
            _ => Err(waiting.failure()),
        }
    }

    /// How it ended that was to wait.
    fn failure(&self) -> io::Error {
        let mut said = vec![0; SAID];
        let length = self.log.read_at(&mut said, 0).unwrap_or(0);
        let said = String::from_utf8_lossy(&said[..length]);
        io::Error::other(format!("it ended at once: {}", said.trim()))
    }

    fn lives(&mut self) -> bool {
        matches!(self.child.0.as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    fn name_log(&self, path: &Path) -> io::Result<()> {
        let unnamed = format!("/proc/self/fd/{}", self.log.as_raw_fd());
        Ok(rustix::fs::linkat(
            CWD,
            unnamed,
            CWD,
            path,
            AtFlags::SYMLINK_FOLLOW,
        )?)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
