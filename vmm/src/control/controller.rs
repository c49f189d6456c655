//! The controller's thread: takes one command after another until the machine is over.

use std::fs::File;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use tine_devices::mmds::Mmds;
use tine_guest_agent::status::ShutdownAction;

use super::access::{Access, Figures};
use super::command::{Command, Lifecycle, Refusal, Reply};
use super::deletion::{Deletion, Times};
use super::handle::{Handle, Identity, Shared};
use super::recorder::{self, RecordError, Recorder};
use super::settings::{
    Change, DrivePatch, LoggerSettings, MetricsSettings, MmdsSettings, Settings,
};
use super::state::State;
use super::{metrics, settings};
use crate::agent::{Agent, Hellos};
use crate::config::MetadataConfig;
use crate::logger::{self, Level};
use crate::machine::Machine;
use crate::vcpu::Ending;

/// How often usage is recorded while guest code runs: what a sudden end of the host loses at most.
const METERING: Duration = Duration::from_secs(60);
/// How long a guest may take to write its disks and switch itself off when the process is told
/// to end.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(20);

/// How a machine's life ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// By its guest in good order, or because the process was told to end.
    Ended,
    /// By a crash of its guest.
    Failed(String),
    /// By a deletion.
    Deleted,
}

/// What a controller does before it takes commands.
#[derive(Debug, Default)]
pub struct StartPlan {
    /// Settings to begin with.
    pub settings: Settings,
    /// Start the machine at once.
    pub start: bool,
    /// The log.
    pub logger: Option<LoggerSettings>,
    /// The metrics file.
    pub metrics: Option<MetricsSettings>,
    /// The guest's way to the metadata store.
    pub mmds: Option<MmdsSettings>,
}

/// The owner of the machine.
pub struct Controller {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    settings: Settings,
    machine: Option<Machine>,
    recorder: Recorder,
    metrics: Option<(File, MetricsSettings)>,
    /// The guest was asked to end or reboot.
    asked_to_end: bool,
    /// When a guest that was asked to switch itself off is ended.
    patience: Option<Instant>,
    metered: Instant,
}

impl Controller {
    /// A controller without a machine, and the first handle to it. `Err` with the times when the
    /// run directory says that its machine was deleted: that is then finished, and nothing runs.
    pub fn new(
        identity: Identity,
        metadata: Mmds,
    ) -> Result<Result<(Self, Handle), Times>, RecordError> {
        let run_dir = identity.run_dir.clone();
        let failed = |source| RecordError {
            path: run_dir.clone().unwrap_or_default(),
            source,
        };
        let deletion = Deletion::of(run_dir.as_deref()).map_err(failed)?;
        if let Some(times) = recorder::finish(&deletion, run_dir.as_deref())? {
            return Ok(Err(times));
        }
        let (sender, commands) = mpsc::channel();
        let shared = Shared::new(identity, deletion, metadata, sender);
        let handle = Handle(shared.clone());
        let controller = Self {
            shared,
            commands,
            settings: Settings::default(),
            machine: None,
            recorder: Recorder::default(),
            metrics: None,
            asked_to_end: false,
            patience: None,
            metered: Instant::now(),
        };
        Ok(Ok((controller, handle)))
    }

    /// Works until the machine is over.
    pub fn run(mut self, plan: StartPlan) -> Result<Outcome, Refusal> {
        let run_dir = self.shared.identity.run_dir.clone();
        self.recorder = Recorder::open(run_dir.as_deref())
            .map_err(|err| Refusal::failed("keep records", err))?;
        self.record(State::Created.word(), None);
        self.settings = plan.settings;
        self.publish_settings();
        if let Some(logger) = plan.logger {
            self.set_logger(logger)?;
        }
        if let Some(metrics) = plan.metrics {
            self.set_metrics(metrics)?;
        }
        if let Some(mmds) = plan.mmds {
            self.configure(Change::Mmds(mmds))?;
        }
        if plan.start {
            self.start()?;
        }
        loop {
            let Some(command) = self.next() else { continue };
            if let Some(outcome) = self.carry_out(command) {
                // Parts of the machine end before anybody is told that it is over.
                return Ok(outcome);
            }
        }
    }

