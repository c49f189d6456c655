//! Snapshots on disk: what `FORMAT.md` describes, a writer and a reader that trusts nothing.
//!
//! Nothing in this crate knows KVM or a device. What a machine is made of comes here as
//! [`section::Section`]s, each named, versioned and checked by itself; guest memory as runs of
//! pages; disks as files.
//!
//! A snapshot is a directory, written by [`SnapshotWriter`] and read by [`Snapshot`]. The known
//! API's pair of files, one of state and one of memory, is [`pair`].

#![forbid(unsafe_code)]

mod checksum;
mod copy;
mod dir;
mod error;
mod flatten;
mod header;
mod id;
pub mod manifest;
mod memory;
pub mod pair;
mod partial;
mod partial_file;
mod reader;
pub mod section;
mod stat;
pub mod state_file;
mod steps;
mod verify;
mod working_set;
mod writer;

#[cfg(test)]
mod tests;

pub use checksum::Checksum;
pub use copy::stored_bytes;
pub use error::{ReadError, WriteError};
pub use flatten::{DiskFlattener, flatten};
pub use id::Id;
pub use manifest::Manifest;
pub use memory::layers::{Map, MapPlan, MemoryLayers, Run, Source};
pub use memory::writer::MemoryWriter;
pub use memory::{CHUNK, PAGE};
pub use reader::Snapshot;
pub use verify::Report;
pub use working_set::{MAX_RANGES, WorkingSet};
pub use writer::{DiskSource, Facts, Progress, SnapshotWriter};
