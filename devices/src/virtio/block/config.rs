//! What a drive is to be, as inert data, and why it could not be had.

use std::io;
use std::path::PathBuf;

use super::layers::{Format, LayerError};
use crate::rate::RateLimiterConfig;

/// One drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockConfig {
    /// The drive's name among the machine's drives: in messages, and in the worker's thread name.
    pub id: String,
    /// An image file, or a block device of the host. Where its size is no multiple of 512 bytes
    /// the guest does not see the last, incomplete sector.
    pub path: PathBuf,
    /// How the disk is in it.
    pub format: Format,
    /// What the image lies over, the lowest first. What the image itself says of that is not taken.
    pub lower: Vec<LowerConfig>,
    /// The image is the machine's own: a snapshot may take it over as it is.
    pub own: bool,
    /// The guest may not write, and other machines may read the same image.
    pub read_only: bool,
    /// What the guest reads as the drive's serial number, up to 20 bytes; the first 20 bytes of
    /// the id if none is given.
    pub serial: Option<String>,
    /// What a flush is worth.
    pub cache: Cache,
    /// How the host reads and writes.
    pub engine: Engine,
    /// How much the guest may ask for at most. What goes beyond waits in the queue.
    pub rate_limiter: Option<RateLimiterConfig>,
}

impl BlockConfig {
    /// A writable drive with everything else as usual.
    pub fn new(id: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            id: id.into(),
            path: path.into(),
            format: Format::Raw,
            lower: Vec::new(),
            own: false,
            read_only: false,
            serial: None,
            cache: Cache::default(),
            engine: Engine::default(),
            rate_limiter: None,
        }
    }

    /// The serial number as the guest reads it: 20 bytes, zeroes behind.
    pub(super) fn serial_bytes(&self) -> Result<[u8; 20], BlockError> {
        let mut bytes = [0; 20];
        let text = match &self.serial {
            Some(serial) if serial.len() > bytes.len() => {
                return Err(BlockError::Serial {
                    drive: self.id.clone(),
                    serial: serial.clone(),
                });
            }
            Some(serial) => serial.as_bytes(),
            None => &self.id.as_bytes()[..self.id.len().min(bytes.len())],
        };
        bytes[..text.len()].copy_from_slice(text);
        Ok(bytes)
    }
}

/// A layer below a drive's image, which is only read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LowerConfig {
    /// The file.
    pub path: PathBuf,
    /// How the disk is in it.
    pub format: Format,
}

/// What becomes of the guest's flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cache {
    /// The host caches writes, and a flush makes them durable. To a guest that does not know of
    /// flushes every write is durable when it completes.
    #[default]
    Writeback,
    /// The host caches writes, and there are no flushes: what a crash of the host leaves is
    /// undefined. For disks that nobody wants back.
    Unsafe,
}

/// Who does the reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// io_uring where the kernel offers it, a thread of the drive's own where it does not.
    #[default]
    Auto,
    /// A thread of the drive's own.
    Thread,
}

/// Why a drive could not be opened. Each message is one line and names the drive.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The serial number does not fit.
    #[error("drive {drive:?}: serial number {serial:?} is longer than 20 bytes")]
    Serial {
        /// The drive's id.
        drive: String,
        /// The number given.
        serial: String,
    },
    /// The image could not be opened.
    #[error("drive {drive:?}: cannot open {}: {source}", .path.display())]
    Open {
        /// The drive's id.
        drive: String,
        /// The image.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// There is something at the path, and it is no disk.
    #[error("drive {drive:?}: {} is a {kind}, not an image file or block device", .path.display())]
    NotADisk {
        /// The drive's id.
        drive: String,
        /// The image.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Another process has the image open in a way that excludes this one.
    #[error("drive {drive:?}: {} is in use by another machine: {}", .path.display(), excluded(*.read_only))]
    InUse {
        /// The drive's id.
        drive: String,
        /// The image.
        path: PathBuf,
        /// Whether it was to be read only.
        read_only: bool,
    },
    /// The image could not be locked.
    #[error("drive {drive:?}: cannot lock {}: {source}", .path.display())]
    Lock {
        /// The drive's id.
        drive: String,
        /// The image.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// The image's size could not be found out.
    #[error("drive {drive:?}: cannot find out the size of {}: {source}", .path.display())]
    Size {
        /// The drive's id.
        drive: String,
        /// The image.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// There is not one sector in the image.
    #[error(
        "drive {drive:?}: {} holds {size} bytes, less than one sector of 512",
        .path.display()
    )]
    TooSmall {
        /// The drive's id.
        drive: String,
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// A layer of the disk cannot be used.
    #[error("drive {drive:?}: {source}")]
    Layer {
        /// The drive's id.
        drive: String,
        /// Which, and why not.
        source: LayerError,
    },
    /// What the drive is to go on in does not fit it.
    #[error("drive {drive:?} cannot go on in {}: {reason}", .path.display())]
    Overlay {
        /// The drive's id.
        drive: String,
        /// The overlay.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The descriptor for all the drive's events could not be made.
    #[error(
        "drive {drive:?}: cannot make its events: {source}; raise the limit of open files (ulimit -n)"
    )]
    Events {
        /// The drive's id.
        drive: String,
        /// What the host said.
        source: io::Error,
    },
    /// The event for completions could not be made.
    #[error("drive {drive:?}: cannot make an eventfd: {source}")]
    EventFd {
        /// The drive's id.
        drive: String,
        /// What the host said.
        source: io::Error,
    },
}

fn excluded(read_only: bool) -> &'static str {
    match read_only {
        true => "it cannot be read while it is written",
        false => "it cannot be written while it is read or written",
    }
}
