//! What a machine is doing, as everybody may know it.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use tine_guest_agent::hello::Hello;

use super::access::Access;
use super::settings::Settings;

/// What a machine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It can be configured; no guest code has run.
    Created,
    /// Its guest runs, and the agent has not answered yet.
    Starting,
    /// The agent has answered: an exec sent now is accepted.
    Running,
    /// Its vCPUs stand still.
    Paused,
    /// A snapshot is being taken.
    Snapshotting,
    /// The guest has switched itself off or reset itself, or the process was told to end.
    Ended,
    /// The guest has crashed, or cannot go on.
    Failed,
    /// Its deletion has been accepted.
    Deleting,
    /// Everything of it has been released.
    Deleted,
}

impl State {
    /// All of them.
    pub const ALL: [State; 9] = [
        State::Created,
        State::Starting,
        State::Running,
        State::Paused,
        State::Snapshotting,
        State::Ended,
        State::Failed,
        State::Deleting,
        State::Deleted,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            State::Created => "created",
            State::Starting => "starting",
            State::Running => "running",
            State::Paused => "paused",
            State::Snapshotting => "snapshotting",
            State::Ended => "ended",
            State::Failed => "failed",
            State::Deleting => "deleting",
            State::Deleted => "deleted",
        }
    }

    /// The state with this word.
    pub fn from_word(word: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// No guest code will run again.
    pub fn is_over(self) -> bool {
        matches!(
            self,
            State::Ended | State::Failed | State::Deleting | State::Deleted
        )
    }

    /// Whether a machine may go from this state to `next`: nothing comes back from its end, and
    /// nothing that finishes late undoes a deletion.
    fn allows(self, next: State) -> bool {
        match self {
            State::Deleted => false,
            State::Deleting => next == State::Deleted,
            State::Ended | State::Failed => matches!(next, State::Deleting | State::Deleted),
            _ => true,
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// What is known of a machine; a copy for whoever asks.
#[derive(Clone)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Since when.
    pub since: SystemTime,
    /// Why, where the state does not say all.
    pub reason: Option<String>,
    /// How it is configured.
    pub settings: Arc<Settings>,
    /// What the agent said of itself, once it has.
    pub agent: Option<Hello>,
    /// Ways into the machine, once there is one.
    pub access: Option<Access>,
}

impl Status {
    /// A machine that does not exist yet.
    pub(super) fn new() -> Self {
        Self {
            state: State::Created,
            since: SystemTime::now(),
            reason: None,
            settings: Arc::default(),
            agent: None,
            access: None,
        }
    }

    /// Goes to another state, if that may be.
    pub(super) fn go(&mut self, next: State, reason: Option<String>) -> bool {
        let moves = self.state != next && self.state.allows(next);
        if moves {
            self.state = next;
            self.since = SystemTime::now();
            self.reason = reason;
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_is_final() {
        for late in State::ALL {
            let mut status = Status::new();
            assert!(status.go(State::Deleting, None));
            assert_eq!(status.go(late, None), late == State::Deleted, "{late}");
        }
    }

    #[test]
    fn words_name_states() {
        for state in State::ALL {
            assert_eq!(State::from_word(state.word()), Some(state));
        }
        assert_eq!(State::from_word("stopped"), None);
    }
}
