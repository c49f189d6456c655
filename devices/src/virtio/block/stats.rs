//! What a drive has done so far, for whoever wants to know.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one drive. They only grow, also across resets, and are each exact but not
/// consistent with one another while requests complete.
#[derive(Debug, Default)]
pub struct BlockStats {
    /// Reads that succeeded.
    pub reads: AtomicU64,
    /// Bytes read by them.
    pub read_bytes: AtomicU64,
    /// Writes that succeeded.
    pub writes: AtomicU64,
    /// Bytes written by them.
    pub written_bytes: AtomicU64,
    /// Flushes that succeeded.
    pub flushes: AtomicU64,
    /// Discards that succeeded.
    pub discards: AtomicU64,
    /// Writes of zeroes that succeeded.
    pub write_zeroes: AtomicU64,
    /// Requests answered with an error, for what the driver asked or what the storage did.
    pub errors: AtomicU64,
    /// Chains that could not be answered, because there is no place for a status in them.
    pub malformed: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}
