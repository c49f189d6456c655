//! Starting machines' processes from a program of one's own: a backend of sandboxes.
//!
//! Each machine is a `tine-vmm` of its own, with a directory and an API socket, and is used through
//! [`crate::client`]. The directories are as the command line's, so that `tine ps` shows the machines
//! when `TINE_RUN_DIR` names their place. The processes are under their system call filters, but in no
//! jail: `tine fork` and `tine restore` make those, and so does `tine-jailer` around such a process.
//!
//! ```no_run
//! use tine::client::{ExecRequest, argv};
//! use tine::launch::{Launcher, NewMachine};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let launcher = Launcher::new("/usr/local/bin/tine-vmm", "/run/sandboxes");
//! let prepared = launcher.restore("/srv/snapshots/web-1", NewMachine::named("web")).await?;
//!
//! // A hundred machines that go on where that one is: what became of each is told of each.
//! let names = (1..=100).map(|n| NewMachine::named(&format!("try-{n}")));
//! for copy in launcher.fork(&prepared, names.collect()).await? {
//!     let copy = copy?;
//!     let request = ExecRequest { argv: argv(["make", "test"]), ..Default::default() };
//!     println!("{}: {:?}", copy.id(), copy.run(request).await?.exit_code);
//! }   // dropped: the process is ended and its directory removed
//! # Ok(())
//! # }
//! ```

mod ahead;
mod handed;
mod launched;
mod limits;
mod many;
mod pidfd;
mod readable;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::{Value, json};

use self::ahead::Reserve;
pub use self::handed::Handed;
pub use self::launched::{CONSOLE, LOG, Launched, SOCKET, is_id};
pub use self::limits::check_room;
pub use self::many::at_a_time;
pub use self::pidfd::Pidfd;
pub use self::readable::watched;
use crate::client;
use crate::control::GuestIdentity;

/// How long a machine may take until it is running, when nothing else is said.
const PATIENCE: Duration = Duration::from_secs(300);

/// Why a machine was not started. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The host has too little of something for so many machines; none was begun.
    #[error("{0}: none was begun")]
    NoRoom(String),
    /// An id is given twice, or cannot be a directory's name.
    #[error("{id:?} cannot be a machine's id: {why}")]
    Id {
        /// The id.
        id: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Its directory cannot be made.
    #[error("machine {id}: cannot make {}: {source}", path.display())]
    Directory {
        /// The machine.
        id: String,
        /// The directory, or a file in it.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("machine {id}: cannot start {}: {source}", program.display())]
    Program {
        /// The machine.
        id: String,
        /// The program.
        program: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A process that was to wait for a machine ([`Launcher::stand_by`]) cannot be started.
    #[error("cannot start {} ahead of its machine: {source}", program.display())]
    Ahead {
        /// The program.
        program: PathBuf,
        /// What the host said, or the process.
        source: io::Error,
    },
    /// Its process ended before it answered.
    #[error("machine {id}: its process ended at once, {status}: {said}")]
    Ended {
        /// The machine.
        id: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed last.
        said: String,
    },
    /// It refused, or was not running in time.
    #[error("machine {id}: {source}")]
    Machine {
        /// The machine.
        id: String,
        /// What it said.
        source: Box<client::Error>,
    },
}

/// A machine to be: its name, and what of its guest becomes another one before it counts as running.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NewMachine {
    /// Its id and its directory's name: 1 to 64 of `a-z0-9_-`.
    pub id: String,
    /// What the guest's agent makes of it. Empty for a guest that has no agent.
    pub identity: GuestIdentity,
    /// What of its network interfaces becomes another one: the elements of `network` in the body of
    /// `PUT /v1/restore`.
    pub network: Vec<Value>,
    /// What other machines of its snapshot have touched first, which is read ahead:
    /// [`client::Machine::record_working_set`] writes such a file.
    pub working_set: Option<PathBuf>,
}

impl NewMachine {
    /// One whose guest has its id as host name, and a machine id of its own.
    pub fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            identity: GuestIdentity::of(id),
            network: Vec::new(),
            working_set: None,
        }
    }

    /// One whose guest has no agent.
    pub fn bare(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            ..Self::default()
        }
    }

    /// The body of `PUT /v1/restore`, with `origin`, which is `snapshot` or `fork`, at `path`.
    fn request(&self, origin: &str, path: &Path) -> Value {
        let mut request = json!({ origin: path });
        if let Some(file) = &self.working_set {
            request["working_set"] = json!(file);
        }
        if !self.network.is_empty() {
            request["network"] = self.network.clone().into();
        }
        self.identity.put_into_request(&mut request);
        request
    }
}

/// Starts machines.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    dir: PathBuf,
    patience: Duration,
    wait: bool,
    reserve: Reserve,
}

impl Launcher {
    /// One that starts `program`, a `tine-vmm`, and has the machines' directories in `dir`, which it makes
    /// if it is not there. Whoever can write there commands the machines: it should be the caller's alone.
    /// Sockets lie in it, whose paths have at most 107 bytes.
    pub fn new(program: impl Into<PathBuf>, dir: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            dir: dir.into(),
            patience: PATIENCE,
            wait: true,
            reserve: Reserve::default(),
        }
    }

    /// The time that a machine may take until it is running, instead of 300 s.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Whether a restored or forked machine is waited for until its agent has answered, which is so
    /// unless it is said. For guests without an agent it has to be `false`.
    pub fn wait_for_agents(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// Starts a process that has no machine yet: what it is to be is said through its socket
    /// ([`client::Machine::put`]).
    ///
    /// # Errors
    ///
    /// When the id is in use, or the process cannot be started or ends at once.
    pub async fn start(&self, id: &str) -> Result<Launched, LaunchError> {
        Launched::start(self, id).await
    }

    /// Makes a machine of the full snapshot in the directory `snapshot`, and waits until it is running.
    ///
    /// # Errors
    ///
    /// As [`Self::start`], when the snapshot is refused, and when the machine is not running in time.
    pub async fn restore(
        &self,
        snapshot: impl AsRef<Path>,
        machine: NewMachine,
    ) -> Result<Launched, LaunchError> {
        let snapshot = absolute(&machine.id, snapshot.as_ref())?;
        self.bring_up("snapshot", &snapshot, &machine).await
    }

    async fn bring_up(
        &self,
        origin: &str,
        path: &Path,
        new: &NewMachine,
    ) -> Result<Launched, LaunchError> {
        let machine = self.start(&new.id).await?;
        let failed = |err| LaunchError::Machine {
            id: new.id.clone(),
            source: Box::new(err),
        };
        let console = json!({ "serial_out_path": machine.console() });
        machine.put("/serial", &console).await.map_err(failed)?;
        let request = new.request(origin, path);
        machine.put("/v1/restore", &request).await.map_err(failed)?;
        if self.wait {
            let running = machine.wait_until_running(self.patience).await;
            running.map_err(failed)?;
        }
        Ok(machine)
    }
}

/// The process works elsewhere.
fn absolute(id: &str, path: &Path) -> Result<PathBuf, LaunchError> {
    std::path::absolute(path).map_err(|source| LaunchError::Directory {
        id: id.to_owned(),
        path: path.to_owned(),
        source,
    })
}
