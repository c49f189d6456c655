//! A machine in a process of its own, `tine-vmm`, on its way up.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tine::client::{Error, Machine, Record};
use tine::config::MachineConfig;
use tine::ready::Readiness;
use tine_jailer::files;

use super::exec::Place;
use super::failure::Failure;
use super::jail::{self, Files};
use super::monitor::Monitor;
use super::run::config::remote;
use super::rundir::{self, BEGUN, CONSOLE, LOG, SOCKET};
use super::session::Signals;
use super::timing::Timing;
use super::{exit, output};

/// How long a machine may take until it is running, when nothing else is said.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Lines of the console, or of the process's own output, that a failure shows.
const LINES: usize = 12;
/// Bytes of them at most, which are read from the end of their file.
const SAID: u64 = 16 << 10;
/// The request id of the command that a machine is started with.
pub const MAIN: &str = "main";

/// A process, and the directory that it works in.
pub struct Process {
    /// The machine's id.
    pub id: String,
    /// Its directory.
    pub dir: PathBuf,
    child: Option<Monitor>,
    /// What its jail shows of the host, if it gets one.
    jail: Option<Files>,
    /// The directory was there before, and stays when the start fails.
    again: bool,
    /// It is killed when this process ends, however that comes.
    tied: bool,
}

impl Process {
    /// Makes the machine's directory; the process follows with [`Self::bring_up`].
    /// With `jail` it gets one, in which that is shown.
    pub fn prepare(id: Option<String>, jail: Option<Files>) -> Result<Self, Failure> {
        let id = id.unwrap_or_else(rundir::new_id);
        let mut dir = rundir::create(&id)?;
        if jail.is_some() {
            // As it is called in there.
            dir = dir.canonicalize().unwrap_or(dir);
        }
        // From here on it is removed if this fails.
        let process = Self {
            id,
            dir,
            child: None,
            jail,
            again: false,
            tied: false,
        };
        let noted = match &process.jail {
            Some(files) => files.note(&process.dir),
            None => jail::note::drop_stale(&process.dir),
        };
        match noted {
            Ok(()) => Ok(process),
            Err(failure) => {
                let _ = rundir::remove(&process.dir);
                Err(failure)
            }
        }
    }

    /// The process is to end with this one, which is its only user. Its directory stays if this one
    /// is killed.
    pub fn ending_with_this_one(mut self) -> Self {
        self.tied = true;
        self
    }

    /// A process for a machine whose directory is there.
    pub fn again(id: &str, dir: PathBuf, jail: Option<Files>) -> Self {
        Self {
            id: id.to_owned(),
            dir,
            child: None,
            jail,
            again: true,
            tied: false,
        }
    }

    /// Starts the process and does `work` with its machine. If anything fails, or this process is
    /// asked to end meanwhile, nothing is left behind.
    pub async fn bring_up<T>(
        &mut self,
        mut signals: Signals,
        work: impl AsyncFnOnce(&Self, &Machine) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let started = tokio::select! {
            started = self.start(work) => started,
            number = signals.ending() => Err(Failure::signal(number)),
        };
        if started.is_err() {
            self.clean_up();
        }
        started
    }

    /// Starts the process and does `work` with its machine.
    pub async fn start<T>(
        &mut self,
        work: impl AsyncFnOnce(&Self, &Machine) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // Held while this goes on, so that nobody takes the directory for a dead machine's.
        let lock = File::open(&self.dir);
        let lock = lock.map_err(|err| self.failure(&err.to_string()))?;
        let _ = flock(&lock, FlockOperation::LockShared);
        let begun = self.dir.join(BEGUN);
        files::create(&begun)
            .map_err(|err| self.failure(&format!("cannot write {}: {err}", begun.display())))?;
        let started = self.work(work).await;
        // Of one that is not left behind, running or removed.
        let _ = std::fs::remove_file(begun);
        started
    }

    async fn work<T>(
        &mut self,
        work: impl AsyncFnOnce(&Self, &Machine) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.again && !rundir::is_served(&self.dir) {
            // Of one that was killed. Who replaces a socket waits for that lock.
            let _ = std::fs::remove_file(self.dir.join(SOCKET));
        }
        let machine = match self.spawn().await? {
            true => Machine::connect(self.dir.join(SOCKET)).await,
            false => return Err(self.ended()),
        };
        let machine = machine.map_err(|err| self.failure(&err.to_string()))?;
        work(self, &machine).await
    }

