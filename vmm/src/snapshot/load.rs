//! Reading a snapshot's directory as what a machine is made from.

use std::path::Path;

use tine_snapshot::section::Section;
use tine_snapshot::{ReadError, Snapshot};

use super::host::{self, Unfit};
use super::Description;
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
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Its machine's devices.
    pub description: Description,
    /// vCPUs, interrupt controllers, clock and devices.
    pub sections: Vec<Section>,
    /// Memory.
    pub memory: Image,
}

impl Loaded {
    /// Opens the snapshot in directory `dir`. Nothing of memory is read.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let snapshot = Snapshot::open(dir)?;
        let path = || dir.display().to_string();
        let manifest = snapshot.manifest();
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
        if !same {
            return Err(wrong("is of another machine than machine.vcpus and memory_bytes".into()));
        }
        let sections = snapshot.state()?;
        let memory = image(&snapshot)?;
        Ok(Self {
            description,
            sections,
            memory,
            snapshot,
        })
    }
}

fn image(snapshot: &Snapshot) -> Result<Image, LoadError> {
    let memory = snapshot.memory()?;
    let (size, count) = (memory.size(), memory.count());
    let mut layers: Vec<Layer> = Vec::with_capacity(count);
    for (index, (file, extents)) in memory.into_layers().enumerate() {
        // What the lowest layer does not have is a hole of its file: one mapping for all of it.
        let runs = match index {
            0 => vec![Run {
                range: 0..size,
                zero: false,
            }],
            _ => extents
                .into_iter()
                .map(|map| Run {
                    range: map.offset..map.offset + map.len,
                    zero: map.source == tine_snapshot::Source::Zero,
                })
                .collect(),
        };
        let stored = (index + 1 == count).then(|| Stored {
            dir: snapshot.path().to_owned(),
            snapshot: snapshot.manifest().id,
        });
        layers.push(Layer::new(file, runs, stored));
    }
    let runs = layers.iter().map(|layer| layer.runs.len()).sum();
    if runs > MAX_RUNS {
        return Err(LoadError::Fragmented {
            path: snapshot.path().display().to_string(),
            runs,
        });
    }
    Ok(Image {
        size,
        layers: layers.into_iter().map(Into::into).collect(),
    })
}
