//! Reading a snapshot's directory as what a machine is made from.

use std::path::{Path, PathBuf};

use tine_devices::virtio::block::layers::LayerError;
use tine_snapshot::manifest::{Kind, Manifest};
use tine_snapshot::section::Section;
use tine_snapshot::{Map, MemoryLayers, ReadError, Snapshot, Source, pair};

use super::disks::LoadedDisks;
use super::handover::HandOverError;
use super::host::{self, Unfit};
use super::{Description, Place};
use crate::memory::{Image, Initial, Layer, MAX_RUNS, Run, Stored};

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
    /// There is no memory in it.
    #[error(
        "the snapshot {0} is of the disks alone, so its machine has to boot: use `tine restore`, or \
         give its layers as drives to PUT /v1/config"
    )]
    DisksAlone(String),
    /// It has nothing for one of its machine's drives.
    #[error("the snapshot has no disk for the drive {drive:?}: take one with `tine snapshot`")]
    Drive {
        /// The drive.
        drive: String,
    },
    /// The machine's own layer of a disk cannot be made.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// What is to be read ahead is not known.
    #[error("cannot use the working set {}: {reason}", path.display())]
    WorkingSet {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
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
    pub memory: Initial,
    /// Where its disks are.
    pub disks: LoadedDisks,
}

impl Loaded {
    /// Opens the snapshot at `place`.
    pub fn at(place: &Place) -> Result<Self, LoadError> {
        match place {
            Place::Directory(dir) => Self::open(dir),
            Place::Pair { state, memory } => Self::open_pair(state, memory),
            Place::Served { state, socket } => Self::open_served(state, socket),
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
        if manifest.kind == Kind::Disk {
            return Err(LoadError::DisksAlone(dir.display().to_string()));
        }
        let description = describe(dir, manifest)?;
        let stored = Stored {
            dir: dir.to_owned(),
            snapshot: manifest.id,
        };
        Ok(Self {
            description,
            sections: snapshot.state()?,
            memory: image(snapshot.memory()?, dir, Some(stored))?.into(),
            generation: manifest.generation,
            disks: LoadedDisks::of(dir, manifest),
        })
    }

    /// Opens a snapshot that is a file of state and one of memory, as the known API has them.
    pub fn open_pair(state: &Path, memory: &Path) -> Result<Self, LoadError> {
        let read = pair::read_state(state)?;
        Ok(Self {
            description: describe(state, &read.manifest)?,
            memory: image(read.memory(memory)?, memory, None)?.into(),
            sections: read.sections,
            generation: read.manifest.generation,
            disks: LoadedDisks::where_they_were(),
        })
    }
}

impl Loaded {
    /// Opens a file of state whose memory the process at `socket` serves.
    fn open_served(state: &Path, socket: &Path) -> Result<Self, LoadError> {
        let read = pair::read_state(state)?;
        let description = describe(state, &read.manifest)?;
        Ok(Self {
            memory: Initial::Served {
                size: description.memory,
                socket: socket.to_owned(),
            },
            description,
            sections: read.sections,
            generation: read.manifest.generation,
            disks: LoadedDisks::where_they_were(),
        })
    }
}

/// What a snapshot of the disks alone says of its machine, and where its disks are.
pub fn open_disks(dir: &Path) -> Result<(Description, LoadedDisks), LoadError> {
    let snapshot = Snapshot::open(dir)?;
    let manifest = snapshot.manifest();
    Ok((
        read_description(dir, manifest)?,
        LoadedDisks::of(dir, manifest),
    ))
}

/// The machine that a manifest describes, if it can go on here.
fn describe(path: &Path, manifest: &Manifest) -> Result<Description, LoadError> {
    host::check(&manifest.host).map_err(|reason| LoadError::Unfit {
        path: path.display().to_string(),
        reason,
    })?;
    read_description(path, manifest)
}

fn read_description(path: &Path, manifest: &Manifest) -> Result<Description, LoadError> {
    let path = || path.display().to_string();
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
