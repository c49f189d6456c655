//! Counts for metrics: each only grows, and any thread reads them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the device did so far.
#[derive(Debug, Default)]
pub struct VsockStats {
    /// Connections that were established, from either side.
    pub connections: AtomicU64,
    /// Connections that were refused: nobody listens, or too many.
    pub refused: AtomicU64,
    /// Connections that ended by a reset from our side after they were established.
    pub resets: AtomicU64,
    /// Connections that ended because the guest did not answer in time.
    pub timeouts: AtomicU64,
    /// Lingering connections that gave way to new ones, with what they had not delivered.
    pub evicted: AtomicU64,
    /// Packets from the guest.
    pub packets_from_guest: AtomicU64,
    /// Packets to the guest.
    pub packets_to_guest: AtomicU64,
    /// Payload bytes from the guest.
    pub bytes_from_guest: AtomicU64,
    /// Payload bytes to the guest.
    pub bytes_to_guest: AtomicU64,
    /// Packets and buffers from the guest that made no sense, and resets that found no room.
    pub dropped: AtomicU64,
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
