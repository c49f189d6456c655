//! Disks that have become deep. Each time a machine's disks are frozen they have a layer more; some
//! layers that lie over one another become one then, which is written beside them while the machine
//! goes on. What they were is not changed: copies and snapshots that share it keep it.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tine_devices::bus::lock;
use tine_devices::virtio::block::Block;
use tine_devices::virtio::block::layers::{self, Backing, Format, Layer};
use tine_snapshot::manifest::{disk_file, is_drive_id};

use super::Machine;
use super::disks::{layer_path, layers_of, with_block};
use super::drives::DriveError;

/// Layers of a disk that may come together before some become one. Each costs a read of what is below
/// it some 25 ns, a copy of the machine some 50 µs at its start (benches/NOTES.md, "Forks"), and a
/// descriptor in both.
pub const LAYERS: usize = 16;
/// Layers of a disk at most: with so many, it is not frozen again before some are one. A snapshot can
/// have four times as many.
pub const MOST_LAYERS: usize = 32;

/// Layers of a drive that are to become one.
#[derive(Debug)]
pub struct Fold {
    drive: String,
    lower: Vec<Layer>,
    layers: Vec<Layer>,
    /// Where it is going to be.
    path: PathBuf,
}

/// Layers of a drive, and the one that was made of them. Dropped before it is used, it is removed.
#[derive(Debug)]
pub struct Folded {
    drive: String,
    layers: Vec<Layer>,
    /// What is below the drive's topmost layer then.
    name: String,
    merged: Option<Layer>,
}

impl Fold {
    /// Makes the layer. `goes_on` is asked all the time.
    ///
    /// # Errors
    ///
    /// When it cannot be made, or is not wanted any more. Nothing is left of it then.
    pub fn merge(self, mut goes_on: impl FnMut() -> bool) -> Result<Folded, DriveError> {
        let at = self.lower.len();
        let base = self.lower.last().map_or(Format::Raw, Layer::format);
        let name = disk_file(&self.drive, at - 1, base);
        let backing = Backing {
            name: &name,
            format: base,
        };
        let layers = self.layers.iter().map(Layer::try_clone);
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let progress = |_| match goes_on() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        let merged = layers::merge(self.lower, layers, &self.path, backing, progress)?;
        Ok(Folded {
            name: disk_file(&self.drive, at, Format::Qcow2),
            drive: self.drive,
            layers: self.layers,
            merged: Some(merged),
        })
    }
}

impl Drop for Folded {
    fn drop(&mut self) {
        if let Some(unused) = &self.merged {
            let _ = fs::remove_file(unused.path());
        }
    }
}

impl Machine {
    /// The most layers that one of the drives has.
    pub fn deepest(&self) -> Result<usize, DriveError> {
        let mut deepest = 0;
        for drive in &self.drives {
            deepest = deepest.max(layers_of(drive)?.len());
        }
        Ok(deepest)
    }

    /// What to do with drives that have more than [`LAYERS`]. What is made is going to be in `dir`, or
    /// beside the drive's topmost layer where there is none.
    pub fn folds(&self, dir: Option<&Path>) -> Result<Vec<Fold>, DriveError> {
        let mut folds = Vec::new();
        for drive in &self.drives {
            let mut lower = layers_of(drive)?;
            let Some(range) = layers::to_merge(&lower, LAYERS)? else {
                continue;
            };
            if !is_drive_id(&drive.id) {
                return Err(DriveError::Id(drive.id.clone()));
            }
            let path = lower.last().map(|top| layer_path(dir, top, &drive.id));
            let Some(path) = path else { continue };
            lower.truncate(range.end);
            let layers = lower.split_off(range.start);
            folds.push(Fold {
                drive: drive.id.clone(),
                lower,
                layers,
                path,
            });
        }
        Ok(folds)
    }

    /// Has a drive go on with what was made of some of its layers. Gives the files that it does not use
    /// any more and that are the machine's own, which has made them or has them in `dir`: they are to
    /// be removed once no record names them.
    pub fn use_folded(
        &self,
        mut folded: Folded,
        dir: Option<&Path>,
    ) -> Result<Vec<PathBuf>, DriveError> {
        let unknown = || DriveError::Unknown(folded.drive.clone());
        let drive = self.drives.iter().find(|drive| drive.id == folded.drive);
        let drive = drive.ok_or_else(unknown)?;
        let merged = match &folded.merged {
            Some(merged) => merged.try_clone()?,
            None => return Err(unknown()),
        };
        let (instead, below) = (&folded.layers, &folded.name);
        let replace = |block: &mut Block| block.replace_below_top(instead, merged, below);
        let replaced = with_block(&mut lock(&drive.transport), replace);
        let mut replaced = replaced.ok_or_else(unknown)??;
        let used = folded.merged.take();
        let owned = drive.owned.load(Ordering::Relaxed);
        let mut made = lock(&drive.made);
        replaced.retain(|path| owned && path.parent() == dir || made.contains(path));
        made.retain(|path| !replaced.contains(path));
        made.extend(used.map(|merged| merged.path().to_owned()));
        Ok(replaced)
    }
}
