//! The machine's end, whoever brings it about, and the records of it.

use std::time::{Duration, Instant};

use tine_guest_agent::status::ShutdownAction;

use super::access::Figures;
use super::controller::{Controller, Outcome};
use super::handle::Handle;
use super::state::State;
use crate::logger::{self, Level};
use crate::machine::Machine;
use crate::vcpu::Ending;

/// How long a guest may take to write its disks and switch itself off when the process is told
/// to end.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(20);

impl Controller {
    /// Ends in good order: a guest that may have something to write is asked to, once.
    pub(super) fn signal(&mut self, number: i32) -> Option<Outcome> {
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

    pub(super) fn ended(&mut self, ending: &Ending) -> Outcome {
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

    pub(super) fn over(&mut self, state: State, reason: &str) -> Outcome {
        logger::log(Level::Info, reason);
        if self.shared.deletion.times().is_some() {
            return self.release();
        }
        // A snapshot that was begun is finished: whoever asked for it wants it all the more now.
        if let Some(writing) = self.writing.take() {
            writing.finish(false);
            self.reunite_disks();
        }
        let figures = Handle(self.shared.clone()).figures();
        self.shared.go(state, Some(reason.to_owned()));
        self.drop_machine();
        self.recorder
            .record(state.word(), Some(reason), figures, None);
        match state {
            State::Failed => Outcome::Failed(reason.to_owned()),
            _ => Outcome::Ended,
        }
    }

    /// Releases everything after a deletion was accepted.
    pub(super) fn release(&mut self) -> Outcome {
        let figures: Figures = Handle(self.shared.clone()).figures();
        if let Some(writing) = self.writing.take() {
            writing.finish(true);
            self.reunite_disks();
        }
        let accepted = self.shared.deletion.times();
        self.recorder
            .record(State::Deleting.word(), None, figures, accepted);
        self.drop_machine();
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
