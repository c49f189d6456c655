//! A machine's process, from its start to its end.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use tine_jailer::files;

use super::{LaunchError, Launcher, Pidfd};
use crate::client::Machine;
use crate::ready::Readiness;

/// Name of the socket in a machine's directory.
pub const SOCKET: &str = "api.sock";
/// Name of the console's file.
pub const CONSOLE: &str = "console.log";
/// Name of the file with what the machine's process prints.
pub const LOG: &str = "vmm.log";
/// Most bytes of what a process printed that an error shows.
const SAID: u64 = 2000;
/// Most characters of an id.
const MAX_ID: usize = 64;

/// A machine whose process this program has started; it can be used as the [`Machine`] that it is.
///
/// Dropped, the process is killed, and its directory removed, after [`Self::detach`] neither.
#[derive(Debug)]
pub struct Launched {
    id: String,
    dir: PathBuf,
    machine: Machine,
    child: Option<Child>,
}

impl Launched {
    pub(super) async fn start(launcher: &Launcher, id: &str) -> Result<Self, LaunchError> {
        check_id(id)?;
        let parent = super::absolute(id, &launcher.dir)?;
        let dir = parent.join(id);
        let failed = |path: &Path, source| LaunchError::Directory {
            id: id.to_owned(),
            path: path.to_owned(),
            source,
        };
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        builder
            .create(&dir)
            .or_else(|err| match err.kind() {
                io::ErrorKind::NotFound => {
                    // The place may be being made by another task at this moment.
                    DirBuilder::new()
                        .recursive(true)
                        .mode(0o700)
                        .create(&parent)?;
                    builder.create(&dir)
                }
                _ => Err(err),
            })
            .map_err(|err| failed(&dir, err))?;
        let mut launched = Self {
            id: id.to_owned(),
            machine: Machine::at(dir.join(SOCKET)),
            dir,
            child: None,
        };
        if let Some((child, readiness)) = launched.waiting(launcher)? {
            launched.child = Some(child);
            match launched.connect(readiness).await {
                // Somebody has killed it before it was told: there is nothing yet that would be lost.
                Err(LaunchError::Ended { .. }) => {
                    let log = launched.dir.join(LOG);
                    fs::remove_file(&log).map_err(|err| failed(&log, err))?;
                }
                connected => return connected.map(|()| launched),
            }
        }
        let (child, readiness) = launched.new_process(launcher)?;
        launched.child = Some(child);
        launched.connect(readiness).await?;
        Ok(launched)
    }

    /// A process of those that wait for machines, if there is one.
    fn waiting(&self, launcher: &Launcher) -> Result<Option<(Child, Readiness)>, LaunchError> {
        let log = self.dir.join(LOG);
        let taken = launcher.reserve.take(&self.words(), &log);
        taken.map_err(|source| LaunchError::Directory {
            id: self.id.clone(),
            path: log,
            source,
        })
    }

    /// The arguments that make a process this machine's.
    fn words(&self) -> [&OsStr; 6] {
        let word = OsStr::new;
        [
            word("--api-sock"),
            self.machine.socket().as_os_str(),
            word("--id"),
            word(&self.id),
            word("--run-dir"),
            self.dir.as_os_str(),
        ]
    }

    fn new_process(&self, launcher: &Launcher) -> Result<(Child, Readiness), LaunchError> {
        let log = self.dir.join(LOG);
        let failed = |source| LaunchError::Directory {
            id: self.id.clone(),
            path: log.clone(),
            source,
        };
        let out = files::create(&log).and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) = out.map_err(failed)?;
        let started = Readiness::new().and_then(|(readiness, tell)| {
            let child = Command::new(&launcher.program)
                .args(self.words())
                // A descriptor that a process gets without a call of ours between its start and its program's.
                .args(["--ready-fd", "0"])
                .current_dir("/")
                .stdin(tell)
                .stdout(out)
                .stderr(err)
                // The keys of a terminal are not meant for it.
                .process_group(0)
                .spawn()?;
            Ok((child, readiness))
        });
        started.map_err(|source| LaunchError::Program {
            id: self.id.clone(),
            program: launcher.program.clone(),
            source,
        })
    }

    /// Waits until the process answers.
    async fn connect(&mut self, readiness: Readiness) -> Result<(), LaunchError> {
        let id = self.id.clone();
        if readiness.heard().await.unwrap_or(false) {
            let connected = Machine::connect(self.machine.socket()).await;
            return match connected {
                Ok(_) => Ok(()),
                Err(err) => Err(LaunchError::Machine {
                    id,
                    source: Box::new(err),
                }),
            };
        }
        // What it did not say in time it never will: it is ending, or has to.
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        let _ = child.kill();
        let status = child.wait().map_err(|source| LaunchError::Program {
            id: id.clone(),
            program: self.dir.clone(),
            source,
        })?;
        let said = self.said();
        Err(LaunchError::Ended { id, status, said })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where its console goes, if it was restored or forked.
    pub fn console(&self) -> PathBuf {
        self.dir.join(CONSOLE)
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        // There is one from the first moment that anybody else sees this.
        self.child.as_ref().map_or(0, Child::id)
    }

    /// What the process printed last.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&files::read_end(&self.dir.join(LOG), SAID).unwrap_or_default())
            .trim()
            .to_owned()
    }

    /// Waits for the end of the process, however it comes.
    ///
    /// # Errors
    ///
    /// When the process cannot be watched: this program has too many files open.
    pub async fn ended(&self) -> io::Result<()> {
        let pid = i32::try_from(self.pid()).map_err(io::Error::other)?;
        // Its number is its own until it has been waited for, which only dropping this does.
        match Pidfd::open(pid) {
            Some(process) => process.ended().await,
            None => Err(io::Error::last_os_error()),
        }
    }

    /// Leaves the process and its directory as they are, and gives the machine. It goes on when this
    /// program ends.
    pub fn detach(mut self) -> Machine {
        self.child = None;
        self.dir = PathBuf::new();
        self.machine.clone()
    }
}

impl Deref for Launched {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !self.dir.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Whether a text can be a machine's id, which is its directory's name: 1 to 64 of `a-z0-9_-`.
pub fn is_id(text: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(fits)
}

pub(super) fn check_id(id: &str) -> Result<(), LaunchError> {
    match is_id(id) {
        true => Ok(()),
        false => Err(LaunchError::Id {
            id: id.to_owned(),
            why: "it is to be 1 to 64 of a-z, 0-9, `_` and `-`",
        }),
    }
}
