//! What each command makes the controller do.

use super::command::{Command, Lifecycle, Refusal, Reply};
use super::controller::{Controller, Outcome};
use super::fork::HandingOut;
use super::state::State;
use crate::logger::{self, Level};

impl Controller {
    /// Carries a command out; with its outcome when the machine is over by it.
    pub(super) fn carry_out(&mut self, command: Command) -> Option<Outcome> {
        let answer = |reply: Reply, result: Result<(), Refusal>| {
            if let Err(refusal) = &result {
                logger::log(Level::Error, refusal);
            }
            // The one who asked may have gone away.
            let _ = reply.send(result);
            None
        };
        let command = self.fetched_before(command)?;
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
            Command::Snapshot(request, permit, reply) if request.disks_alone => {
                self.snapshot_disks(request, permit, reply);
                None
            }
            Command::Frozen(frozen) => {
                self.frozen(*frozen);
                None
            }
            Command::Snapshot(request, permit, reply) => {
                self.snapshot(request, permit, reply);
                None
            }
            Command::Fork(request, permit, reply) => {
                self.fork(request, permit, reply);
                None
            }
            Command::HandingOut(at) => {
                self.handing_out.retain(HandingOut::goes_on);
                self.handing_out.push(at);
                None
            }
            Command::Snapshotted { whole, stop } => self.snapshotted(whole, stop),
            Command::Folded => {
                self.folded();
                None
            }
            Command::RecordWorkingSet(path, reply) => {
                self.record_working_set(path, reply);
                None
            }
            Command::Restore(request, permit, reply) => {
                let result = self.restore(&request);
                drop(permit);
                answer(reply, result)
            }
            Command::Refresh(identity, permit, reply) => {
                self.refresh_again(*identity, permit, reply);
                None
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
                // Whoever waits for such a guest to be running would wait for ever.
                (self.state() == State::Starting).then(|| self.over(State::Failed, &reason))
            }
            Command::PagesGone => {
                let reason =
                    "the process that served its memory has ended before all of it was here";
                self.served_no_more()
                    .then(|| self.over(State::Failed, reason))
            }
            Command::Release => Some(self.release()),
            Command::Ended(ending) => Some(self.ended(&ending)),
            Command::Signal(number) => self.signal(number),
        }
    }
}
