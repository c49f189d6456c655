//! Taking snapshots: the machine stands still for as long as its state is taken, and is written
//! out by a thread of its own while it goes on.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tine_jailer::seccomp::Role;
use tine_snapshot::{Manifest, Progress, WriteError};
use tokio::sync::oneshot;

use super::command::{Command, Refusal};
use super::controller::{Controller, Outcome};
use super::events::Event;
use super::handle::Permit;
use super::handle::Shared;
use super::state::State;
use crate::logger::{self, Level};
use crate::snapshot::{Description, Place, Save};

/// Between two reports of progress.
const REPORT: Duration = Duration::from_millis(200);

/// Which snapshot is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Where it is going to be.
    pub target: Place,
    /// The machine ends when the snapshot is whole.
    pub stop: bool,
    /// Neither memory nor devices: what comes out of it boots.
    pub disks_alone: bool,
}

/// A snapshot that is whole and durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: String,
    /// Its directory.
    pub path: PathBuf,
    /// How long the guest stood still for it.
    pub pause: Duration,
    /// From the request until it was durable.
    pub took: Duration,
    /// Bytes of memory that it has stored, those of snapshots before it included.
    pub memory_bytes: u64,
}

/// Where the answer goes.
pub(super) type SnapshotReply = oneshot::Sender<Result<Taken, Refusal>>;

/// The thread that writes the last snapshot.
pub(super) struct Writing {
    thread: JoinHandle<()>,
    /// Nobody wants the snapshot any more.
    cancelled: Arc<AtomicBool>,
    /// It has told so. What is left of it is the answer: whoever has that may ask for the next.
    written: bool,
}

impl Writing {
    pub(super) fn new(thread: JoinHandle<()>, cancelled: Arc<AtomicBool>) -> Self {
        Self {
            thread,
            cancelled,
            written: false,
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        !self.written && !self.thread.is_finished()
    }

    /// Waits until the snapshot is whole, or removed.
    pub fn finish(self, cancel: bool) {
        self.cancelled.fetch_or(cancel, Ordering::Relaxed);
        // A panic has been reported by then.
        let _ = self.thread.join();
    }
}

impl Controller {
    /// Takes the machine's state and lets it go on; the answer comes from the thread that writes.
    pub(super) fn snapshot(
        &mut self,
        request: SnapshotRequest,
        permit: Permit,
        reply: SnapshotReply,
    ) {
        if let Err(refusal) = self.begin_snapshot(request, permit, reply) {
            let (refusal, reply) = *refusal;
            logger::log(Level::Error, &refusal);
            // The one who asked may have gone away.
            let _ = reply.send(Err(refusal));
        }
    }

    fn begin_snapshot(
        &mut self,
        request: SnapshotRequest,
        permit: Permit,
        reply: SnapshotReply,
    ) -> Result<(), Box<(Refusal, SnapshotReply)>> {
        let start = Instant::now();
        let (mut save, pause) = match self.take(&request.target, request.stop, "take a snapshot") {
            Ok(taken) => taken,
            Err(refusal) => return Err(Box::new((refusal, reply))),
        };
        if let Place::Pair { .. } = &request.target {
            let vsock = self.settings.vsock.as_ref();
            save.description.vsock_path = vsock.and_then(|vsock| vsock.uds_path.clone());
            save.description.name_files(&save.capture.disks);
        }
        let job = Job {
            request,
            reply,
            start,
            pause,
        };
        // It is being written; the machine can be paused and resumed meanwhile. And before the answer,
        // which the writing thread gives: who has it may begin the next change.
        drop(permit);
        self.write_out(job, move |target, report| {
            let manifest = save.write(target, report)?;
            // Lets go of the frozen images before anybody is told that they are free.
            drop(save);
            Ok(manifest)
        });
        Ok(())
    }

    /// Has a thread write a snapshot, and tell of it.
    pub(super) fn write_out(
        &mut self,
        job: Job,
        write: impl FnOnce(&Place, Report) -> Result<Manifest, WriteError> + Send + 'static,
    ) {
        let (shared, stop) = (self.shared.clone(), job.request.stop);
        let cancelled = Arc::new(AtomicBool::new(false));
        let told = cancelled.clone();
        let work = move || {
            let target = job.request.target;
            let written = write(&target, report(&target, &shared, told));
            let result = written.map(|manifest| Taken {
                id: manifest.id.to_string(),
                path: target.path().to_owned(),
                pause: job.pause,
                took: job.start.elapsed(),
                memory_bytes: stored(&manifest),
            });
            let result = result.map_err(|err| Refusal::failed("write the snapshot", err));
            let event = match &result {
                Ok(taken) => Event::snapshot(target.path(), "done", Some(&taken.id), None),
                Err(err) => Event::snapshot(target.path(), "failed", None, Some(err.to_string())),
            };
            shared.events.publish(&event);
            let whole = result.is_ok();
            if let Err(err) = &result {
                logger::log(Level::Error, err);
            }
            shared.tell(Command::Snapshotted { whole, stop });
            let _ = job.reply.send(result);
        };
        match self.starter.spawn("snapshot", Role::Writer, work) {
            Ok(thread) => self.writing = Some(Writing::new(thread, cancelled)),
            // The reply went with the closure: whoever waits is told that the request is gone.
            Err(err) => {
                logger::log(Level::Error, Refusal::failed("start a thread", err));
                if stop {
                    let _ = self.resume();
                }
            }
        }
    }

