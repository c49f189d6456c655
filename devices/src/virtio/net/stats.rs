//! What an interface has done so far, for whoever wants to know.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one interface. They only grow, also across resets. "rx" is what the guest receives.
/// Bytes are those of frames, without the virtio header.
#[derive(Debug, Default)]
pub struct NetStats {
    /// Frames given to the guest.
    pub rx_frames: AtomicU64,
    /// Their bytes.
    pub rx_bytes: AtomicU64,
    /// Frames that did not fit into the guest's buffers, or had no header.
    pub rx_dropped: AtomicU64,
    /// Failures to read from the host's side.
    pub rx_errors: AtomicU64,
    /// Times that the guest had no buffers left for a frame.
    pub rx_no_buffers: AtomicU64,
    /// Buffers of the guest's that made no sense.
    pub rx_malformed: AtomicU64,
    /// Times that a frame had to wait for the limit.
    pub rx_limited: AtomicU64,
    /// Frames taken from the guest and sent.
    pub tx_frames: AtomicU64,
    /// Their bytes.
    pub tx_bytes: AtomicU64,
    /// Frames shorter than their header, dropped.
    pub tx_short: AtomicU64,
    /// Frames longer than any can be, or not in guest memory, dropped.
    pub tx_malformed: AtomicU64,
    /// Frames that the host's side refused, dropped.
    pub tx_errors: AtomicU64,
    /// Times that a frame had to wait for the limit.
    pub tx_limited: AtomicU64,
    /// Times that the host's side had no room for a frame.
    pub tx_blocked: AtomicU64,
    /// Frames from the guest that the device answered itself.
    pub detour_tx_frames: AtomicU64,
    /// Frames to the guest that came from the device itself.
    pub detour_rx_frames: AtomicU64,
}

/// Counting.
pub(super) trait Count {
    /// Adds.
    fn add(&self, n: u64);
}

impl Count for AtomicU64 {
    fn add(&self, n: u64) {
        self.fetch_add(n, Ordering::Relaxed);
    }
}
