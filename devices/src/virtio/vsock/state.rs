//! What of the socket device a snapshot keeps: no connections, as their other ends are not in it.

use serde::{Deserialize, Serialize};
use tine_snapshot::section::State;

/// The device but for its queues.
///
/// The guest's address is not in it. It is the configuration's, as two machines from one snapshot
/// need two; the driver reads it anew when it is told that all connections are gone.
#[derive(Debug, Serialize, Deserialize)]
pub struct VsockState {
    /// Connections from the host get other ports than those that the guest may still know.
    pub last_host_port: u32,
}

impl State for VsockState {
    const KIND: &'static str = "virtio-vsock";
    const VERSION: u16 = 1;
}
