//! The machine's disks around a snapshot: what was written so far is frozen, the machine goes on in
//! an overlay, and a drive whose image is the caller's own gets back what was written meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use tine_devices::bus::lock;
use tine_devices::virtio::block::Block;
use tine_devices::virtio::block::layers::{self, Backing, Format, Layer};
use tine_devices::virtio::mmio::MmioTransport;
use tine_snapshot::manifest::{disk_file, is_drive_id};

use super::Machine;
use super::drives::{Drive, DriveError};

/// The machine's devices while its state is taken, with their names among the sections.
pub(super) type Locked<'a> = Vec<(&'a str, MutexGuard<'a, MmioTransport>)>;

/// A drive at one moment.
#[derive(Debug)]
pub struct CapturedDisk {
    /// The drive's id.
    pub drive: String,
    /// The guest cannot write to it.
    pub read_only: bool,
    /// Its files, the lowest first. Nobody writes to them.
    pub layers: Vec<Layer>,
    /// They are the machine's own, and become part of a snapshot as they are. Otherwise the caller
    /// may write to the file again one day, and it is copied.
    pub owned: bool,
}

/// The files of a drive.
#[derive(Debug)]
pub struct DriveFiles {
    /// The drive's id.
    pub drive: String,
    /// The files, the lowest first.
    pub files: Vec<(PathBuf, Format)>,
    /// The topmost is the machine's own.
    pub own: bool,
}

/// A new and empty image for a drive to go on in.
#[derive(Debug)]
pub struct Overlay {
    /// The drive's id.
    pub drive: String,
    /// The image.
    pub layer: Layer,
}

impl Machine {
    /// Makes an overlay for each drive that can be written to: in `dir`, or beside the drive's image
    /// where there is none. They are used by [`Machine::capture_with`].
    pub fn new_overlays(&self, dir: Option<&Path>) -> Result<Vec<Overlay>, DriveError> {
        let mut overlays = Vec::new();
        for drive in &self.drives {
            match self.new_overlay(drive, dir) {
                Ok(overlay) => overlays.extend(overlay),
                Err(err) => {
                    discard(overlays);
                    return Err(err);
                }
            }
        }
        Ok(overlays)
    }

    fn new_overlay(
        &self,
        drive: &Drive,
        dir: Option<&Path>,
    ) -> Result<Option<Overlay>, DriveError> {
        let layers = match with_block(&mut lock(&drive.transport), |block| {
            (!block.is_read_only()).then(|| block.layers())
        }) {
            Some(Some(layers)) => layers?,
            _ => return Ok(None),
        };
        let Some(top) = layers.last() else {
            return Ok(None);
        };
        // It came from a client, and is going to be part of paths.
        if !is_drive_id(&drive.id) {
            return Err(DriveError::Id(drive.id.clone()));
        }
        let path = layer_path(dir, top, &drive.id);
        // As a snapshot's directory has it, which is where other tools find the two together.
        let base = disk_file(&drive.id, layers.len() - 1, top.format());
        let backing = Backing {
            name: &base,
            format: top.format(),
        };
        let layer = layers::create(&path, top.virtual_size(), Some(backing))?;
        Ok(Some(Overlay {
            drive: drive.id.clone(),
            layer,
        }))
    }

