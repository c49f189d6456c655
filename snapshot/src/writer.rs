//! Writing a snapshot. Everything goes into a directory of another name, is synced, and gets the
//! target's name at the very end.

use std::fs::File;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::checksum::Checksum;
use crate::error::WriteError;
use crate::id::Id;
use crate::manifest::{
    self, Disk, Form, MAX_DISKS, MAX_LAYERS, MAX_MEMORY, MemoryLayer, StateFile, index_file,
    is_drive_id, memory_file,
};
use crate::memory::writer::{LayerBuilder, MemoryWriter};
use crate::memory::{PAGE, trailer};
use crate::partial::Partial;
use crate::reader::Snapshot;
use crate::section::Section;
use crate::state_file;

mod disks;
mod facts;
mod links;
mod meter;

pub use disks::DiskSource;
pub(crate) use disks::head_sum;
pub use facts::Facts;
pub use meter::Progress;
pub(crate) use meter::{Meter, StepError};

/// The file of sections.
pub(crate) const STATE: &str = "state";

/// A snapshot in the making. Any thread may write it. Dropped, or after an error, nothing of it is
/// left.
pub struct SnapshotWriter {
    id: Id,
    /// None when an error has removed it.
    partial: Option<Partial>,
    pub(crate) meter: Meter<'static>,
    state: Option<StateFile>,
    memory_size: Option<u64>,
    memory: Vec<MemoryLayer>,
    disks: Vec<Disk>,
}

impl SnapshotWriter {
    /// Begins a snapshot that is going to be the directory `target`, which is not there yet.
    /// Removes what writers of the same target left that were killed.
    ///
    /// # Errors
    ///
    /// When there is something of that name, or no directory can be made beside it.
    pub fn begin(target: &Path) -> Result<Self, WriteError> {
        let partial = Partial::begin(target)?;
        let id = Id::random().map_err(|source| partial.error("choose an id for", "", source))?;
        Ok(Self {
            id,
            partial: Some(partial),
            meter: Meter::new(0, None),
            state: None,
            memory_size: None,
            memory: Vec::new(),
            disks: Vec::new(),
        })
    }

    /// The snapshot's id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Calls `report` now and then while pages and disks are written. Where it breaks, the next
    /// step fails and the snapshot is gone.
    pub fn on_progress(
        &mut self,
        report: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) {
        self.meter.report = Some(Box::new(report));
    }

    /// Says that `bytes` more are going to be written, for progress, and that there is room.
    ///
    /// # Errors
    ///
    /// [`WriteError::NoSpace`].
    pub fn reserve(&mut self, bytes: u64) -> Result<(), WriteError> {
        self.meter.total += bytes;
        let needed = self.meter.total - self.meter.done;
        self.guard(|writer| {
            let partial = writer.partial()?;
            let free = partial.free()?;
            if needed <= free {
                return Ok(());
            }
            Err(WriteError::NoSpace {
                path: partial.target().to_owned(),
                needed,
                free,
            })
        })
    }

    /// Writes the state.
    ///
    /// # Errors
    ///
    /// When the sections cannot be in one file, or it cannot be written.
    pub fn write_state(&mut self, sections: &[Section]) -> Result<(), WriteError> {
        self.guard(|writer| {
            if writer.state.is_some() {
                return Err(writer.invalid("it has a state already"));
            }
            let bytes =
                state_file::encode(writer.id, sections).map_err(|err| writer.invalid(err))?;
            writer.write_file(STATE, &bytes)?;
            writer.state = Some(StateFile {
                length: bytes.len() as u64,
                checksum: Checksum::of(&bytes),
            });
            Ok(())
        })
    }

