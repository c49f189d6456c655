//! Layers of an earlier snapshot, which become layers of this one too: as further names of the same
//! files where the file system can, so that either snapshot may be deleted.

use std::fs::File;

use super::SnapshotWriter;
use crate::error::WriteError;
use crate::reader::Snapshot;

impl SnapshotWriter {
    /// Takes over all layers of an earlier snapshot's memory, below the one that is going to be
    /// written.
    ///
    /// # Errors
    ///
    /// When there are layers already, the snapshot has no memory, or a file cannot be had.
    pub fn link_memory_layers(&mut self, from: &Snapshot) -> Result<(), WriteError> {
        self.guard(|writer| {
            if writer.memory_size.is_some() {
                return Err(writer.invalid("it has layers of memory already"));
            }
            let memory = from.memory_manifest()?;
            for layer in &memory.layers {
                let (file, index) = from.open_memory_layer(layer)?;
                writer.link_file(&file, &layer.file)?;
                writer.link_file(&index, &layer.index)?;
                writer.memory.push(layer.clone());
            }
            writer.memory_size = Some(memory.size);
            Ok(())
        })
    }

    /// Takes over all layers of a drive of an earlier snapshot, below the one that is going to be
    /// added, for the drive that was begun last.
    ///
    /// # Errors
    ///
    /// When the drive has layers already, the snapshot has no such drive, or a file cannot be had.
    pub fn link_disk_layers(&mut self, from: &Snapshot) -> Result<(), WriteError> {
        self.guard(|writer| {
            let drive = match writer.disks.last() {
                Some(disk) if disk.layers.is_empty() => disk.drive.clone(),
                _ => return Err(writer.invalid("no new drive to take layers over for")),
            };
            let disk = from.disk(&drive)?;
            for (n, layer) in disk.layers.iter().enumerate() {
                let file = from.disk_layer_file(&drive, n)?;
                writer.link_file(&file, &layer.file)?;
            }
            if let Some(last) = writer.disks.last_mut() {
                last.layers.clone_from(&disk.layers);
            }
            Ok(())
        })
    }

    fn link_file(&mut self, file: &File, name: &str) -> Result<(), WriteError> {
        if self.partial()?.link(file, name).is_ok() {
            return Ok(());
        }
        let length = file
            .metadata()
            .map_err(|err| self.source_error(name, err))?
            .len();
        self.copy_file(file, length, name)
    }
}
