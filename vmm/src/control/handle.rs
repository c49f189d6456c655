//! The controller as others see it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use tine_devices::bus::lock;
use tine_devices::mmds::Mmds;
use tokio::sync::{oneshot, watch};

use super::access::Figures;
use super::command::{Command, Lifecycle, Refusal, Reply};
use super::deletion::{Deletion, Times};
use super::events::{Event, EventStream, Events};
use super::files::Files;
use super::fork::{ForkRequest, Forked};
use super::metrics::Counters;
use super::refresh::GuestIdentity;
use super::restore::RestoreRequest;
use super::settings::{Change, DrivePatch, LoggerSettings, MetricsSettings};
use super::snapshot::{SnapshotRequest, Taken};
use super::state::{State, Status};
use super::working_set::Recorded;

/// What names a machine.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its id.
    pub id: String,
    /// Where its records are.
    pub run_dir: Option<PathBuf>,
}

/// What the controller and everybody else share.
pub(super) struct Shared {
    pub identity: Identity,
    pub status: watch::Sender<Status>,
    pub events: Events,
    pub deletion: Deletion,
    pub counters: Counters,
    pub metadata: Mmds,
    /// What had been used when the deletion was accepted.
    pub frozen: Mutex<Option<Figures>>,
    /// Touches files for others.
    pub files: Files,
    commands: mpsc::Sender<Command>,
    /// The change that goes on.
    change: Mutex<Option<&'static str>>,
}

impl Shared {
    pub fn new(
        identity: Identity,
        deletion: Deletion,
        metadata: Mmds,
        files: Files,
        commands: mpsc::Sender<Command>,
    ) -> Arc<Self> {
        Arc::new(Self {
            identity,
            status: watch::Sender::new(Status::new()),
            events: Events::default(),
            deletion,
            counters: Counters::default(),
            metadata,
            frozen: Mutex::default(),
            files,
            commands,
            change: Mutex::default(),
        })
    }

    /// Tells the controller something. It is gone only when the process ends.
    pub fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Publishes a state, if the machine may go there, and tells the subscribers.
    pub fn go(&self, next: State, reason: Option<String>) -> bool {
        self.go_with(next, reason, |_| {})
    }

    /// The same, with other news published in the same moment.
    pub fn go_with(
        &self,
        next: State,
        reason: Option<String>,
        news: impl FnOnce(&mut Status),
    ) -> bool {
        let mut moved = None;
        self.status.send_modify(|status| {
            if status.go(next, reason) {
                moved = Some(status.reason.clone());
            }
            news(status);
        });
        let Some(reason) = moved else { return false };
        self.events.publish(&Event::state(next, reason));
        true
    }

    /// Begins a change of the machine's life.
    fn begin(self: &Arc<Self>, name: &'static str) -> Result<Permit, Refusal> {
        if self.deletion.times().is_some() {
            return Err(Refusal::Busy("delete"));
        }
        let mut change = lock(&self.change);
        if let Some(first) = *change {
            return Err(Refusal::Busy(first));
        }
        *change = Some(name);
        Ok(Permit(self.clone()))
    }
}

/// The right to change the machine's life, until it is dropped.
pub(super) struct Permit(Arc<Shared>);

impl Drop for Permit {
    fn drop(&mut self) {
        *lock(&self.0.change) = None;
    }
}

/// The answer to a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// When it was accepted.
    pub times: Times,
    /// It has been recorded in the run directory.
    pub durable: bool,
}

/// What others can ask of a machine. Clones are the same machine's.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Shared>);

impl Handle {
    /// What names the machine.
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// The run directory.
    pub fn run_dir(&self) -> Option<&Path> {
        self.0.identity.run_dir.as_deref()
    }

    /// What is known of the machine now.
    pub fn status(&self) -> Status {
        self.0.status.borrow().clone()
    }

    /// Looks at what is known without copying it.
    pub fn look<T>(&self, at: impl FnOnce(&Status) -> T) -> T {
        at(&self.0.status.borrow())
    }

