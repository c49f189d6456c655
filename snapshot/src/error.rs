//! What can go wrong with a snapshot: one error for reading, one for writing. Each names the file.

use std::io;
use std::path::PathBuf;

use crate::id::Id;

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The directory or the file of state is not there, or may not be opened.
    #[error("cannot open the snapshot {path}: {source}")]
    Open {
        /// What was asked for.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is a directory, but no snapshot in it.
    #[error("{path} is not a snapshot: there is no manifest.json in it")]
    NotASnapshot {
        /// The directory.
        path: PathBuf,
    },
    /// It was made by a later version of Tine.
    #[error(
        "{path} has format version {found}, and this build reads up to {known}: use the version of \
         Tine that wrote it, or a later one"
    )]
    Newer {
        /// The file that says so.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest that is known here.
        known: u32,
    },
    /// A file that the manifest names is not there.
    #[error(
        "{path} is missing: the snapshot is not whole; copy its directory again from its source"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// There is something else where a regular file belongs.
    #[error("{path} is {found}, not a regular file: a snapshot has nothing else in it")]
    NotAFile {
        /// The file's path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A file is shorter or longer than it was.
    #[error("{path} has {found} bytes and should have {wanted}: it was cut off or changed")]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length it was written with.
        wanted: u64,
    },
    /// A file belongs to another snapshot.
    #[error("{path} is layer {found}, and layer {wanted} belongs here: it is of another snapshot")]
    OtherLayer {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        found: Id,
        /// What the manifest says.
        wanted: Id,
    },
    /// The bytes are not what was written.
    #[error("{path}: {part}: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which part of it: a section, an extent, a chunk.
        part: String,
        /// What is wrong.
        reason: String,
    },
    /// The snapshot does not have what was asked for.
    #[error("{path} has no {what}")]
    Without {
        /// The snapshot.
        path: PathBuf,
        /// What it lacks.
        what: String,
    },
    /// The host could not read a file.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The caller's progress function said so.
    #[error("the check was stopped")]
    Stopped,
}

/// Why a snapshot cannot be written. In every case nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is something of that name.
    #[error("{path} is there already: a snapshot is never changed; choose another name")]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// The target cannot be the name of a directory to be made.
    #[error("{path} cannot be a new directory: {reason}")]
    Target {
        /// The target.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// The file system is full, or a quota used up.
    #[error(
        "no space for the snapshot {path}: it needs {needed} bytes, and {free} were free; what was \
         written of it is removed; make room or choose another place"
    )]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// Bytes that all of it needs, as far as that was known.
        needed: u64,
        /// Bytes that it could have.
        free: u64,
    },
    /// What was given cannot be in a snapshot. A mistake of the caller.
    #[error("cannot write the snapshot {path}: {reason}")]
    Invalid {
        /// The target.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The host refused a step.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What should go into the snapshot cannot be read.
    #[error("cannot write the snapshot: {0}")]
    Source(#[from] ReadError),
    /// The caller's progress function said so.
    #[error("the snapshot {path} was stopped")]
    Stopped {
        /// The target.
        path: PathBuf,
    },
}
