//! Why a layer of a disk cannot be used. Each message is one line and names the file.

use std::io;
use std::path::PathBuf;

/// Why a layer of a disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The host refused a step.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is something at the path, and it is no image.
    #[error("{} is a {kind}, not an image file", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: &'static str,
    },
    /// Another process has the file open in a way that excludes this one.
    #[error("{} is in use by another machine: {}", .path.display(), excluded(*.writable))]
    InUse {
        /// The file.
        path: PathBuf,
        /// Whether it was to be written.
        writable: bool,
    },
    /// The file is not what it has to be.
    #[error("{}: {reason}", .path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn excluded(writable: bool) -> &'static str {
    match writable {
        false => "it cannot be read while it is written",
        true => "it cannot be written while it is read or written",
    }
}
