//! The line that the agent sends to the host's [`crate::HELLO_PORT`] once it is listening.

use serde::{Deserialize, Serialize};

/// One JSON line, and the answer to `POST /v1/refresh`. The connection stays open; when it drops, the agent connects
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Version of the agent's package.
    pub agent: String,
    /// The guest kernel's release, as `uname -r` says it.
    pub kernel: String,
    /// The guest kernel's id of this boot.
    pub boot_id: String,
    /// The number that the host gave with the last [`crate::refresh::Refresh`]; 0 since boot.
    pub generation: u64,
    /// How often the agent has said hello since boot: 1 in the first.
    pub hellos: u64,
    /// Nanoseconds from the kernel's start until the agent's first instruction.
    pub agent_started_ns: u64,
    /// Nanoseconds from the kernel's start until this line, by the guest's monotonic clock.
    pub monotonic_ns: u64,
}

/// Most bytes of a hello that a host has to accept.
pub const MAX_HELLO: usize = 1024;
