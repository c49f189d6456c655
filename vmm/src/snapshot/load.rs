//! Reading a snapshot's directory as what a machine is made from.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
use tine_devices::virtio::block::layers::{self, Backing, Format, LayerError};
use tine_devices::virtio::block::{BlockConfig, LowerConfig};
use tine_snapshot::manifest::{Disk, DiskLayer, MAX_LAYERS, Manifest, disk_file};
use tine_snapshot::section::Section;
use tine_snapshot::{Map, MemoryLayers, ReadError, Snapshot, Source, pair};

use super::description::DriveFile;
use super::handover::HandOverError;
use super::host::{self, Unfit};
use super::{Description, Place};
use crate::config::MachineConfig;
use crate::machine::overlay_path;
use crate::memory::{Image, Layer, MAX_RUNS, Run, Stored};

/// Why no machine can be made of a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It cannot go on here.
    #[error("the snapshot {path} cannot be restored here: {reason}")]
    Unfit {
        /// The snapshot.
        path: String,
        /// Why not.
        reason: Unfit,
    },
    /// Its manifest describes no machine that this version can make.
    #[error("the snapshot {path}: manifest.json: machine.config: {reason}")]
    Description {
        /// The snapshot.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Another process hands it over, and that failed.
    #[error("cannot take a fork over from {}: {source}", path.display())]
    HandOver {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: HandOverError,
    },
    /// It has nothing for one of its machine's drives.
    #[error("the snapshot has no disk for the drive {drive:?}: take one with `tine snapshot`")]
    Drive {
        /// The drive.
        drive: String,
    },
    /// The machine's own layer of a disk cannot be made.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Its memory is in too many pieces to be mapped.
    #[error(
        "the snapshot {path}: its memory is in {runs} pieces, more than {MAX_RUNS}: make one of \
         them with `tine snapshot flatten`"
    )]
    Fragmented {
        /// The snapshot.
        path: String,
        /// How many.
        runs: usize,
    },
}

/// What a machine is made from.
#[derive(Debug)]
pub struct Loaded {
    /// How often the machine's line was restored or forked before.
    pub generation: u64,
    /// Its machine's devices.
    pub description: Description,
    /// vCPUs, interrupt controllers, clock and devices.
    pub sections: Vec<Section>,
    /// Memory.
    pub memory: Image,
    /// The disks' layers.
    pub(super) disks: Vec<LoadedDisk>,
    /// The disks are the caller's files, which the description names.
    pub(super) drives_stay: bool,
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

impl Loaded {
    /// Opens the snapshot at `place`.
    pub fn at(place: &Place) -> Result<Self, LoadError> {
        match place {
            Place::Directory(dir) => Self::open(dir),
            Place::Pair { state, memory } => Self::open_pair(state, memory),
            Place::Fork(socket) => Self::receive(socket).map_err(|source| LoadError::HandOver {
                path: socket.clone(),
                source,
            }),
        }
    }

    /// Opens the snapshot in directory `dir`. Nothing of memory is read.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let snapshot = Snapshot::open(dir)?;
        let manifest = snapshot.manifest();
        let description = describe(dir, manifest)?;
        let stored = Stored {
            dir: dir.to_owned(),
            snapshot: manifest.id,
        };
        Ok(Self {
            description,
            sections: snapshot.state()?,
            memory: image(snapshot.memory()?, dir, Some(stored))?,
            generation: manifest.generation,
            disks: disks(dir, manifest),
            drives_stay: false,
        })
    }

    /// Opens a snapshot that is a file of state and one of memory, as the known API has them.
    pub fn open_pair(state: &Path, memory: &Path) -> Result<Self, LoadError> {
        let read = pair::read_state(state)?;
        Ok(Self {
            description: describe(state, &read.manifest)?,
            memory: image(read.memory(memory)?, memory, None)?,
            sections: read.sections,
            generation: read.manifest.generation,
            disks: Vec::new(),
            drives_stay: true,
        })
    }

