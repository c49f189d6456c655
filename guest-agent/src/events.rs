//! What happens in the guest: `GET /v1/events`, one JSON object a line, from the answer's head on. Empty lines are
//! signs of life.
//!
//! Nothing is kept for later: records tell what became of commands that ended while nobody listened. A listener that
//! does not keep up is told how much it missed.

use serde::{Deserialize, Serialize};

use crate::exec::State;

/// Most bytes of a line that a host has to accept.
pub const MAX_EVENT: usize = 1024;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A command has ended.
    Exec(ExecEnd),
    /// The machine has been restored or forked.
    Restored {
        /// Which generation it is now.
        generation: u64,
    },
    /// Something is running out in the guest. Told again only after it was better.
    Warning(Warning),
    /// The listener did not keep up.
    Lost {
        /// How many events it missed.
        count: u64,
    },
}

/// How a command ended; its record says the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// The caller's name for it.
    pub request_id: String,
    /// How.
    pub state: State,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// Something that is running out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// What.
    pub kind: Resource,
    /// Bytes that there still are.
    pub available_bytes: u64,
    /// Of how many.
    pub total_bytes: u64,
}

/// What can run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Memory that a program could have.
    Memory,
    /// Room on the root file system.
    Disk,
}
