//! Snapshots of machines: what of a [`Capture`](crate::machine::Capture) goes into a directory, and
//! how a machine comes out of one. The directory itself is `tine-snapshot`'s.

use std::path::{Path, PathBuf};

mod description;
mod disks;
mod handover;
mod host;
mod load;
mod prefetch;
mod save;

pub use description::Description;
pub use disks::LoadedDisks;
pub use handover::{HandOver, HandOverError};
pub use load::{LoadError, Loaded, open_disks};
pub use prefetch::Prefetch;
pub use save::{Save, SaveDisks};

/// Where a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A directory with all of it.
    Directory(PathBuf),
    /// Two files, as the known API has them.
    Pair {
        /// The machine's state.
        state: PathBuf,
        /// Its memory.
        memory: PathBuf,
    },
    /// A file of state whose memory another process serves. Only to be restored from.
    Served {
        /// The machine's state.
        state: PathBuf,
        /// Where the process listens (see [`crate::pages`]).
        socket: PathBuf,
    },
    /// Another machine's process that hands it over at a socket. Only to be restored from.
    Fork(PathBuf),
}

impl Place {
    /// The path that names it in messages.
    pub fn path(&self) -> &Path {
        match self {
            Place::Directory(path) | Place::Fork(path) => path,
            Place::Pair { state, .. } | Place::Served { state, .. } => state,
        }
    }
}
