//! Where the disks of a machine that is made of a snapshot are.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
use tine_devices::virtio::block::layers::{self, Backing, Format};
use tine_devices::virtio::block::{BlockConfig, LowerConfig};
use tine_snapshot::manifest::{Disk, DiskLayer, MAX_LAYERS, Manifest, disk_file};

use super::description::DriveFile;
use super::{Description, LoadError};
use crate::config::MachineConfig;
use crate::machine::overlay_path;
use crate::replace::is_named;

/// The disks of a machine to be.
#[derive(Debug)]
pub struct LoadedDisks {
    disks: Vec<LoadedDisk>,
    /// They are the caller's files, which the description names.
    stay: bool,
    /// Who hands them over keeps their files' names while this is open.
    _from: Option<UnixStream>,
}

/// A drive's files.
#[derive(Debug)]
pub(super) struct LoadedDisk {
    pub drive: String,
    /// The lowest first.
    pub layers: Vec<LoadedLayer>,
}

/// One file of a drive.
#[derive(Debug)]
pub(super) struct LoadedLayer {
    pub file: LayerFile,
    pub format: Format,
    /// What the guest sees, in bytes.
    pub virtual_size: u64,
}

/// Where a layer is.
#[derive(Debug)]
pub(super) enum LayerFile {
    /// In a snapshot's directory, which the caller keeps.
    Path(PathBuf),
    /// Open, and without a name that anybody keeps.
    Open(File),
}

impl LoadedDisks {
    /// Those in a snapshot's directory.
    pub(super) fn of(dir: &Path, manifest: &Manifest) -> Self {
        let layer = |layer: &DiskLayer| LoadedLayer {
            file: LayerFile::Path(dir.join(&layer.file)),
            format: layer.format,
            virtual_size: layer.virtual_size,
        };
        let disk = |disk: &Disk| LoadedDisk {
            drive: disk.drive.clone(),
            layers: disk.layers.iter().map(layer).collect(),
        };
        let disks = manifest.disks.iter().map(disk).collect();
        Self {
            disks,
            stay: false,
            _from: None,
        }
    }

    /// Those that the description names.
    pub(super) fn where_they_were() -> Self {
        let disks = Vec::new();
        Self {
            disks,
            stay: true,
            _from: None,
        }
    }

    /// Those that another process has handed over.
    pub(super) fn open(disks: Vec<LoadedDisk>, from: UnixStream) -> Self {
        Self {
            disks,
            stay: false,
            _from: Some(from),
        }
    }

    /// Says where the drives of `config`, which is [`Description::config`]'s, are: the snapshot's
    /// layers, and for each drive that can be written to an overlay of the machine's own, which is
    /// made in `own`. Gives the paths of what was made. The drives of a pair of files are where they
    /// were.
    pub fn place(
        &self,
        description: &Description,
        config: &mut MachineConfig,
        own: &Path,
    ) -> Result<Vec<PathBuf>, LoadError> {
        let mut made = Vec::new();
        for drive in &mut config.drives {
            if let Err(err) = self.place_one(description, drive, own, &mut made) {
                made.iter().for_each(|path| drop(fs::remove_file(path)));
                return Err(err);
            }
        }
        Ok(made)
    }

    /// As clients of the known API expect it of a pair of files.
    fn place_where_it_was(description: &Description, drive: &mut BlockConfig) -> Option<()> {
        let mut saved = description.drives.iter();
        let saved = saved.find(|saved| saved.id == drive.id)?;
        let (top, lower) = saved.files.split_last()?;
        if lower.len() >= MAX_LAYERS {
            return None;
        }
        let place = |file: &DriveFile| LowerConfig {
            path: file.path.clone(),
            format: file.format,
        };
        drive.path = top.path.clone();
        drive.format = top.format;
        drive.lower = lower.iter().map(place).collect();
        Some(())
    }

    fn place_one(
        &self,
        description: &Description,
        drive: &mut BlockConfig,
        own: &Path,
        made: &mut Vec<PathBuf>,
    ) -> Result<(), LoadError> {
        let id = drive.id.clone();
        let missing = || LoadError::Drive { drive: id.clone() };
        if self.stay {
            return Self::place_where_it_was(description, drive).ok_or_else(missing);
        }
        let disk = self.disks.iter().find(|disk| disk.drive == drive.id);
        let disk = disk.ok_or_else(missing)?;
        let mut layers = Vec::with_capacity(disk.layers.len());
        for (n, layer) in disk.layers.iter().enumerate() {
            let path = match &layer.file {
                LayerFile::Path(path) => path.clone(),
                LayerFile::Open(file) => {
                    let given = own.join(disk_file(&drive.id, n, layer.format));
                    // Somebody has given it this name already: in a jail there is no way to do so.
                    match is_named(&given, file) {
                        true => {
                            made.push(given.clone());
                            given
                        }
                        false => named(file, own, &drive.id, n, made),
                    }
                }
            };
            let format = layer.format;
            layers.push(LowerConfig { path, format });
        }
        let (Some(top), Some(size)) = (layers.last(), disk.layers.last()) else {
            return Err(missing());
        };
        if drive.read_only {
            drive.format = top.format;
            drive.own = true;
            drive.path = top.path.clone();
            layers.pop();
            drive.lower = layers;
            return Ok(());
        }
        let overlay = overlay_path(own, &drive.id);
        // As the next snapshot's directory has it, where other tools find the two together.
        let name = disk_file(&drive.id, layers.len() - 1, top.format);
        let backing = Backing {
            name: &name,
            format: top.format,
        };
        layers::create(&overlay, size.virtual_size, Some(backing))?;
        drive.format = Format::Qcow2;
        drive.own = true;
        drive.path = overlay.clone();
        made.push(overlay);
        drive.lower = layers;
        Ok(())
    }
}

/// A name for an open layer: one in `own`, so that the file is there for as long as this machine's
/// directory is, whoever else had it. Where there can be none, the descriptor's.
fn named(file: &File, own: &Path, drive: &str, n: usize, made: &mut Vec<PathBuf>) -> PathBuf {
    let open = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let name = format!("disk-{drive}-{n}-{}.base", crate::client::new_request_id());
    let path = own.join(name);
    let linked = rustix::fs::linkat(CWD, &open, CWD, &path, AtFlags::SYMLINK_FOLLOW);
    match linked {
        Ok(()) => {
            made.push(path.clone());
            path
        }
        Err(_) => open,
    }
}