    /// The next command; `None` when only time has passed.
    fn next(&mut self) -> Option<Command> {
        let metering = self.machine.is_some().then_some(self.metered + METERING);
        let until = match (metering, self.patience) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let Some(until) = until else {
            return self.commands.recv().ok();
        };
        let left = until.saturating_duration_since(Instant::now());
        match self.commands.recv_timeout(left) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) if self.patience.is_some_and(|at| at <= until) => {
                Some(Command::Signal(0))
            }
            Err(_) => {
                self.record("usage", None);
                None
            }
        }
    }

    fn carry_out(&mut self, command: Command) -> Option<Outcome> {
        let answer = |reply: Reply, result: Result<(), Refusal>| {
            if let Err(refusal) = &result {
                logger::log(Level::Error, refusal);
            }
            // The one who asked may have gone away.
            let _ = reply.send(result);
            None
        };
        match command {
            Command::Configure(change, reply) => answer(reply, self.configure(*change)),
            Command::Logger(settings, reply) => answer(reply, self.set_logger(settings)),
            Command::Metrics(settings, reply) => answer(reply, self.set_metrics(settings)),
            Command::FlushMetrics(reply) => answer(reply, self.flush_metrics()),
            Command::Change(what, permit, reply) => {
                let result = match what {
                    Lifecycle::Start => self.start(),
                    Lifecycle::Pause => self.pause(),
                    Lifecycle::Resume => self.resume(),
                };
                // Before the answer: who has it may begin the next change.
                drop(permit);
                answer(reply, result)
            }
            Command::Drive(patch, reply) => answer(reply, self.update_drive(&patch)),
            Command::CtrlAltDel(reply) => answer(reply, self.ctrl_alt_del()),
            Command::Hello(hello) => {
                let paused = self.state() == State::Paused;
                let next = if paused {
                    State::Paused
                } else {
                    State::Running
                };
                let moved = self.shared.go_with(next, None, |status| {
                    status.agent = Some(*hello);
                });
                if moved {
                    self.record(next.word(), None);
                }
                None
            }
            Command::BadHello(reason) => {
                logger::log(Level::Warning, &reason);
                self.shared.status.send_modify(|status| {
                    if status.state == State::Starting {
                        status.reason = Some(reason);
                    }
                });
                None
            }
            Command::Release => Some(self.release()),
            Command::Ended(ending) => Some(self.ended(&ending)),
            Command::Signal(number) => self.signal(number),
        }
    }

    fn state(&self) -> State {
        self.shared.status.borrow().state
    }

    fn record(&mut self, event: &str, reason: Option<&str>) {
        self.metered = Instant::now();
        if !self.recorder.is_on() {
            return;
        }
        let figures = Handle(self.shared.clone()).figures();
        self.recorder.record(event, reason, figures, None);
    }

    fn publish_settings(&self) {
        let settings = Arc::new(self.settings.clone());
        self.shared
            .status
            .send_modify(|status| status.settings = settings);
    }

    fn before_start(&self) -> Result<(), Refusal> {
        match self.state() {
            State::Created => Ok(()),
            State::Deleting | State::Deleted => Err(Refusal::Busy("delete")),
            _ => Err(Refusal::AfterStart),
        }
    }

    fn started(&self) -> Result<&Machine, Refusal> {
        match self.state() {
            State::Deleting | State::Deleted => Err(Refusal::Busy("delete")),
            _ => self.machine.as_ref().ok_or(Refusal::BeforeStart),
        }
    }

    fn configure(&mut self, change: Change) -> Result<(), Refusal> {
        self.before_start()?;
        if let Change::Mmds(mmds) = &change {
            let mut trial = self.settings.clone();
            trial.apply(change.clone())?;
            let refused = |err| settings::BadSettings::new(err);
            self.shared
                .metadata
                .configure(mmds.config())
                .map_err(refused)?;
        }
        self.settings.apply(change)?;
        self.publish_settings();
        Ok(())
    }

    fn set_logger(&mut self, settings: LoggerSettings) -> Result<(), Refusal> {
        self.before_start()?;
        let path = settings.log_path.as_deref();
        logger::configure(path, settings.level, settings.show_level)
            .map_err(|err| Refusal::failed("write the log", err))?;
        self.settings.logger = Some(settings);
        self.publish_settings();
        Ok(())
    }

    fn set_metrics(&mut self, settings: MetricsSettings) -> Result<(), Refusal> {
        self.before_start()?;
        if self.metrics.is_some() {
            return Err(Refusal::failed("set up metrics", "they are set up already"));
        }
        let file = logger::open(&settings.metrics_path)
            .map_err(|err| Refusal::failed("open the metrics file", err))?;
        self.metrics = Some((file, settings.clone()));
        self.settings.metrics = Some(settings);
        self.publish_settings();
        Ok(())
    }

    fn flush_metrics(&mut self) -> Result<(), Refusal> {
        self.started()?;
        let Some((file, settings)) = &mut self.metrics else {
            return Err(Refusal::failed("flush metrics", "no metrics file is set"));
        };
        let handle = Handle(self.shared.clone());
        metrics::write_line(file, settings, &handle)
            .map_err(|err| Refusal::failed("flush metrics", err))
    }

    fn start(&mut self) -> Result<(), Refusal> {
        self.before_start()?;
        let mut config = self.settings.machine_config()?;
        config.metadata = self.settings.mmds.as_ref().map(|mmds| MetadataConfig {
            store: self.shared.metadata.clone(),
            interfaces: mmds.network_interfaces.clone(),
        });
        self.shared.go(State::Starting, None);
        let result = self.assemble(&config);
        if result.is_err() {
            // The same process can be told better.
            self.shared.go(State::Created, None);
        }
        result?;
        self.record(State::Starting.word(), None);
        Ok(())
    }

    fn assemble(&mut self, config: &crate::config::MachineConfig) -> Result<(), Refusal> {
        let ended = self.shared.clone();
        let machine = Machine::assemble(config, move |ending| ended.tell(Command::Ended(ending)))
            .map_err(Box::new)?;
        listen_for_agent(&machine, self.shared.clone())?;
        if self.shared.deletion.times().is_some() {
            return Err(Refusal::Busy("delete"));
        }
        let access = Access::to(&machine);
        self.shared
            .status
            .send_modify(|status| status.access = Some(access));
        machine.resume();
        self.machine = Some(machine);
        Ok(())
    }

    fn pause(&mut self) -> Result<(), Refusal> {
        self.started()?.pause();
        if self.shared.go(State::Paused, None) {
            self.record(State::Paused.word(), None);
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<(), Refusal> {
        let machine = self.started()?;
        if self.state() != State::Paused {
            return Ok(());
        }
        let answered = self.shared.status.borrow().agent.is_some();
        let next = if answered {
            State::Running
        } else {
            State::Starting
        };
        machine.resume();
        if self.shared.go(next, None) {
            self.record(next.word(), None);
        }
        Ok(())
    }

    fn update_drive(&mut self, patch: &DrivePatch) -> Result<(), Refusal> {
        self.started()?;
        let drive = self
            .settings
            .drives
            .iter_mut()
            .find(|drive| drive.drive_id == patch.drive_id);
        let drive = drive.ok_or_else(|| {
            settings::BadSettings::new(format_args!("there is no drive {:?}", patch.drive_id))
        })?;
        let machine = self.machine.as_ref().ok_or(Refusal::BeforeStart)?;
        let failed = |err| Refusal::failed("change the drive", err);
        let mut next = drive.clone();
        if let Some(path) = &patch.path_on_host {
            next.path_on_host = path.clone();
        }
        // Without a new limit the image is looked at again, in case its size has changed.
        if patch.path_on_host.is_some() || patch.rate_limiter.is_none() {
            machine
                .replace_drive(&next.block_config())
                .map_err(failed)?;
        }
        if let Some(limits) = &patch.rate_limiter {
            let id = &patch.drive_id;
            machine.limit_drive(id, limits).map_err(failed)?;
            let known = next.rate_limiter.get_or_insert_default();
            known.bandwidth = limits.bandwidth.or(known.bandwidth);
            known.ops = limits.ops.or(known.ops);
        }
        *drive = next;
        self.publish_settings();
        Ok(())
    }

    fn ctrl_alt_del(&mut self) -> Result<(), Refusal> {
        self.started()?;
        match self.state() {
            State::Running => self.ask_guest(ShutdownAction::Reboot),
            state => Err(Refusal::failed(
                "send Ctrl-Alt-Del",
                format_args!(
                    "there is no keyboard, it is the agent that is told, and the machine is {state}"
                ),
            )),
        }
    }

    /// Asks the guest to end in good order. It is hostile: nobody waits for its answer here.
    fn ask_guest(&mut self, action: ShutdownAction) -> Result<(), Refusal> {
        let agent = Agent::new(self.started()?.vsock().clone());
        let ask = move || {
            if let Err(err) = agent.shut_down(action) {
                logger::log(Level::Warning, err);
            }
        };
        let thread = thread::Builder::new().name("shutdown".to_owned());
        let thread = thread.spawn(ask);
        thread.map_err(|err| Refusal::failed("start a thread", err))?;
        self.asked_to_end = true;
        Ok(())
    }

    /// Ends in good order: a guest that may have something to write is asked to, once.
    fn signal(&mut self, number: i32) -> Option<Outcome> {
        let writes = self.settings.drives.iter().any(|drive| !drive.is_read_only);
        let ask = self.patience.is_none() && writes && self.state() == State::Running;
        if ask && self.ask_guest(ShutdownAction::Poweroff).is_ok() {
            self.patience = Some(Instant::now() + POWER_OFF_PATIENCE);
            return None;
        }
        let reason = match number {
            0 => "the guest did not switch itself off in time".to_owned(),
            number => format!("the process got signal {number}"),
        };
        Some(self.over(State::Ended, &reason))
    }

    fn ended(&mut self, ending: &Ending) -> Outcome {
        let panic = self.machine.as_ref().and_then(panic_line);
        let (state, reason) = match (ending, panic) {
            (Ending::Reset, Some(line)) if !self.asked_to_end => (
                State::Failed,
                format!("the guest's kernel panicked: {line}"),
            ),
            (Ending::PowerOff | Ending::Reset, _) => (State::Ended, ending.to_string()),
            _ => (State::Failed, ending.to_string()),
        };
        self.over(state, &reason)
    }

    fn over(&mut self, state: State, reason: &str) -> Outcome {
        logger::log(Level::Info, reason);
        if self.shared.deletion.times().is_some() {
            return self.release();
        }
        let figures = Handle(self.shared.clone()).figures();
        self.shared.go(state, Some(reason.to_owned()));
        self.machine = None;
        self.recorder
            .record(state.word(), Some(reason), figures, None);
        match state {
            State::Failed => Outcome::Failed(reason.to_owned()),
            _ => Outcome::Ended,
        }
    }

    /// Releases everything after a deletion was accepted.
    fn release(&mut self) -> Outcome {
        let figures: Figures = Handle(self.shared.clone()).figures();
        let accepted = self.shared.deletion.times();
        self.recorder
            .record(State::Deleting.word(), None, figures, accepted);
        self.machine = None;
        match self.shared.deletion.release() {
            Ok(times) => {
                self.recorder
                    .record(State::Deleted.word(), None, figures, Some(times));
            }
            Err(err) => logger::log(
                Level::Error,
                format_args!("cannot record the release: {err}"),
            ),
        }
        self.shared.go(State::Deleted, None);
        Outcome::Deleted
    }
}

/// The line of the guest's console that tells of a kernel panic.
fn panic_line(machine: &Machine) -> Option<String> {
    let lines = machine.console_tail().lines(200);
    lines.iter().rev().find_map(|line| {
        let at = line.find("Kernel panic")?;
        Some(line[at..].chars().take(200).collect())
    })
}

/// Waits for the agent on a thread of its own, which lives as long as the process.
fn listen_for_agent(machine: &Machine, shared: Arc<Shared>) -> Result<(), Refusal> {
    let hellos = Hellos::listen(machine.vsock())
        .map_err(|err| Refusal::failed("listen for the agent", err))?;
    let wait = move || {
        // A guest that announces nonsense again and again is told of once.
        let nonsense = Once::new();
        loop {
            match hellos.next() {
                Ok((hello, connection)) => {
                    shared.tell(Command::Hello(Box::new(hello)));
                    // The agent keeps it open for as long as it lives, and so does this side.
                    let _ = std::io::copy(&mut &connection, &mut std::io::sink());
                }
                Err(crate::agent::AgentError::Connect(_)) => return,
                Err(err) => nonsense.call_once(|| {
                    shared.tell(Command::BadHello(err.to_string()));
                }),
            }
        }
    };
    let thread = thread::Builder::new().name("hello".to_owned()).spawn(wait);
    thread
        .map(drop)
        .map_err(|err| Refusal::failed("start a thread", err))
}
