//! Snapshots of the disks alone. A guest whose agent answers is asked to write its file systems out
//! and hold them still for the moment; of another one the disks are as after a power cut.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tine_jailer::seccomp::Role;

use super::command::{Command, Refusal};
use super::controller::Controller;
use super::handle::Permit;
use super::snapshot::{Job, SnapshotReply, SnapshotRequest, Writing};
use super::state::State;
use crate::agent::{self, AgentError};
use crate::logger::{self, Level};
use crate::snapshot::{Description, SaveDisks};

/// In messages.
const ACTION: &str = "take a snapshot of the disks";
/// How long a guest may take to hold its file systems still, and then does at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of freezing the guest's file systems, and what it was for.
pub(super) struct Frozen {
    request: SnapshotRequest,
    permit: Permit,
    reply: SnapshotReply,
    start: Instant,
    result: Result<(), AgentError>,
}

impl Controller {
    /// Takes the disks and lets the machine go on; the answer comes from the thread that writes.
    pub(super) fn snapshot_disks(
        &mut self,
        request: SnapshotRequest,
        permit: Permit,
        reply: SnapshotReply,
    ) {
        let start = Instant::now();
        if let Err(refusal) = self.can_take_disks() {
            return refuse(refusal, reply);
        }
        let mut frozen = Frozen {
            request,
            permit,
            reply,
            start,
            result: Ok(()),
        };
        if self.state() != State::Running {
            return self.take_disks(frozen, false);
        }
        let vsock = match self.started() {
            Ok(machine) => machine.vsock().clone(),
            Err(refusal) => return refuse(refusal, frozen.reply),
        };
        let shared = self.shared.clone();
        let freeze = move || {
            // The guest is not trusted to answer, so nobody else waits for it.
            let frozen_now = agent::freeze(&vsock, PATIENCE, Instant::now() + PATIENCE);
            frozen.result = frozen_now.map(drop);
            shared.tell(Command::Frozen(Box::new(frozen)));
        };
        // Where there can be no thread, the reply goes with the closure, which tells whoever waits.
        if let Err(err) = self.starter.spawn("freeze", Role::Worker, freeze) {
            logger::log(Level::Error, Refusal::failed("start a thread", err));
        }
    }

    /// The guest has been asked, and holds its file systems still if it could.
    pub(super) fn frozen(&mut self, mut frozen: Frozen) {
        match std::mem::replace(&mut frozen.result, Ok(())) {
            Ok(()) => self.take_disks(frozen, true),
            Err(err) => refuse(
                Refusal::failed(ACTION, format_args!("the guest does not hold still: {err}")),
                frozen.reply,
            ),
        }
    }

    fn can_take_disks(&self) -> Result<(), Refusal> {
        if self.writing.as_ref().is_some_and(Writing::goes_on) {
            return Err(Refusal::Busy("snapshot"));
        }
        let machine = self.started()?;
        if machine.config().drives.is_empty() {
            return Err(Refusal::failed(ACTION, "the machine has none"));
        }
        match self.state() {
            State::Running | State::Paused | State::Starting => Ok(()),
            state => Err(Refusal::State(state)),
        }
    }

    fn take_disks(&mut self, frozen: Frozen, held: bool) {
        let stop = frozen.request.stop;
        let (save, pause) = match self.try_take_disks(stop) {
            Ok(taken) => taken,
            Err(refusal) => return refuse(refusal, frozen.reply),
        };
        // With `stop` the guest does not run any more, and has nothing to go on with.
        if held && !stop {
            self.thaw();
        }
        let job = Job {
            request: frozen.request,
            reply: frozen.reply,
            start: frozen.start,
            pause,
        };
        drop(frozen.permit);
        self.write_out(job, move |target, report| {
            let snapshot = save.write(target.path(), report)?;
            drop(save);
            Ok(snapshot.manifest().clone())
        });
    }

    /// Lets the guest's file systems go on. They would by themselves, only later.
    fn thaw(&self) {
        let Some(machine) = &self.machine else { return };
        let vsock = machine.vsock().clone();
        let thaw = move || {
            if let Err(err) = agent::thaw(&vsock, Instant::now() + PATIENCE) {
                logger::log(Level::Warning, err);
            }
        };
        if let Err(err) = self.starter.spawn("thaw", Role::Worker, thaw) {
            logger::log(Level::Error, Refusal::failed("start a thread", err));
        }
    }

    fn try_take_disks(&mut self, stay: bool) -> Result<(SaveDisks, Duration), Refusal> {
        self.can_take_disks()?;
        let failed = |err: &dyn std::fmt::Display| Refusal::failed(ACTION, err);
        self.settle_folding();
        let before = self.state();
        let run_dir = self.shared.identity.run_dir.clone();
        let overlays = self.started()?.new_overlays(run_dir.as_deref());
        let overlays = overlays.map_err(|err| failed(&err))?;
        self.shared.go(State::Snapshotting, None);
        let machine = self.started()?;
        let start = Instant::now();
        machine.pause();
        let captured = machine.capture_disks(overlays);
        let at = SystemTime::now();
        let stays = stay && captured.is_ok();
        if before != State::Paused && !stays {
            machine.resume();
        }
        let pause = start.elapsed();
        let description = Description::of(machine.config());
        let next = if stays { State::Paused } else { before };
        self.shared.go(next, None);
        self.record("disk snapshot", None);
        let disks = Arc::new(captured.map_err(|err| failed(&err))?);
        self.note_drives();
        let save = SaveDisks {
            disks,
            description,
            at,
            generation: self.generation,
        };
        Ok((save, pause))
    }
}

fn refuse(refusal: Refusal, reply: SnapshotReply) {
    logger::log(Level::Error, &refusal);
    // The one who asked may have gone away.
    let _ = reply.send(Err(refusal));
}
