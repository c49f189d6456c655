//! What of a drive a snapshot keeps. Not its bytes: the disk is a thing of its own.

use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, State};

use super::{Backend, Block};
use crate::rate::RateLimiterState;
use crate::state::RestoreError;

/// A settled drive. Nothing is in flight, and what flushes are worth follows from the features
/// that were agreed on; the rest is there to see that the driver gets the disk that it knows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BlockState {
    /// In bytes.
    capacity: u64,
    read_only: bool,
    serial: [u8; 20],
    limiter: RateLimiterState,
}

impl State for BlockState {
    const KIND: &'static str = "virtio-block";
    const VERSION: u16 = 1;
}

impl BlockState {
    pub fn of<B: Backend>(block: &Block<B>) -> Self {
        Self {
            capacity: block.disk.backend.capacity(),
            read_only: block.disk.read_only,
            serial: block.disk.serial,
            limiter: block.limiter.save(),
        }
    }

    /// Checks that `block` is the disk that the driver knows, and sets what can be set.
    pub fn restore<B: Backend>(
        &self,
        section: &Section,
        block: &Block<B>,
    ) -> Result<(), RestoreError> {
        let section = &section.name;
        let disk = &block.disk;
        RestoreError::unless_same(
            section,
            "the disk's size in bytes",
            self.capacity,
            disk.backend.capacity(),
            "give the drive the disk it had",
        )?;
        RestoreError::unless_same(
            section,
            "whether the drive is read-only",
            self.read_only,
            disk.read_only,
            "configure the drive as it was",
        )?;
        let text = |serial: &[u8]| serial.escape_ascii().to_string();
        RestoreError::unless_same(
            section,
            "the drive's serial number",
            text(&self.serial),
            text(&disk.serial),
            "configure the drive as it was",
        )?;
        block.limiter.restore(section, "limiter", &self.limiter)
    }
}