    /// Freezes the disks: drives go on in their overlays. The machine stands still, with its devices
    /// `locked`. A drive without an overlay is read-only.
    pub(super) fn freeze_disks(
        &self,
        mut overlays: Vec<Overlay>,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<CapturedDisk>, DriveError> {
        let mut disks = Vec::with_capacity(self.drives.len());
        for drive in &self.drives {
            let at = overlays
                .iter()
                .position(|overlay| overlay.drive == drive.id);
            let overlay = at.map(|at| overlays.swap_remove(at));
            let made = overlay.as_ref().map(|one| one.layer.path().to_owned());
            let layers = with_locked(drive, locked, |block| match overlay {
                Some(overlay) => block.switch_to_overlay(overlay.layer),
                None => block.layers(),
            })??;
            lock(&drive.made).extend(made);
            disks.push(CapturedDisk {
                drive: drive.id.clone(),
                read_only: at.is_none(),
                owned: drive.owned.load(Ordering::Relaxed),
                layers,
            });
        }
        Ok(disks)
    }

    /// Puts what was written into the disks' files, where they stay. The machine stands still, with
    /// its devices `locked`.
    pub(super) fn name_disks(
        &self,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<CapturedDisk>, DriveError> {
        let name = |drive: &Drive| {
            // Whoever has the capture counts on them from now on.
            lock(&drive.made).clear();
            with_locked(drive, locked, |block| {
                Ok(CapturedDisk {
                    drive: drive.id.clone(),
                    read_only: block.is_read_only(),
                    owned: drive.owned.load(Ordering::Relaxed),
                    layers: block.flushed_layers()?,
                })
            })?
        };
        self.drives.iter().map(name).collect()
    }

    /// The files that each drive is in now, the lowest first, and whether the topmost is the
    /// machine's own.
    pub fn drive_files(&self) -> Result<Vec<DriveFiles>, DriveError> {
        let mut all = Vec::with_capacity(self.drives.len());
        for drive in &self.drives {
            let layers = layers_of(drive)?;
            let file = |layer: &Layer| (layer.path().to_owned(), layer.format());
            all.push(DriveFiles {
                drive: drive.id.clone(),
                files: layers.iter().map(file).collect(),
                own: drive.owned.load(Ordering::Relaxed),
            });
        }
        Ok(all)
    }

    /// The first drive whose files are the machine's own, if there is one: they may end with it.
    pub fn own_drive(&self) -> Option<&str> {
        let mut drives = self.drives.iter();
        let own = drives.find(|drive| drive.owned.load(Ordering::Relaxed));
        own.map(|drive| drive.id.as_str())
    }

    /// Gives drives whose images are the caller's own their images back, with what was written
    /// since they were frozen. Nobody may be reading the frozen images any more.
    pub fn reunite(&self) -> Result<(), DriveError> {
        for drive in &self.drives {
            if drive.owned.load(Ordering::Relaxed) {
                continue;
            }
            let mut transport = lock(&drive.transport);
            let taken = with_block(&mut transport, Block::take_back);
            if let Some(overlay) = taken.transpose()?.flatten() {
                // What it held is in the image now.
                let _ = fs::remove_file(overlay);
            }
        }
        Ok(())
    }
}

/// Removes overlays that were not used.
pub(super) fn discard(overlays: Vec<Overlay>) {
    for overlay in overlays {
        let _ = fs::remove_file(overlay.layer.path());
    }
}

/// A new path for a layer of a drive: in `dir`, or beside the drive's topmost layer.
pub(super) fn layer_path(dir: Option<&Path>, top: &Layer, drive: &str) -> PathBuf {
    let beside = top.path().parent().unwrap_or(Path::new("."));
    let name = format!(".{drive}-{}.qcow2", crate::client::new_request_id());
    dir.unwrap_or(beside).join(name)
}

fn with_locked<T>(
    drive: &Drive,
    locked: &mut Locked<'_>,
    work: impl FnOnce(&mut Block) -> T,
) -> Result<T, DriveError> {
    let name = super::parts::drive_section(&drive.id);
    let transport = locked.iter_mut().find(|(other, _)| *other == name);
    let done = transport.and_then(|(_, transport)| with_block(transport, work));
    done.ok_or_else(|| DriveError::Unknown(drive.id.clone()))
}

/// The drive's files, the lowest first.
pub(super) fn layers_of(drive: &Drive) -> Result<Vec<Layer>, DriveError> {
    let layers = with_block(&mut lock(&drive.transport), |block| block.layers());
    Ok(layers.ok_or_else(|| DriveError::Unknown(drive.id.clone()))??)
}

pub(super) fn with_block<T>(
    transport: &mut MmioTransport,
    work: impl FnOnce(&mut Block) -> T,
) -> Option<T> {
    let device: &mut dyn std::any::Any = transport.device_mut();
    device.downcast_mut::<Block>().map(work)
}

/// The path for a restored machine's own layer of a drive.
pub fn overlay_path(dir: &Path, drive: &str) -> PathBuf {
    dir.join(format!(
        "disk-{drive}-{}.qcow2",
        crate::client::new_request_id()
    ))
}