    /// Follows what is known.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.0.status.subscribe()
    }

    /// Follows what happens.
    pub fn events(&self) -> EventStream {
        self.0.events.subscribe()
    }

    /// Tells those who follow.
    pub fn publish(&self, event: &Event) {
        self.0.events.publish(event);
    }

    /// Counters of the API.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// The metadata store.
    pub fn metadata(&self) -> &Mmds {
        &self.0.metadata
    }

    /// What the machine has used; it stands still once a deletion has been accepted.
    pub fn figures(&self) -> Figures {
        let frozen = *lock(&self.0.frozen);
        frozen.unwrap_or_else(|| self.look(|status| Figures::now(status.access.as_ref())))
    }

    /// The deletion, if it has been accepted.
    pub fn deletion(&self) -> Option<Times> {
        self.0.deletion.times()
    }

    /// Changes the settings.
    pub async fn configure(&self, change: Change) -> Result<(), Refusal> {
        self.ask(|reply| Command::Configure(Box::new(change), reply))
            .await
    }

    /// Sets up the log.
    pub async fn set_logger(&self, settings: LoggerSettings) -> Result<(), Refusal> {
        self.ask(|reply| Command::Logger(settings, reply)).await
    }

    /// Sets up the metrics file.
    pub async fn set_metrics(&self, settings: MetricsSettings) -> Result<(), Refusal> {
        self.ask(|reply| Command::Metrics(settings, reply)).await
    }

    /// Writes a line to the metrics file.
    pub async fn flush_metrics(&self) -> Result<(), Refusal> {
        self.ask(Command::FlushMetrics).await
    }

    /// Changes the machine's life. Once begun it goes on, whether or not anybody waits for it.
    pub async fn change(&self, what: Lifecycle) -> Result<(), Refusal> {
        let permit = self.0.begin(what.word())?;
        self.ask(|reply| Command::Change(what, permit, reply)).await
    }

    /// Takes a snapshot, and answers when it is whole and durable. Once begun it goes on, whether
    /// or not anybody waits for it.
    pub async fn snapshot(&self, request: SnapshotRequest) -> Result<Taken, Refusal> {
        let permit = self.0.begin("snapshot")?;
        let (reply, answer) = oneshot::channel();
        self.0.tell(Command::Snapshot(request, permit, reply));
        answer.await.unwrap_or(Err(Refusal::Gone))
    }

    /// Makes copies of the machine ready to be taken by other processes, and answers when they can
    /// be. The machine goes on.
    pub async fn fork(&self, request: ForkRequest) -> Result<Forked, Refusal> {
        let permit = self.0.begin("fork")?;
        let (reply, answer) = oneshot::channel();
        self.0.tell(Command::Fork(request, permit, reply));
        answer.await.unwrap_or(Err(Refusal::Gone))
    }

    /// Makes the machine of a snapshot.
    pub async fn restore(&self, request: RestoreRequest) -> Result<(), Refusal> {
        let permit = self.0.begin("restore")?;
        self.ask(|reply| Command::Restore(Box::new(request), permit, reply))
            .await
    }

    /// Writes down what the machine has touched of the snapshot that it was made of.
    pub async fn record_working_set(&self, path: PathBuf) -> Result<Recorded, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.0.tell(Command::RecordWorkingSet(path, reply));
        answer.await.unwrap_or(Err(Refusal::Gone))
    }

    /// Tells the agent of a restored or forked guest, which runs, the time and random numbers of now,
    /// and what of the guest becomes another one.
    pub async fn refresh(&self, identity: GuestIdentity) -> Result<(), Refusal> {
        let permit = self.0.begin("refresh")?;
        self.ask(|reply| Command::Refresh(Box::new(identity), permit, reply))
            .await
    }

    /// Changes a drive of a running machine.
    pub async fn update_drive(&self, patch: DrivePatch) -> Result<(), Refusal> {
        self.ask(|reply| Command::Drive(patch, reply)).await
    }

    /// Asks the guest to reboot.
    pub async fn ctrl_alt_del(&self) -> Result<(), Refusal> {
        self.ask(Command::CtrlAltDel).await
    }

    /// Accepts the deletion of the machine. When this returns it is recorded durably, if there is
    /// a run directory; the release follows.
    pub async fn delete(&self) -> Result<Accepted, Refusal> {
        let shared = self.0.clone();
        let figures = self.figures();
        let accepted = self.0.files.run(move || {
            let (times, first) = shared.deletion.accept()?;
            if first {
                *lock(&shared.frozen) = Some(figures);
                shared.go(State::Deleting, None);
                shared.tell(Command::Release);
            }
            let durable = shared.deletion.is_durable();
            Ok::<_, std::io::Error>(Accepted { times, durable })
        });
        let accepted = accepted.await?;
        accepted.map_err(|err| Refusal::failed("record the deletion durably", err))
    }

    /// Has a thread look at files, which may take as long as the disk does.
    pub(crate) async fn look_at_files<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.0.files.run(look).await
    }

    /// Publishes a state that no machine has.
    #[cfg(any(test, feature = "testing"))]
    pub fn pretend(&self, state: State, reason: Option<String>) {
        self.0.go(state, reason);
    }

    /// The process has been asked to end.
    pub fn signal(&self, number: i32) {
        self.0.tell(Command::Signal(number));
    }

    async fn ask(&self, command: impl FnOnce(Reply) -> Command) -> Result<(), Refusal> {
        let (reply, answer) = oneshot::channel();
        self.0.tell(command(reply));
        answer.await.unwrap_or(Err(Refusal::Gone))
    }
}
