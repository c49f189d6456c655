//! A snapshot as the known API has it: one file of state and one of memory. The state carries the
//! manifest and the memory's index as sections; the memory's file is exactly as long as memory.
//! Disks stay where they are. Each file is written under another name and takes its place when it is
//! whole.

use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::checksum::Checksum;
use crate::dir::{io_error, read_bounded, require_regular};
use crate::error::{ReadError, WriteError};
use crate::id::Id;
use crate::manifest::{Form, MAX_MEMORY, Manifest, MemoryLayer, index_file, memory_file};
use crate::memory::PAGE;
use crate::memory::index::Index;
use crate::memory::layer::Layer;
use crate::memory::layers::MemoryLayers;
use crate::memory::writer::LayerBuilder;
use crate::partial_file::PartialFile;
use crate::section::Section;
use crate::state_file::{self, MAX_STATE};
use crate::writer::{Facts, Meter, Progress, StepError};

/// The sections that are not the machine's own.
const MANIFEST: &str = "tine/manifest";
const INDEX: &str = "tine/memory-index";
/// Their kind, and its version.
const KIND: &str = "file";
const VERSION: u16 = 1;
/// Chunks that are looked at before a memory file is believed to be the right one.
const SAMPLES: u64 = 16;

/// A memory file in the making. Dropped, nothing of it is left.
pub struct MemoryFile {
    partial: PartialFile,
    builder: LayerBuilder,
    meter: Meter<'static>,
    failed: bool,
}

/// A memory file that is written, and what its state has to say about it.
pub struct WrittenMemory {
    partial: PartialFile,
    index: Index,
}

impl MemoryFile {
    /// Begins the file `path` for a memory of `size` bytes. It takes the place of a file that is
    /// there when all is written.
    ///
    /// # Errors
    ///
    /// When the size is none, or the file cannot be made.
    pub fn begin(path: &Path, size: u64) -> Result<Self, WriteError> {
        let invalid = |reason: String| WriteError::Invalid {
            path: path.to_owned(),
            reason,
        };
        if !(1..=MAX_MEMORY).contains(&size) || !size.is_multiple_of(PAGE) {
            return Err(invalid(format!("a memory of {size} bytes")));
        }
        let partial = PartialFile::begin(path)?;
        let error = |source| partial.error("write", source);
        let id = Id::random().map_err(error)?;
        let file = partial.file().try_clone().map_err(error)?;
        Ok(Self {
            builder: LayerBuilder::new(file, id, size, false),
            meter: Meter::new(0, None),
            failed: false,
            partial,
        })
    }

    /// Calls `report` now and then, and stops where it says so. `total` bytes are expected.
    pub fn on_progress(
        &mut self,
        total: u64,
        report: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) {
        self.meter = Meter::new(total, Some(Box::new(report)));
    }

    /// Adds whole pages at `offset`, behind everything given before. What is never given is zeroes.
    ///
    /// # Errors
    ///
    /// When it is not behind, or cannot be written. The file is not to be used then.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), WriteError> {
        let result = self.builder.write(offset, data, &mut self.meter);
        self.failed |= result.is_err();
        result.map_err(|err| step_error(&self.partial, err))
    }

    /// Ends the file. It gets its name together with the state, by [`write_state`].
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn finish(self) -> Result<WrittenMemory, WriteError> {
        let Self {
            partial, builder, ..
        } = self;
        if self.failed {
            let reason = StepError::Invalid("an earlier step failed".to_owned());
            return Err(step_error(&partial, reason));
        }
        match builder.finish(&[]) {
            Ok((_, index)) => Ok(WrittenMemory { partial, index }),
            Err(err) => Err(step_error(&partial, err)),
        }
    }
}

/// Writes the state that belongs to a written memory, and gives both files their names, the memory
/// first.
///
/// # Errors
///
/// When facts and content do not fit together, or a file cannot be written.
pub fn write_state(
    path: &Path,
    facts: Facts,
    sections: &[Section],
    memory: WrittenMemory,
) -> Result<Manifest, WriteError> {
    let mut partial = PartialFile::begin(path)?;
    let invalid = |reason: String| step_error(&partial, StepError::Invalid(reason));
    let id = Id::random().map_err(|source| partial.error("write", source))?;
    let index = memory.index.encode();
    let layer = MemoryLayer {
        file: memory_file(0),
        index: index_file(0),
        id: memory.index.id,
        index_length: index.len() as u64,
        index_checksum: Checksum::of(&index),
        stored_bytes: memory.index.stored_bytes(),
    };
    let manifest = facts.into_manifest(id, Some((memory.index.size, vec![layer])));
    let checked = manifest.check(Form::Pair);
    checked.map_err(|wrong| invalid(format!("{}: {}", wrong.field, wrong.reason)))?;
    let file = |name: &str, payload: Vec<u8>| Section {
        name: name.to_owned(),
        kind: KIND.to_owned(),
        version: VERSION,
        payload,
    };
    let mut all = vec![file(MANIFEST, manifest.to_text()), file(INDEX, index)];
    all.extend_from_slice(sections);
    let bytes = state_file::encode(id, &all).map_err(invalid)?;
    let mut to: &File = partial.file();
    to.write_all(&bytes)
        .map_err(|source| partial.error("write", source))?;
    // Two names cannot change at once. Between the two the old state is beside the new memory, which
    // a reader notices: so there is nothing between the two that takes time.
    let mut memory = memory.partial;
    memory.sync()?;
    partial.sync()?;
    memory.rename()?;
    partial.rename()?;
    memory.sync_name()?;
    partial.sync_name()?;
    Ok(manifest)
}