    /// The process's number.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Monitor::pid)
    }

    /// A `PUT` to the process.
    pub async fn put(
        &self,
        machine: &Machine,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<(), Failure> {
        let done = machine.put(path, body).await;
        done.map_err(|err| self.failure(&err.to_string()))
    }

    /// Has the process make and boot a machine.
    pub async fn boot(&self, machine: &Machine, config: &MachineConfig) -> Result<(), Failure> {
        let config = remote(config).map_err(|err| self.failure(&err.to_string()))?;
        self.put(machine, "/v1/config", &config).await?;
        let action = serde_json::json!({ "action_type": "InstanceStart" });
        self.put(machine, "/actions", &action).await
    }

    /// Waits until the machine is running.
    pub async fn wait_until_running(
        &self,
        machine: &Machine,
        limit: Option<Duration>,
    ) -> Result<(), Failure> {
        let limit = limit.unwrap_or(PATIENCE);
        match machine.wait_until_running(limit).await {
            Ok(_) => Ok(()),
            Err(Error::Refused { status: 408, .. }) => {
                let mut failure = self.failure(&format!("it was not running within {limit:?}"));
                failure.status = exit::TIMED_OUT;
                Err(failure)
            }
            Err(err) => Err(self.failure(&err.to_string())),
        }
    }

    /// Waits until the machine is running, and starts the command that it is there for, if there is one.
    pub async fn run_when_running(
        &self,
        machine: &Machine,
        limit: Option<Duration>,
        place: &Place,
        command: &[OsString],
        timing: &mut Timing,
    ) -> Result<(), Failure> {
        self.wait_until_running(machine, limit).await?;
        timing.phase("guest to agent");
        self.run_command(machine, place, command).await
    }

    /// Starts the command that the machine is there for, if there is one; one that cannot be started is a failure
    /// with its own status.
    async fn run_command(
        &self,
        machine: &Machine,
        place: &Place,
        command: &[std::ffi::OsString],
    ) -> Result<(), Failure> {
        if command.is_empty() {
            return Ok(());
        }
        let mut request = place.request(command);
        request.request_id = MAIN.to_owned();
        let failed = |err: Error| self.failure(&err.to_string());
        let mut exec = machine.exec(request).await.map_err(failed)?;
        if exec.started().await.is_some() {
            return Ok(());
        }
        let record: Record = exec.wait().await.map_err(failed)?;
        match exit::status(&record) {
            0 => Ok(()),
            status => Err(Failure {
                status,
                words: String::new(),
            }),
        }
    }

    /// Starts the process, and waits until it can be connected to; false when it will never be.
    async fn spawn(&mut self) -> Result<bool, Failure> {
        let program = program()?;
        let log = self.dir.join(LOG);
        let failed =
            |err: io::Error| Failure::new(format!("cannot start {}: {err}", program.display()));
        // The machine may have had an earlier life in there, and have left anything under that name.
        let out = files::create(&log)
            .map_err(|err| Failure::new(format!("cannot write {}: {err}", log.display())))?;
        let mut command = Command::new(&program);
        command
            .current_dir("/")
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out);
        let tied = self.tied.then(std::process::id);
        if let Some(files) = &self.jail {
            command.stdin(Stdio::null());
            if self.again {
                // Its last process may be on its way out.
                jail::discard(&self.dir)?;
            }
            let started = jail::start(command, &program, &self.id, &self.dir, files, tied);
            let (monitor, ready) = started.await?;
            self.child = Some(monitor);
            return Ok(ready);
        }
        let (readiness, tell) = Readiness::new().map_err(failed)?;
        command.args(["--id", &self.id]);
        command.args(arguments(&self.dir, 0)).stdin(tell);
        let tied = self.tied.then(rustix::process::getpid);
        let prepare = move || {
            rustix::process::setsid()?;
            if let Some(parent) = tied {
                let kill = rustix::process::Signal::KILL;
                rustix::process::set_parent_process_death_signal(Some(kill))?;
                // It may have ended before that.
                if rustix::process::getppid() != Some(parent) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            Ok(())
        };
        // SAFETY: these are system calls that allocate nothing and take no lock. In a session of
        // its own the process hears nothing of this terminal's keys and end.
        unsafe {
            command.pre_exec(prepare);
        }
        let child = command.spawn().map_err(failed)?;
        // It has the other end.
        drop(command);
        self.child = Some(Monitor::of(child.id()).map_err(failed)?);
        readiness.heard().await.map_err(failed)
    }

    /// The failure of a process that was never ready.
    fn ended(&mut self) -> Failure {
        let status = self.child.as_mut().and_then(|child| {
            // It is on its way out, if it is not one that never will be ready.
            child.kill();
            child.has_ended()
        });
        let status = status.map_or_else(String::new, |status| format!(", {status}"));
        self.failure(&format!("its process ended at once{status}"))
    }

    /// What went wrong, with what the process and the guest said last.
    pub fn failure(&self, why: &str) -> Failure {
        // The machine may have worded it.
        let why: Vec<String> = why.lines().map(output::printable).collect();
        let mut words = format!("machine {}: {}", self.id, why.join("\n"));
        for (name, from) in [(LOG, "process"), (CONSOLE, "console")] {
            let text = files::read_end(&self.dir.join(name), SAID).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
            for line in &lines[lines.len().saturating_sub(LINES)..] {
                words.push_str(&format!(
                    "\n  {from}: {}",
                    output::printable(line.trim_end())
                ));
            }
        }
        Failure::new(words)
    }

    /// Waits for the process, which has ended or is about to.
    pub fn reap(self) {
        if let Some(mut child) = self.child {
            child.wait();
        }
    }

    /// Leaves nothing behind.
    pub fn clean_up(&mut self) {
        if let Some(process) = &mut self.child {
            process.kill();
        }
        if self.jail.is_some() {
            // What cannot be removed now is by the next start of that id, or `tine gc`.
            let _ = jail::discard(&self.dir);
        }
        let _ = match self.again {
            true => std::fs::remove_file(self.dir.join(BEGUN)),
            false => rundir::remove(&self.dir),
        };
    }
}

/// What the process of the machine whose directory is `dir` is told, beside its id; it is to say at the
/// descriptor `ready` that it can be connected to.
pub fn arguments(dir: &Path, ready: RawFd) -> [OsString; 6] {
    let (socket, dir) = (dir.join(SOCKET).into(), dir.into());
    let ready = ready.to_string().into();
    [
        "--api-sock".into(),
        socket,
        "--run-dir".into(),
        dir,
        "--ready-fd".into(),
        ready,
    ]
}

/// `tine-vmm`, which stands beside this program.
fn program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|err| Failure::new(format!("cannot find this program's own file: {err}")))?;
    let program = own.with_file_name(rundir::PROGRAM);
    match program.is_file() {
        true => Ok(program),
        false => Err(Failure::new(format!(
            "there is no {}: a machine that stays needs it beside tine, so copy both",
            program.display()
        ))),
    }
}