    /// Says where the drives of `config`, which is [`Description::config`]'s, are: the snapshot's
    /// layers, and for each drive that can be written to an overlay of the machine's own, which is
    /// made in `own`. Gives the paths of what was made. The drives of a pair of files are where they
    /// were.
    pub fn place_drives(
        &self,
        config: &mut MachineConfig,
        own: &Path,
    ) -> Result<Vec<PathBuf>, LoadError> {
        let mut made = Vec::new();
        for drive in &mut config.drives {
            if let Err(err) = self.place_drive(drive, own, &mut made) {
                made.iter().for_each(|path| drop(fs::remove_file(path)));
                return Err(err);
            }
        }
        Ok(made)
    }

    /// As clients of the known API expect it of a pair of files.
    fn place_where_it_was(&self, drive: &mut BlockConfig) -> Option<()> {
        let mut saved = self.description.drives.iter();
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

    fn place_drive(
        &self,
        drive: &mut BlockConfig,
        own: &Path,
        made: &mut Vec<PathBuf>,
    ) -> Result<(), LoadError> {
        let id = drive.id.clone();
        let missing = || LoadError::Drive { drive: id.clone() };
        if self.drives_stay {
            return self.place_where_it_was(drive).ok_or_else(missing);
        }
        let disk = self.disks.iter().find(|disk| disk.drive == drive.id);
        let disk = disk.ok_or_else(missing)?;
        let mut layers = Vec::with_capacity(disk.layers.len());
        for (n, layer) in disk.layers.iter().enumerate() {
            let path = match &layer.file {
                LayerFile::Path(path) => path.clone(),
                LayerFile::Open(file) => named(file, own, &drive.id, n, made),
            };
            let format = layer.format;
            layers.push(LowerConfig { path, format });
        }
        let (Some(top), Some(size)) = (layers.last(), disk.layers.last()) else {
            return Err(missing());
        };
        if drive.read_only {
            drive.format = top.format;
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
        drive.path = overlay.clone();
        made.push(overlay);
        drive.lower = layers;
        Ok(())
    }
}

/// The layers in a snapshot's directory.
fn disks(dir: &Path, manifest: &Manifest) -> Vec<LoadedDisk> {
    let layer = |layer: &DiskLayer| LoadedLayer {
        file: LayerFile::Path(dir.join(&layer.file)),
        format: layer.format,
        virtual_size: layer.virtual_size,
    };
    let disk = |disk: &Disk| LoadedDisk {
        drive: disk.drive.clone(),
        layers: disk.layers.iter().map(layer).collect(),
    };
    manifest.disks.iter().map(disk).collect()
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

/// The machine that a manifest describes, if it can go on here.
fn describe(path: &Path, manifest: &Manifest) -> Result<Description, LoadError> {
    let path = || path.display().to_string();
    host::check(&manifest.host).map_err(|reason| LoadError::Unfit {
        path: path(),
        reason,
    })?;
    let wrong = |reason| LoadError::Description {
        path: path(),
        reason,
    };
    let description: Description = serde_json::from_value(manifest.machine.config.clone())
        .map_err(|err| wrong(err.to_string()))?;
    let same = u32::from(description.vcpus) == manifest.machine.vcpus
        && description.memory == manifest.machine.memory_bytes;
    match same {
        true => Ok(description),
        false => Err(wrong(
            "is of another machine than machine.vcpus and memory_bytes".to_owned(),
        )),
    }
}

/// Memory as an image to be mapped; `stored` is the snapshot that has all of it.
fn image(memory: MemoryLayers, path: &Path, stored: Option<Stored>) -> Result<Image, LoadError> {
    let (size, count) = (memory.size(), memory.count());
    let mut layers: Vec<Layer> = Vec::with_capacity(count);
    for (index, (file, covered)) in memory.into_layers()?.into_iter().enumerate() {
        let run = |map: Map| Run {
            range: map.offset..map.offset + map.len,
            zero: map.source == Source::Zero,
        };
        let stored = stored.clone().filter(|_| index + 1 == count);
        layers.push(Layer::new(
            file,
            covered.into_iter().map(run).collect(),
            stored,
        ));
    }
    let runs = layers.iter().map(|layer| layer.runs.len()).sum();
    if runs > MAX_RUNS {
        return Err(LoadError::Fragmented {
            path: path.display().to_string(),
            runs,
        });
    }
    Ok(Image {
        size,
        layers: layers.into_iter().map(Into::into).collect(),
    })
}
