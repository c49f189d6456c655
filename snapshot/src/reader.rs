//! Reading a snapshot. Nothing is believed: names, sizes, versions and checksums are looked at
//! before a byte is used, and no path comes out of a file.

use std::fs::File;
use std::path::Path;

use crate::checksum::Checksum;
use crate::dir::Dir;
use crate::error::ReadError;
use crate::manifest::{self, Disk, DiskLayer, Manifest, Memory, MemoryLayer};
use crate::memory::layer::{Layer, Unread};
use crate::memory::layers::MemoryLayers;
use crate::memory::{PAGE, trailer};
use crate::section::Section;
use crate::state_file;
use crate::writer::STATE;

/// An open snapshot. It stays readable when its directory is renamed or removed meanwhile only as
/// far as its files were opened.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) dir: Dir,
    manifest: Manifest,
}

impl Snapshot {
    /// Opens the snapshot in a directory: reads its manifest, and looks at each of its files from
    /// the outside. The cost does not depend on their sizes.
    ///
    /// # Errors
    ///
    /// When there is none, it is of a newer version, or not whole.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let dir = Dir::open(path)?;
        let text = match dir.read(manifest::FILE, manifest::MAX_LEN) {
            Err(ReadError::Missing { .. }) => {
                return Err(ReadError::NotASnapshot {
                    path: path.to_owned(),
                });
            }
            other => other?,
        };
        let manifest = Manifest::parse(&dir.path_of(manifest::FILE), &text)?;
        let snapshot = Self { dir, manifest };
        if let Some(state) = &snapshot.manifest.state {
            snapshot.dir.file_of_length(STATE, state.length)?;
        }
        let memory = snapshot.manifest.memory.iter();
        for layer in memory.flat_map(|memory| &memory.layers) {
            snapshot.open_memory_layer(layer)?;
        }
        for layer in snapshot.manifest.disks.iter().flat_map(|disk| &disk.layers) {
            snapshot
                .dir
                .file_of_length(&layer.file, layer.file_length)?;
        }
        Ok(snapshot)
    }

    /// What the snapshot is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The state, checked.
    ///
    /// # Errors
    ///
    /// When there is none, or it is not as it was written. The error names the section.
    pub fn state(&self) -> Result<Vec<Section>, ReadError> {
        let state = self
            .manifest
            .state
            .as_ref()
            .ok_or_else(|| self.without("state"))?;
        let bytes = self.dir.read(STATE, state_file::MAX_STATE)?;
        let path = self.dir.path_of(STATE);
        // Sections first: their checksums say where the damage is.
        let (id, sections) = state_file::decode(&path, &bytes)?;
        if id != self.manifest.id || Checksum::of(&bytes) != state.checksum {
            return Err(ReadError::Damaged {
                path,
                part: "header".to_owned(),
                reason: format!("this is the state of another snapshot, {id}"),
            });
        }
        Ok(sections)
    }

    /// Guest memory: its files, opened.
    ///
    /// # Errors
    ///
    /// When there is none, or a file is not the one that belongs here.
    pub fn memory(&self) -> Result<MemoryLayers, ReadError> {
        let memory = self.memory_manifest()?;
        let mut layers = Vec::with_capacity(memory.layers.len());
        for layer in &memory.layers {
            let (file, index) = self.open_memory_layer(layer)?;
            let unread = Unread {
                path: self.dir.path_of(&layer.index),
                file: index,
                size: memory.size,
                wanted: layer.clone(),
            };
            layers.push(Layer::new(self.dir.path_of(&layer.file), file, unread));
        }
        Ok(MemoryLayers::new(memory.size, layers))
    }

    /// A drive of the machine.
    ///
    /// # Errors
    ///
    /// When there is none of this id.
    pub fn disk(&self, drive: &str) -> Result<&Disk, ReadError> {
        let disk = self.manifest.disks.iter().find(|disk| disk.drive == drive);
        disk.ok_or_else(|| self.without(&format!("drive {drive:?}")))
    }

    /// The file of a drive's layer, opened for reading.
    ///
    /// # Errors
    ///
    /// When there is none, or its head is not as it was written.
    pub fn disk_layer_file(&self, drive: &str, n: usize) -> Result<File, ReadError> {
        let layer = self.disk(drive)?.layers.get(n);
        let layer = layer.ok_or_else(|| self.without(&format!("layer {n} of drive {drive:?}")))?;
        self.open_disk_layer(layer)
    }

    pub(crate) fn open_disk_layer(&self, layer: &DiskLayer) -> Result<File, ReadError> {
        let file = self.dir.file_of_length(&layer.file, layer.file_length)?;
        let path = self.dir.path_of(&layer.file);
        let found = crate::writer::head_sum(&file, layer.file_length)
            .map_err(|source| crate::dir::io_error(&path, source))?;
        if found != layer.head_checksum {
            return Err(ReadError::Damaged {
                path,
                part: "head".to_owned(),
                reason: "its checksum does not fit: it is damaged, or of another snapshot"
                    .to_owned(),
            });
        }
        Ok(file)
    }

    pub(crate) fn memory_manifest(&self) -> Result<&Memory, ReadError> {
        self.manifest
            .memory
            .as_ref()
            .ok_or_else(|| self.without("memory"))
    }

    /// Both files of a layer, looked at from the outside.
    pub(crate) fn open_memory_layer(&self, layer: &MemoryLayer) -> Result<(File, File), ReadError> {
        let size = self.memory_manifest()?.size;
        let file = self.dir.file_of_length(&layer.file, size + PAGE)?;
        trailer::check(&self.dir.path_of(&layer.file), &file, size, layer.id)?;
        let index = self.dir.file_of_length(&layer.index, layer.index_length)?;
        Ok((file, index))
    }

    fn without(&self, what: &str) -> ReadError {
        ReadError::Without {
            path: self.dir.path().to_owned(),
            what: what.to_owned(),
        }
    }
}
