//! What a machine says of itself.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The answer to `GET /v1/machine`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its id.
    pub id: String,
    /// What it is doing: `created`, `starting`, `running`, `paused`, `snapshotting`, `ended`,
    /// `failed`, `deleting` or `deleted`.
    pub state: String,
    /// Since when: RFC 3339, UTC.
    #[serde(default)]
    pub since: Option<String>,
    /// Why, where the state does not say all.
    #[serde(default)]
    pub reason: Option<String>,
    /// Its process.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The last lines of its console.
    #[serde(default)]
    pub console: Vec<String>,
    /// Versions, usage, and what later versions add.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Status {
    /// An exec sent now is accepted.
    pub fn is_running(&self) -> bool {
        self.state == "running"
    }
}

/// What happens to a machine: a line of `GET /v1/events`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its kind: `state`, `exec`, `warning`, `lost`, and what later versions add.
    pub event: String,
    /// When: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What the kind of event has to say.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Event {
    /// A field that is text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.more.get(field)?.as_str()
    }
}

/// Copies of a machine that can be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The socket where other processes take them, with `fork` of `PUT /v1/restore`.
    pub socket: std::path::PathBuf,
    /// How many.
    pub count: u32,
    /// Their generation.
    pub generation: u64,
    /// How long the guest stood still, in microseconds.
    pub pause_us: u64,
    /// Where the layers of the disks have names, as in a snapshot, until the copies are taken.
    #[serde(default)]
    pub layers: Option<std::path::PathBuf>,
}

/// What a machine has touched of its snapshot, as it was written to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSet {
    /// The file.
    pub path: std::path::PathBuf,
    /// The snapshot that it is of: for others it is refused.
    pub snapshot: String,
    /// How much of memory it names.
    pub bytes: u64,
    /// In how many pieces.
    pub ranges: usize,
}

/// A snapshot that has been taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Its id.
    pub id: String,
    /// Its directory.
    pub path: std::path::PathBuf,
    /// How long the guest stood still, in microseconds.
    pub pause_us: u64,
    /// From the request until it was durable, in microseconds.
    pub took_us: u64,
    /// Stored bytes of memory, those shared with earlier snapshots included.
    pub memory_bytes: u64,
}
