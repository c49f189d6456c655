//! `tine run -d`: a machine in a process of its own, which stays when this one ends.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use tine::client::{Error, Machine};
use tine::config::{ConsoleConfig, MachineConfig};

use super::config::{keep_console, local, remote};
use super::{Args, Failure};
use crate::cli::rundir::{CONSOLE, LOG, SOCKET};
use crate::cli::session::Signals;
use crate::cli::timing::Timing;
use crate::cli::{exit, output, rundir};

/// How long a machine may take until it is running, when nothing else is said.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between looks for the process's socket.
const LOOK: Duration = Duration::from_millis(1);
/// Lines of the console, or of the process's own output, that a failure shows.
const LINES: usize = 12;
/// The request id of the command that the machine is started with.
const MAIN: &str = "main";

/// Starts the machine; the result is the status to exit with.
pub async fn start(args: Args) -> Result<u8, Failure> {
    let mut timing = Timing::start(args.timing);
    let mut config = local(&args).map_err(|err| Failure::new(err.to_string()))?;
    config
        .check()
        .map_err(|err| Failure::new(err.to_string()))?;
    if config.console == ConsoleConfig::Stdout {
        return Err(Failure::usage(
            "a machine that stays has no standard output: leave --console out, and use `tine logs`",
        ));
    }
    let program = program()?;
    let id = args.name.clone().unwrap_or_else(rundir::new_id);
    let mut signals = Signals::watch()?;
    let dir = rundir::create(&id)?;
    keep_console(&mut config, args.console.is_some(), &dir.join(CONSOLE));
    let mut start = Start {
        id,
        dir,
        config,
        args,
        process: None,
    };
    let started = tokio::select! {
        started = start.bring_up(&program, &mut timing) => started,
        number = signals.ending() => Err(Failure::signal(number)),
    };
    if started.is_err() {
        start.clean_up();
    }
    let status = started?;
    output::print(&start.words())?;
    Ok(status)
}

/// `tine-vmm`, which stands beside this program.
fn program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|err| Failure::new(format!("cannot find this program's own file: {err}")))?;
    let program = own.with_file_name("tine-vmm");
    match program.is_file() {
        true => Ok(program),
        false => Err(Failure::new(format!(
            "there is no {}: a machine that stays needs it beside tine, so copy both",
            program.display()
        ))),
    }
}

/// A machine on its way up.
struct Start {
    id: String,
    dir: PathBuf,
    config: MachineConfig,
    args: Args,
    process: Option<Child>,
}

impl Start {
    async fn bring_up(&mut self, program: &Path, timing: &mut Timing) -> Result<u8, Failure> {
        // Held while this goes on, so that nobody takes the directory for a dead machine's.
        let lock = File::open(&self.dir);
        let lock = lock.map_err(|err| self.failure(&err.to_string()))?;
        let _ = flock(&lock, FlockOperation::LockShared);
        self.spawn(program)?;
        let machine = self.connect().await?;
        timing.phase("process");
        let config = remote(&self.config).map_err(|err| self.failure(&err.to_string()))?;
        let failed = |this: &Self, err: Error| this.failure(&err.to_string());
        if let Err(err) = machine.put("/v1/config", &config).await {
            return Err(failed(self, err));
        }
        let action = json!({ "action_type": "InstanceStart" });
        if let Err(err) = machine.put("/actions", &action).await {
            return Err(failed(self, err));
        }
        timing.phase("first guest instruction");
        if self.args.no_wait {
            return Ok(0);
        }
        let limit = self.args.timeout.unwrap_or(PATIENCE);
        match machine.wait_until_running(limit).await {
            Ok(_) => timing.phase("kernel to agent"),
            Err(Error::Refused { status: 408, .. }) => {
                let mut failure = self.failure(&format!("it was not running within {limit:?}"));
                failure.status = exit::TIMED_OUT;
                return Err(failure);
            }
            Err(err) => return Err(failed(self, err)),
        }
        if self.args.command.is_empty() {
            return Ok(0);
        }
        self.run_command(&machine).await
    }

    fn spawn(&mut self, program: &Path) -> Result<(), Failure> {
        let log = self.dir.join(LOG);
        let failed =
            |err: io::Error| Failure::new(format!("cannot start {}: {err}", program.display()));
        let out = File::create(&log).map_err(failed)?;
        let mut command = Command::new(program);
        command
            .arg("--api-sock")
            .arg(self.dir.join(SOCKET))
            .args(["--id", &self.id])
            .arg("--run-dir")
            .arg(&self.dir)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out);
        // SAFETY: setsid is a system call that allocates nothing and takes no lock. In a session of
        // its own the process hears nothing of this terminal's keys and end.
        unsafe {
            command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
        }
        self.process = Some(command.spawn().map_err(failed)?);
        Ok(())
    }

    /// Waits until the process answers.
    async fn connect(&mut self) -> Result<Machine, Failure> {
        loop {
            match Machine::connect(self.dir.join(SOCKET)).await {
                Ok(machine) => return Ok(machine),
                Err(err) if err.is_gone() => {}
                Err(err) => return Err(self.failure(&err.to_string())),
            }
            let ended = self.process.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                return Err(self.failure(&format!("its process ended at once, {status}")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn run_command(&self, machine: &Machine) -> Result<u8, Failure> {
        let mut request = self.args.place.request(&self.args.command);
        request.request_id = MAIN.to_owned();
        let failed = |err: Error| self.failure(&err.to_string());
        let mut exec = machine.exec(request).await.map_err(failed)?;
        if exec.started().await.is_some() {
            return Ok(0);
        }
        let record = exec.wait().await.map_err(failed)?;
        match exit::status(&record) {
            0 => Ok(0),
            status => Err(Failure {
                status,
                words: String::new(),
            }),
        }
    }

    /// What went wrong, with what the process and the guest said last.
    fn failure(&self, why: &str) -> Failure {
        let mut words = format!("machine {}: {why}", self.id);
        for (name, from) in [(LOG, "process"), (CONSOLE, "console")] {
            let text = fs::read(self.dir.join(name)).unwrap_or_default();
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

    /// Leaves nothing behind.
    fn clean_up(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }

    fn words(&self) -> String {
        if !self.args.json {
            return format!("{}\n", self.id);
        }
        output::pretty(&json!({
            "id": self.id,
            "run_dir": self.dir,
            "socket": self.dir.join(SOCKET),
            "pid": self.process.as_ref().map(Child::id),
            "request_id": (!self.args.command.is_empty()).then_some(MAIN),
        }))
    }
}