/// What a file of state holds.
#[derive(Debug)]
pub struct State {
    /// What the snapshot is.
    pub manifest: Manifest,
    /// The machine's sections.
    pub sections: Vec<Section>,
    index: Index,
}

/// Reads a file of state and checks all of it.
///
/// # Errors
///
/// When it is not as it was written. The error names the section.
pub fn read_state(path: &Path) -> Result<State, ReadError> {
    let (file, length) = open(path)?;
    let damaged = |part: &str, reason: &str| ReadError::Damaged {
        path: path.to_owned(),
        part: part.to_owned(),
        reason: reason.to_owned(),
    };
    if length > MAX_STATE {
        return Err(damaged("length", "longer than a state can be"));
    }
    let bytes = read_bounded(path, &file, length)?;
    let (id, mut sections) = state_file::decode(path, &bytes)?;
    let mut take = |name: &str| {
        let at = sections.iter().position(|section| section.name == name);
        let section = at.map(|at| sections.remove(at));
        section
            .filter(|section| section.kind == KIND && section.version == VERSION)
            .ok_or_else(|| damaged(name, "there is no such section of a known version"))
    };
    let (manifest, index) = (take(MANIFEST)?, take(INDEX)?);
    let manifest = Manifest::parse_as(Form::Pair, path, &manifest.payload)?;
    let index_bytes = index.payload;
    let index = Index::decode(path, &index_bytes)?;
    let layer = manifest
        .memory
        .as_ref()
        .and_then(|memory| memory.layers.first());
    let fits = layer.is_some_and(|layer| {
        layer.id == index.id
            && layer.index_checksum == Checksum::of(&index_bytes)
            && layer.stored_bytes == index.stored_bytes()
    });
    if !fits || id != manifest.id || index.size != manifest.machine.memory_bytes {
        return Err(damaged(
            MANIFEST,
            "it does not belong to the rest of the file",
        ));
    }
    Ok(State {
        manifest,
        sections,
        index,
    })
}

impl State {
    /// Opens the memory file that belongs to this state. Its length is checked and, as a raw file
    /// does not say what it is, the content of a few chunks.
    ///
    /// # Errors
    ///
    /// When it cannot be opened, or is another.
    pub fn memory(&self, path: &Path) -> Result<MemoryLayers, ReadError> {
        let (file, found) = open(path)?;
        let wanted = self.index.size;
        if found != wanted {
            return Err(ReadError::Length {
                path: path.to_owned(),
                found,
                wanted,
            });
        }
        let chunks: Vec<u64> = self.index.stored_chunks().collect();
        let layer = Layer::with_index(PathBuf::from(path), file, self.index.clone());
        let layers = MemoryLayers::new(wanted, vec![layer]);
        let last = chunks.len().saturating_sub(1) as u64;
        let mut samples: Vec<u64> = (0..SAMPLES).map(|n| last * n / (SAMPLES - 1)).collect();
        samples.dedup();
        for sample in samples {
            if let Some(chunk) = chunks.get(sample as usize) {
                layers.verify_chunk(0, *chunk)?;
            }
        }
        Ok(layers)
    }
}

/// Opens a file that the caller named, which may be a link, but leads to a regular file.
fn open(path: &Path) -> Result<(File, u64), ReadError> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut options = File::options();
    let opened = options.read(true).custom_flags(nonblock).open(path);
    let file = opened.map_err(|source| ReadError::Open {
        path: path.to_owned(),
        source,
    })?;
    let meta = file.metadata().map_err(|source| io_error(path, source))?;
    require_regular(path, meta.mode())?;
    Ok((file, meta.len()))
}

fn step_error(partial: &PartialFile, err: StepError) -> WriteError {
    match err {
        StepError::Io(source) => partial.error("write", source),
        StepError::Invalid(reason) => WriteError::Invalid {
            path: partial.target().to_owned(),
            reason,
        },
        StepError::Stopped => WriteError::Stopped {
            path: partial.target().to_owned(),
        },
    }
}
