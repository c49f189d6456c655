//! Health of the guest, and the machine-wide requests.

use serde::{Deserialize, Serialize};

use crate::fields::{FieldError, Fields};

/// The answer to `GET /v1/health`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// [`crate::PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Version of the agent's package.
    pub agent: String,
    /// Seconds since the guest's kernel started.
    pub uptime_s: u64,
    /// Load averages of 1, 5 and 15 minutes.
    pub load: [f64; 3],
    /// The guest's memory.
    pub memory: MemoryFigures,
    /// The root file system.
    pub disk: DiskFigures,
    /// Processes in the guest.
    pub processes: u32,
    /// Commands running now.
    pub execs_running: usize,
    /// Records of commands kept, running ones included.
    pub execs_known: usize,
    /// Resident memory of the agent itself.
    pub agent_memory_bytes: u64,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// All that the kernel manages.
    pub total_bytes: u64,
    /// In use by nobody.
    pub free_bytes: u64,
    /// Could be given to a program without swapping.
    pub available_bytes: u64,
}

/// A file system's space in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFigures {
    /// Size.
    pub total_bytes: u64,
    /// Free to anybody.
    pub available_bytes: u64,
}

/// How a machine is ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShutdownAction {
    /// Off.
    #[default]
    Poweroff,
    /// Reset, which ends a microVM as well, with another status.
    Reboot,
}

/// The body of `POST /v1/shutdown`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ShutdownRequest {
    /// Off or reset.
    pub action: ShutdownAction,
    /// Time from SIGTERM to SIGKILL for every process.
    pub grace_ms: Option<u64>,
}

impl ShutdownRequest {
    /// Reads a request body.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            action: fields.optional("action")?.unwrap_or_default(),
            grace_ms: fields.optional("grace_ms")?,
        };
        fields.finish()?;
        Ok(request)
    }
}

/// One process of the guest: an element of `GET /v1/processes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's number.
    pub ppid: u32,
    /// Its user.
    pub uid: u32,
    /// The kernel's letter for its state.
    pub state: String,
    /// Its command line, or its name in brackets where it has none.
    pub command: String,
    /// Resident memory.
    pub memory_bytes: u64,
    /// Processor time used.
    pub cpu_ms: u64,
    /// The request whose command it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// The body of `POST /v1/processes/{pid}/signal` and `POST /v1/exec/{id}/signal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SignalRequest {
    /// Number of the signal, 1 to 64.
    pub signal: i32,
}

impl SignalRequest {
    /// Reads a request body.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            signal: fields.required("signal")?,
        };
        fields.finish()?;
        if !(1..=64).contains(&request.signal) {
            return Err(FieldError::new("signal", "must be 1 to 64"));
        }
        Ok(request)
    }
}
