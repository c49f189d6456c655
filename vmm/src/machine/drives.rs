//! The drives of a running machine: their counters, their limits, and other images for them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tine_devices::bus::lock;
use tine_devices::rate::{RateLimiter, RateLimiterUpdate};
use tine_devices::virtio::block::layers::LayerError;
use tine_devices::virtio::block::{BlockConfig, BlockError, BlockStats};
use tine_devices::virtio::mmio::MmioTransport;

use super::Machine;
use super::disks::with_block;

/// Why a drive of a running machine could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// There is none of that name.
    #[error("there is no drive {0:?}")]
    Unknown(String),
    /// Its id cannot be part of a file's name, as a snapshot needs it.
    #[error(
        "drive {0:?} cannot be in a snapshot: give it an id of 1 to 64 letters, digits, `_` and `-`"
    )]
    Id(String),
    /// The other image cannot be used; the drive goes on with the old one.
    #[error(transparent)]
    Replace(#[from] BlockError),
    /// A layer of it cannot be made.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// What the machine keeps of a drive.
pub(super) struct Drive {
    pub id: String,
    stats: Arc<BlockStats>,
    limiter: RateLimiter,
    pub transport: Arc<Mutex<MmioTransport>>,
    /// Its files are the machine's own, and no caller's.
    pub owned: AtomicBool,
    /// Files that this machine has made for it, and that nobody else knows by name.
    pub made: Mutex<Vec<PathBuf>>,
}

impl Drive {
    pub(super) fn new(
        id: &str,
        stats: Arc<BlockStats>,
        limiter: RateLimiter,
        transport: Arc<Mutex<MmioTransport>>,
        owned: bool,
    ) -> Self {
        Self {
            id: id.to_owned(),
            stats,
            limiter,
            transport,
            owned: AtomicBool::new(owned),
            made: Mutex::default(),
        }
    }
}

impl Machine {
    /// The drives' counters, by the drives' ids.
    pub fn drive_stats(&self) -> Vec<(String, Arc<BlockStats>)> {
        let stats = |drive: &Drive| (drive.id.clone(), drive.stats.clone());
        self.drives.iter().map(stats).collect()
    }

    /// Lets the drive with `config`'s id go on with the image at `config`'s path, see
    /// [`Block::replace`](tine_devices::virtio::block::Block::replace).
    pub fn replace_drive(&self, config: &BlockConfig) -> Result<(), DriveError> {
        let drive = self.drive(&config.id)?;
        let mut transport = lock(&drive.transport);
        let replaced = with_block(&mut transport, |block| block.replace(config));
        replaced.ok_or_else(|| DriveError::Unknown(config.id.clone()))??;
        drive.owned.store(false, Ordering::Relaxed);
        transport.config_changed();
        Ok(())
    }

    /// Changes a drive's limits; what is not given stays.
    pub fn limit_drive(&self, id: &str, limits: &RateLimiterUpdate) -> Result<(), DriveError> {
        self.drive(id)?.limiter.set(limits);
        Ok(())
    }

    fn drive(&self, id: &str) -> Result<&Drive, DriveError> {
        let drive = self.drives.iter().find(|drive| drive.id == id);
        drive.ok_or_else(|| DriveError::Unknown(id.to_owned()))
    }
}