    /// Takes the state. With `stay`, the machine does not go on.
    pub(super) fn take(
        &mut self,
        place: &Place,
        stay: bool,
        action: &'static str,
    ) -> Result<(Save, Duration), Refusal> {
        if self.writing.as_ref().is_some_and(Writing::goes_on) {
            return Err(Refusal::Busy("snapshot"));
        }
        self.settle_folding();
        let before = self.state();
        let agent = self.shared.status.borrow().agent.is_some();
        let machine = self.started()?;
        let mut description = Description::of(machine.config());
        description.agent = agent;
        if !matches!(before, State::Running | State::Paused | State::Starting) {
            return Err(Refusal::State(before));
        }
        let pair = matches!(place, Place::Pair { .. });
        let failed = |err: &dyn std::fmt::Display| Refusal::failed(action, err);
        if let (true, Some(drive)) = (pair, machine.own_drive()) {
            return Err(failed(&format_args!(
                "the drive {drive:?} is in files of the machine's own, which a pair of files cannot \
                 name: give a directory to PUT /v1/snapshots"
            )));
        }
        let overlays = match pair {
            true => None,
            false => {
                let run_dir = self.shared.identity.run_dir.clone();
                let overlays = machine.new_overlays(run_dir.as_deref());
                Some(overlays.map_err(|err| failed(&err))?)
            }
        };
        self.shared.go(State::Snapshotting, None);
        let machine = self.started()?;
        let start = Instant::now();
        machine.pause();
        let captured = match overlays {
            Some(overlays) => machine.capture_with(overlays),
            None => machine.capture_beside_disks(),
        };
        let at = SystemTime::now();
        let runs = before != State::Paused && !(stay && captured.is_ok());
        if runs {
            machine.resume();
        }
        let pause = start.elapsed();
        let next = match stay && captured.is_ok() {
            true => State::Paused,
            false => before,
        };
        self.shared.go(next, None);
        let event = match place {
            Place::Fork(_) => "fork",
            _ => "snapshot",
        };
        self.record(event, None);
        let capture = captured.map_err(|err| failed(&err))?;
        self.note_drives();
        let save = Save {
            capture,
            description,
            at,
            generation: self.generation,
        };
        Ok((save, pause))
    }

    /// A snapshot has been written, or could not be; with `stop` the machine was to end with it.
    pub(super) fn snapshotted(&mut self, whole: bool, stop: bool) -> Option<Outcome> {
        if let Some(writing) = &mut self.writing {
            writing.written = true;
        }
        self.reunite_disks();
        if !stop {
            self.begin_folding();
        }
        match (stop, whole) {
            (true, true) => Some(self.over(State::Ended, "a snapshot was taken of it")),
            // It goes on: nothing may be lost.
            (true, false) => {
                let _ = self.resume();
                None
            }
            (false, _) => None,
        }
    }
}

/// A snapshot to be written, and who waits for it.
pub(super) struct Job {
    pub request: SnapshotRequest,
    pub reply: SnapshotReply,
    /// When it was asked for.
    pub start: Instant,
    /// How long the guest stood still.
    pub pause: Duration,
}

/// What is told how far a snapshot is.
pub(super) type Report = Box<dyn FnMut(Progress) -> ControlFlow<()> + Send>;

fn report(target: &Place, shared: &Arc<Shared>, cancelled: Arc<AtomicBool>) -> Report {
    let (target, told) = (target.path().to_owned(), shared.clone());
    let mut last = Instant::now();
    Box::new(move |progress: Progress| {
        if cancelled.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if last.elapsed() >= REPORT {
            last = Instant::now();
            told.events
                .publish(&Event::progress(&target, progress.done, progress.total));
        }
        ControlFlow::Continue(())
    })
}

/// Bytes of memory in a snapshot.
fn stored(manifest: &Manifest) -> u64 {
    let layers = manifest.memory.iter().flat_map(|memory| &memory.layers);
    layers.map(|layer| layer.stored_bytes).sum()
}
