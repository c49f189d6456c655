//! The controller's thread: takes one command after another until the machine is over.

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tine_devices::mmds::Mmds;
use tine_guest_agent::refresh::Refresh;
use tine_jailer::seccomp::Role;

use super::command::{Command, Refusal};
use super::deletion::{Deletion, Times};
use super::files::{self, Files, Jobs};
use super::fold::Folding;
use super::fork::HandingOut;
use super::handle::{Handle, Identity, Shared};
use super::recorder::{self, RecordError, Recorder};
use super::settings::{Change, LoggerSettings, MetricsSettings, MmdsSettings, Settings};
use super::snapshot::Writing;
use super::state::State;
use crate::machine::Machine;
use crate::threads::Starter;

/// How often usage is recorded while guest code runs: what a sudden end of the host loses at most.
const METERING: Duration = Duration::from_secs(60);

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
    pub(super) shared: Arc<Shared>,
    pub(super) commands: Receiver<Command>,
    pub(super) settings: Settings,
    pub(super) machine: Option<Machine>,
    pub(super) recorder: Recorder,
    pub(super) metrics: Option<(File, MetricsSettings)>,
    /// The guest was asked to end or reboot.
    pub(super) asked_to_end: bool,
    /// When a guest that was asked to switch itself off is ended.
    pub(super) patience: Option<Instant>,
    pub(super) metered: Instant,
    /// How often the machine's line was restored or forked.
    pub(super) generation: u64,
    /// What the agent of a restored guest is told as soon as that runs.
    pub(super) refresh: Option<Refresh>,
    /// The last snapshot.
    pub(super) writing: Option<Writing>,
    /// Layers of its disks being made one.
    pub(super) folding: Option<Folding>,
    /// Sockets at which others take copies of the machine.
    pub(super) handing_out: Vec<HandingOut>,
    /// What the thread for files is to do, until it is there.
    jobs: Option<Jobs>,
    /// This thread can make no machine any more.
    pub(super) confined: bool,
    /// Starts the threads that it needs then.
    pub(super) starter: Starter,
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
        let (files, jobs) = Files::new();
        let shared = Shared::new(identity, deletion, metadata, files, sender);
        let handle = Handle(shared.clone());
        let controller = Self {
            shared,
            commands,
            jobs: Some(jobs),
            settings: Settings::default(),
            machine: None,
            recorder: Recorder::default(),
            metrics: None,
            asked_to_end: false,
            patience: None,
            metered: Instant::now(),
            generation: 0,
            refresh: None,
            writing: None,
            folding: None,
            handing_out: Vec::new(),
            confined: false,
            starter: Starter::default(),
        };
        Ok(Ok((controller, handle)))
    }

    /// Works until the machine is over.
    pub fn run(mut self, plan: StartPlan) -> Result<Outcome, Refusal> {
        if let Some(jobs) = self.jobs.take() {
            let serve = move || files::serve(&jobs);
            let thread = self.starter.spawn("files", Role::Worker, serve);
            thread.map_err(|err| Refusal::failed("start a thread", err))?;
        }
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

    pub(super) fn state(&self) -> State {
        self.shared.status.borrow().state
    }

    pub(super) fn record(&mut self, event: &str, reason: Option<&str>) {
        self.metered = Instant::now();
        if !self.recorder.is_on() {
            return;
        }
        let figures = Handle(self.shared.clone()).figures();
        self.recorder.record(event, reason, figures, None);
    }

    pub(super) fn publish_settings(&self) {
        let settings = Arc::new(self.settings.clone());
        self.shared
            .status
            .send_modify(|status| status.settings = settings);
    }

    pub(super) fn before_start(&self) -> Result<(), Refusal> {
        match self.state() {
            State::Created if self.confined => Err(Refusal::failed(
                "make a machine",
                "the process has given up the rights for it with the one before: start a new one",
            )),
            State::Created => Ok(()),
            State::Deleting | State::Deleted => Err(Refusal::Busy("delete")),
            _ => Err(Refusal::AfterStart),
        }
    }

    pub(super) fn started(&self) -> Result<&Machine, Refusal> {
        match self.state() {
            State::Deleting | State::Deleted => Err(Refusal::Busy("delete")),
            _ => self.machine.as_ref().ok_or(Refusal::BeforeStart),
        }
    }
}