    /// Begins the next layer of a memory of `size` bytes: the first one, or what has changed since
    /// the layers that were taken over by [`Self::link_memory_layers`].
    ///
    /// # Errors
    ///
    /// When the size is none or not that of the layers below, or the file cannot be made.
    pub fn memory_layer(&mut self, size: u64) -> Result<MemoryWriter<'_>, WriteError> {
        let builder = self.guard(|writer| {
            if !(1..=MAX_MEMORY).contains(&size) || !size.is_multiple_of(PAGE) {
                return Err(writer.invalid(format!("a memory of {size} bytes")));
            }
            if writer.memory_size.is_some_and(|below| below != size) {
                return Err(writer.invalid("the layers below are of a memory of another size"));
            }
            let n = writer.memory.len();
            if n >= MAX_LAYERS {
                let reason = "it has 128 layers of memory already: flatten the one it builds on";
                return Err(writer.invalid(reason));
            }
            let id = writer.new_id()?;
            writer.memory_size = Some(size);
            let file = writer.partial()?.create(&memory_file(n))?;
            Ok(LayerBuilder::new(file, id, size, n > 0))
        })?;
        Ok(MemoryWriter::new(self, builder))
    }

    pub(crate) fn end_memory(&mut self, builder: LayerBuilder) -> Result<(), WriteError> {
        let (id, size) = builder.id_and_size();
        let (file, index) = match builder.finish(&trailer::encode(id, size)) {
            Ok(done) => done,
            Err(err) => return Err(self.layer_failed(err)),
        };
        self.guard(|writer| {
            let n = writer.memory.len();
            let (name, index_name) = (memory_file(n), index_file(n));
            writer.partial()?.sync(&file, &name)?;
            let bytes = index.encode();
            writer.write_file(&index_name, &bytes)?;
            writer.memory.push(MemoryLayer {
                file: name,
                index: index_name,
                id,
                index_length: bytes.len() as u64,
                index_checksum: Checksum::of(&bytes),
                stored_bytes: index.stored_bytes(),
            });
            Ok(())
        })
    }

    /// Begins a drive. Its layers follow, the lowest first.
    ///
    /// # Errors
    ///
    /// When its id cannot be in a file's name, there is a drive of this id, or there are too many.
    pub fn begin_disk(&mut self, drive: &str, read_only: bool) -> Result<(), WriteError> {
        self.guard(|writer| {
            let reason = if !is_drive_id(drive) {
                "its id is not 1 to 64 letters, digits, '_' and '-'"
            } else if writer.disks.iter().any(|disk| disk.drive == drive) {
                "there is one of this id already"
            } else if writer.disks.len() >= MAX_DISKS {
                "there are too many drives"
            } else {
                writer.disks.push(Disk {
                    drive: drive.to_owned(),
                    read_only,
                    layers: Vec::new(),
                });
                return Ok(());
            };
            Err(writer.invalid(format!("drive {drive:?}: {reason}")))
        })
    }

    /// Ends the snapshot: writes its manifest and gives the directory its name. When this returns,
    /// the snapshot is whole and survives a crash of the host.
    ///
    /// # Errors
    ///
    /// When facts and content do not fit together, or a step fails.
    pub fn finish(mut self, facts: Facts) -> Result<Snapshot, WriteError> {
        let memory = self
            .memory_size
            .map(|size| (size, std::mem::take(&mut self.memory)));
        let mut manifest = facts.into_manifest(self.id, memory);
        manifest.state = self.state.take();
        manifest.disks = std::mem::take(&mut self.disks);
        let target = self.guard(|writer| {
            manifest
                .check(Form::Directory)
                .map_err(|wrong| writer.invalid(format!("{}: {}", wrong.field, wrong.reason)))?;
            let text = manifest.to_text();
            if text.len() as u64 > manifest::MAX_LEN {
                return Err(writer.invalid("its manifest is longer than 1 MiB"));
            }
            writer.write_file(manifest::FILE, &text)?;
            Ok(writer.partial()?.target().to_owned())
        })?;
        if let Some(partial) = self.partial.take() {
            partial.publish()?;
        }
        Ok(Snapshot::open(&target)?)
    }

    /// Does one thing. If it fails, nothing of the snapshot is left.
    fn guard<T>(
        &mut self,
        what: impl FnOnce(&mut Self) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        let result = what(self);
        result.map_err(|err| self.failed(err))
    }

    /// Removes everything, and says what a failure to write means.
    fn failed(&mut self, err: WriteError) -> WriteError {
        let full = |source: &io::Error| {
            use io::ErrorKind::{QuotaExceeded, StorageFull};
            matches!(source.kind(), StorageFull | QuotaExceeded)
        };
        let Some(mut partial) = self.partial.take() else {
            return err;
        };
        let free = partial.free().unwrap_or(0);
        partial.remove();
        match err {
            WriteError::Io { source, .. } if full(&source) => WriteError::NoSpace {
                path: partial.target().to_owned(),
                needed: self.meter.total,
                // What it had taken is free again.
                free: partial.free().unwrap_or(0).max(free),
            },
            err => err,
        }
    }

    pub(crate) fn layer_failed(&mut self, err: StepError) -> WriteError {
        let name = memory_file(self.memory.len());
        let err = self.step_error("write", &name, err);
        self.failed(err)
    }

    fn step_error(&self, action: &'static str, name: &str, err: StepError) -> WriteError {
        match (err, self.partial()) {
            (StepError::Io(source), Ok(partial)) => partial.error(action, name, source),
            (StepError::Stopped, Ok(partial)) => WriteError::Stopped {
                path: partial.target().to_owned(),
            },
            (StepError::Invalid(reason), Ok(_)) => self.invalid(reason),
            (_, Err(err)) => err,
        }
    }

    pub(crate) fn scratch(&self) -> Result<PathBuf, WriteError> {
        self.partial().map(Partial::scratch)
    }

    pub(crate) fn remove_scratch(&mut self) -> Result<(), WriteError> {
        self.guard(|writer| writer.partial()?.remove_scratch())
    }

    pub(crate) fn abandon(&mut self) {
        self.partial = None;
    }

    fn partial(&self) -> Result<&Partial, WriteError> {
        self.partial
            .as_ref()
            .ok_or_else(|| self.invalid("an earlier step failed"))
    }

    fn invalid(&self, reason: impl Into<String>) -> WriteError {
        let target = self.partial.as_ref().map(Partial::target);
        WriteError::Invalid {
            path: target.unwrap_or(Path::new("")).to_owned(),
            reason: reason.into(),
        }
    }

    fn new_id(&self) -> Result<Id, WriteError> {
        Id::random().map_err(|source| WriteError::Io {
            action: "choose an id for a layer of",
            path: self
                .partial
                .as_ref()
                .map(|partial| partial.target().to_owned())
                .unwrap_or_default(),
            source,
        })
    }

    /// Writes a whole file and makes it durable.
    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let partial = self.partial()?;
        let mut file: File = partial.create(name)?;
        file.write_all(bytes)
            .map_err(|source| partial.error("write", name, source))?;
        partial.sync(&file, name)
    }
}
