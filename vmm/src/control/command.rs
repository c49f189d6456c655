//! What the controller can be told, and how it refuses.

use std::path::PathBuf;

use tine_guest_agent::hello::Hello;
use tokio::sync::oneshot;

use super::disk_snapshot::Frozen;
use super::fork::{ForkReply, ForkRequest, HandingOut};
use super::handle::Permit;
use super::refresh::GuestIdentity;
use super::restore::RestoreRequest;
use super::settings::{BadSettings, Change, DrivePatch, LoggerSettings, MetricsSettings};
use super::snapshot::{SnapshotReply, SnapshotRequest};
use super::state::State;
use super::working_set::RecordReply;
use crate::machine::MachineError;
use crate::vcpu::Ending;

/// A change of a machine's life. One at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    /// Assemble the machine and let its guest run.
    Start,
    /// Take its vCPUs out of guest code.
    Pause,
    /// Let them run again.
    Resume,
}

impl Lifecycle {
    /// The word for it in messages.
    pub fn word(self) -> &'static str {
        match self {
            Lifecycle::Start => "start",
            Lifecycle::Pause => "pause",
            Lifecycle::Resume => "resume",
        }
    }
}

/// Why a command was not carried out. The machine is as it was.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Another change is going on.
    #[error("a {0} is going on: try again when it is done")]
    Busy(&'static str),
    /// Only before the start.
    #[error("the requested operation is not supported after starting the machine")]
    AfterStart,
    /// Only after the start.
    #[error("the requested operation is not supported before starting the machine")]
    BeforeStart,
    /// The machine is not in a state for it.
    #[error("the machine is {0}")]
    State(State),
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] BadSettings),
    /// The machine could not be made.
    #[error("cannot start the machine: {0}")]
    Start(#[from] Box<MachineError>),
    /// It could not be done.
    #[error("cannot {action}: {reason}")]
    Failed {
        /// What was asked for.
        action: &'static str,
        /// Why not.
        reason: String,
    },
    /// The process ends.
    #[error("the machine's process is ending")]
    Gone,
}

impl Refusal {
    /// Something could not be done.
    pub(super) fn failed(action: &'static str, reason: impl std::fmt::Display) -> Self {
        let reason = reason.to_string();
        Refusal::Failed { action, reason }
    }
}

/// Where the answer to a command goes.
pub(super) type Reply = oneshot::Sender<Result<(), Refusal>>;

/// What the controller is told.
pub(super) enum Command {
    /// Change the settings.
    Configure(Box<Change>, Reply),
    /// Set up the log.
    Logger(LoggerSettings, Reply),
    /// Set up the metrics file.
    Metrics(MetricsSettings, Reply),
    /// Write a line to the metrics file.
    FlushMetrics(Reply),
    /// Change the machine's life.
    Change(Lifecycle, Permit, Reply),
    /// Take a snapshot.
    Snapshot(SnapshotRequest, Permit, SnapshotReply),
    /// Hand the machine out to other processes.
    Fork(ForkRequest, Permit, ForkReply),
    /// It can be taken.
    HandingOut(HandingOut),
    /// The guest's file systems hold still for a snapshot of the disks, or do not.
    Frozen(Box<Frozen>),
    /// A snapshot is there, or could not be written.
    Snapshotted {
        /// It is there.
        whole: bool,
        /// The machine was to end with it.
        stop: bool,
    },
    /// Layers of disks have been made one.
    Folded,
    /// Write down what the machine has touched of its snapshot.
    RecordWorkingSet(PathBuf, RecordReply),
    /// The process that serves the machine's memory has ended.
    PagesGone,
    /// Make the machine of a snapshot.
    Restore(Box<RestoreRequest>, Permit, Reply),
    /// Tell a restored guest's agent again that it is a machine of its own.
    Refresh(Box<GuestIdentity>, Permit, Reply),
    /// Change a drive of a running machine.
    Drive(DrivePatch, Reply),
    /// Ask the guest to reboot, as Ctrl-Alt-Del does.
    CtrlAltDel(Reply),
    /// The deletion has been accepted: release everything.
    Release,
    /// The agent announced itself.
    Hello(Box<Hello>),
    /// What the agent announced was no hello.
    BadHello(String),
    /// The guest ended.
    Ended(Ending),
    /// The process was asked to end.
    Signal(i32),
}
