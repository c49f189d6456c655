//! Making one snapshot of one layer out of one that has many.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::dir::io_error;
use crate::error::WriteError;
use crate::manifest::{Disk, DiskFormat, Parent};
use crate::reader::Snapshot;
use crate::writer::{DiskSource, Facts, Progress, SnapshotWriter};

/// What is read and written at a time.
const PIECE: usize = 4 << 20;

/// Who makes one file of a disk's layers: given the disk, its files, the lowest first, and a path
/// that is free, makes the new file there and says how the disk is in it, or why it cannot be.
pub type DiskFlattener<'a> =
    dyn FnMut(&Disk, Vec<File>, &Path) -> Result<DiskFormat, Box<dyn std::error::Error>> + 'a;

/// Writes to `target` what `from` holds, with a single layer of memory and of each disk. `from` is
/// checked first: what is damaged does not get new checksums.
///
/// # Errors
///
/// When `from` is not whole, `disks` cannot do its part, or `target` cannot be written.
pub fn flatten(
    from: &Snapshot,
    target: &Path,
    disks: &mut DiskFlattener<'_>,
    progress: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
) -> Result<Snapshot, WriteError> {
    from.verify(|_| ControlFlow::Continue(()))?;
    let manifest = from.manifest();
    let mut writer = SnapshotWriter::begin(target)?;
    writer.on_progress(progress);
    if manifest.state.is_some() {
        writer.write_state(&from.state()?)?;
    }
    match &manifest.memory {
        Some(memory) if memory.layers.len() == 1 => writer.link_memory_layers(from)?,
        Some(_) => flatten_memory(from, &mut writer)?,
        None => {}
    }
    for disk in &manifest.disks {
        writer.begin_disk(&disk.drive, disk.read_only)?;
        let [.., top] = disk.layers.as_slice() else {
            continue;
        };
        if disk.layers.len() == 1 {
            writer.link_disk_layers(from)?;
            continue;
        }
        let files = (0..disk.layers.len()).map(|n| from.disk_layer_file(&disk.drive, n));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let path = writer.scratch()?;
        let made = disks(disk, files, &path).and_then(|format| Ok((File::open(&path)?, format)));
        let (file, format) = made.map_err(|reason| WriteError::Invalid {
            path: target.to_owned(),
            reason: format!("drive {:?} cannot be made one file: {reason}", disk.drive),
        })?;
        writer.add_disk_layer(&DiskSource {
            file: &file,
            format,
            virtual_size: top.virtual_size,
            frozen: true,
            checksum: disk.layers.iter().any(|layer| layer.checksum.is_some()),
        })?;
        writer.remove_scratch()?;
    }
    writer.finish(Facts {
        kind: manifest.kind,
        parent: Some(Parent {
            id: manifest.id,
            note: "flattened from it".to_owned(),
        }),
        created_at: manifest.created_at.clone(),
        tine_version: manifest.tine_version.clone(),
        generation: manifest.generation,
        machine: manifest.machine.clone(),
        host: manifest.host.clone(),
        regions: manifest
            .memory
            .iter()
            .flat_map(|memory| memory.regions.clone())
            .collect(),
    })
}

fn flatten_memory(from: &Snapshot, writer: &mut SnapshotWriter) -> Result<(), WriteError> {
    let memory = from.memory()?;
    let runs = memory.runs()?;
    writer.reserve(runs.iter().map(|run| run.len).sum())?;
    let mut layer = writer.memory_layer(memory.size())?;
    let mut buffer = vec![0; PIECE];
    for run in runs {
        let mut at = run.offset;
        let end = run.offset + run.len;
        while at < end {
            let piece = &mut buffer[..((end - at) as usize).min(PIECE)];
            let read = memory.file(run.layer).read_exact_at(piece, at);
            read.map_err(|source| io_error(memory.path(run.layer), source))?;
            layer.write(at, piece)?;
            at += piece.len() as u64;
        }
    }
    layer.finish()
}
