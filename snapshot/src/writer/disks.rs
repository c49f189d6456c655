//! Disks: files that become layers, by a link, by shared blocks, or by a copy.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::Mode;

use super::SnapshotWriter;
use crate::checksum::Checksum;
use crate::copy;
use crate::error::WriteError;
use crate::manifest::{DiskFormat, DiskLayer, HEAD, MAX_LAYERS, disk_file};

/// A file that becomes the next layer of a disk.
#[derive(Debug)]
pub struct DiskSource<'a> {
    /// The file, open for reading. Its position is moved.
    pub file: &'a File,
    /// How the disk is in it.
    pub format: DiskFormat,
    /// Bytes of the disk that the guest sees through it.
    pub virtual_size: u64,
    /// Nobody is going to write to the file again: it may become part of the snapshot itself, where
    /// it is on the same file system. It is read-only from then on.
    pub frozen: bool,
    /// Sum up the file, which reads all of it, so that [`crate::Snapshot::verify`] can check it.
    pub checksum: bool,
}

impl SnapshotWriter {
    /// Adds the next layer to the drive that was begun last.
    ///
    /// # Errors
    ///
    /// When no drive was begun, it has too many layers, or the file cannot be linked or copied.
    pub fn add_disk_layer(&mut self, source: &DiskSource<'_>) -> Result<(), WriteError> {
        self.guard(|writer| {
            let Some(disk) = writer.disks.last() else {
                return Err(writer.invalid("a disk's layer without a disk"));
            };
            let n = disk.layers.len();
            if n >= MAX_LAYERS {
                let reason = format!("drive {:?} has 128 layers: flatten it first", disk.drive);
                return Err(writer.invalid(reason));
            }
            let name = disk_file(&disk.drive, n, source.format);
            let io = |source| writer.source_error(&name, source);
            let file_length = source.file.metadata().map_err(io)?.len();
            let id = writer.new_id()?;
            if !(source.frozen && writer.take_over(source.file, &name)?) {
                writer.copy_file(source.file, file_length, &name)?;
            }
            let head_checksum = head_sum(source.file, file_length)
                .map_err(|err| writer.source_error(&name, err))?;
            let checksum = match source.checksum {
                true => Some(writer.sum_file(source.file, file_length, &name)?),
                false => None,
            };
            if let Some(disk) = writer.disks.last_mut() {
                disk.layers.push(DiskLayer {
                    file: name,
                    format: source.format,
                    id,
                    virtual_size: source.virtual_size,
                    file_length,
                    head_checksum,
                    checksum,
                });
            }
            Ok(())
        })
    }

    /// Makes the file itself part of the snapshot. False where that cannot be.
    fn take_over(&self, file: &File, name: &str) -> Result<bool, WriteError> {
        let partial = self.partial()?;
        // Another file system, another owner, no /proc, too many links: then it is copied.
        if partial.link(file, name).is_err() {
            return Ok(false);
        }
        // Not its owner: then it stays as writable as it was.
        let _ = rustix::fs::fchmod(file, Mode::from_raw_mode(0o444));
        partial.sync(file, name)?;
        Ok(true)
    }

    /// Copies a file, or lets the file system share its blocks.
    pub(super) fn copy_file(
        &mut self,
        from: &File,
        length: u64,
        name: &str,
    ) -> Result<(), WriteError> {
        let partial = self.partial()?;
        let to = partial.create(name)?;
        let shared =
            copy::reflink(from, &to).map_err(|err| partial.error("copy into", name, err))?;
        if !shared {
            let needed = copy::stored_bytes(from).map_err(|err| self.source_error(name, err))?;
            let (free, planned) = (partial.free()?, self.meter.total - self.meter.done);
            if needed > free {
                return Err(WriteError::NoSpace {
                    path: partial.target().to_owned(),
                    needed: needed.max(planned),
                    free,
                });
            }
            let meter = &mut self.meter;
            copy::copy(from, &to, length, |bytes| meter.add(bytes))
                .map_err(|err| self.step_error("copy into", name, err))?;
        }
        self.partial()?.sync(&to, name)
    }

    fn sum_file(&self, file: &File, length: u64, name: &str) -> Result<Checksum, WriteError> {
        copy::sum(file, length, |_| Ok(())).map_err(|err| self.step_error("read for", name, err))
    }

    pub(super) fn source_error(&self, name: &str, source: io::Error) -> WriteError {
        match self.partial() {
            Ok(partial) => partial.error("copy into", name, source),
            Err(err) => err,
        }
    }
}

/// Over the first bytes of a disk's file.
pub(crate) fn head_sum(file: &File, length: u64) -> io::Result<Checksum> {
    let mut head = vec![0; length.min(HEAD) as usize];
    file.read_exact_at(&mut head, 0)?;
    Ok(Checksum::of(&head))
}
