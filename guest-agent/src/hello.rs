//! The line that the agent sends to the host's [`crate::HELLO_PORT`] once it is listening.

use serde::{Deserialize, Serialize};

/// One JSON line. The connection stays open; when it drops, the agent connects again with the next generation.
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
    /// 1 for the first hello of a boot, one more for each later one.
    pub generation: u64,
    /// Nanoseconds from the kernel's start until the agent's first instruction.
    pub agent_started_ns: u64,
    /// Nanoseconds from the kernel's start until this line.
    pub monotonic_ns: u64,
}

/// Most bytes of a hello that a host has to accept.
pub const MAX_HELLO: usize = 1024;
