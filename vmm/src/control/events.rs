//! What happens to a machine, for those who follow it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use tine_guest_agent::events::ExecEnd;
use tokio::sync::broadcast;

use super::state::State;
use crate::clock::rfc3339;

/// Events that are kept for a subscriber that does not keep up.
const KEPT: usize = 256;

/// One event: a line of `GET /v1/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// The machine has a new state.
    State {
        /// When.
        at: String,
        /// Which.
        state: State,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A command in the guest has ended.
    Exec {
        /// When it was heard of.
        at: String,
        /// The caller's name for it.
        request_id: String,
        /// How it ended.
        state: tine_guest_agent::exec::State,
        /// Its exit code.
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
    /// Something is running out.
    Warning {
        /// When.
        at: String,
        /// `disk` or `memory`.
        kind: &'static str,
        /// In words.
        message: String,
    },
    /// A snapshot is written.
    Snapshot {
        /// When.
        at: String,
        /// Its directory.
        path: PathBuf,
        /// `writing`, `done` or `failed`.
        stage: &'static str,
        /// The snapshot's id, when it is done.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Bytes written so far.
        #[serde(skip_serializing_if = "Option::is_none")]
        done_bytes: Option<u64>,
        /// Bytes to be written in all.
        #[serde(skip_serializing_if = "Option::is_none")]
        total_bytes: Option<u64>,
        /// Why it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The subscriber was too slow.
    Lost {
        /// How many events it missed.
        count: u64,
    },
}

impl Event {
    /// A new state, now.
    pub fn state(state: State, reason: Option<String>) -> Self {
        let at = now();
        Event::State { at, state, reason }
    }

    /// A command has ended, now.
    pub fn exec(end: ExecEnd) -> Self {
        Event::Exec {
            at: now(),
            request_id: end.request_id,
            state: end.state,
            exit_code: end.exit_code,
            signal: end.signal,
        }
    }

    /// Something is running out, now.
    pub fn warning(kind: &'static str, message: String) -> Self {
        let at = now();
        Event::Warning { at, kind, message }
    }

    /// How far a snapshot is, now.
    pub fn progress(path: &Path, done: u64, total: u64) -> Self {
        Event::Snapshot {
            at: now(),
            path: path.to_owned(),
            stage: "writing",
            id: None,
            done_bytes: Some(done),
            total_bytes: Some(total),
            reason: None,
        }
    }

    /// What became of a snapshot, now.
    pub fn snapshot(
        path: &Path,
        stage: &'static str,
        id: Option<&str>,
        reason: Option<String>,
    ) -> Self {
        Event::Snapshot {
            at: now(),
            path: path.to_owned(),
            stage,
            id: id.map(str::to_owned),
            done_bytes: None,
            total_bytes: None,
            reason,
        }
    }

    /// Nothing happens after it.
    pub fn is_last(&self) -> bool {
        let last = |state| matches!(state, State::Ended | State::Failed | State::Deleted);
        matches!(self, Event::State { state, .. } if last(*state))
    }

    /// The event as a line.
    pub fn line(&self) -> Vec<u8> {
        // Plain data always serialises.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// The time of an event.
pub(super) fn now() -> String {
    rfc3339(SystemTime::now())
}

/// An event on its way to a subscriber.
#[derive(Debug, Clone)]
pub struct Line {
    /// The event as a line.
    pub line: Arc<[u8]>,
    /// Nothing happens after it.
    pub last: bool,
}

impl From<&Event> for Line {
    fn from(event: &Event) -> Self {
        Self {
            line: event.line().into(),
            last: event.is_last(),
        }
    }
}

/// Where events are published.
pub(super) struct Events(broadcast::Sender<Line>);

impl Default for Events {
    fn default() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }
}

impl Events {
    /// Tells the subscribers, without waiting for them.
    pub fn publish(&self, event: &Event) {
        if self.has_subscribers() {
            let _ = self.0.send(event.into());
        }
    }

    fn has_subscribers(&self) -> bool {
        self.0.receiver_count() > 0
    }

    pub fn subscribe(&self) -> EventStream {
        EventStream(self.0.subscribe())
    }
}

/// The events from the subscription on.
pub struct EventStream(broadcast::Receiver<Line>);

impl EventStream {
    /// The next event; `None` when there will be no more.
    pub async fn next(&mut self) -> Option<Line> {
        match self.0.recv().await {
            Ok(line) => Some(line),
            Err(broadcast::error::RecvError::Lagged(count)) => {
                Some((&Event::Lost { count }).into())
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
