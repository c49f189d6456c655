//! The files that a drive's image is in: told, frozen and exchanged while the drive is in use. What is
//! in flight ends first, and the driver notices nothing.

use std::path::PathBuf;

use super::layers::{Format, Layer, LayerError};
use super::{Backend, Block, BlockConfig, BlockError, Image};
use crate::virtio::VirtioDevice;

impl Block<Image> {
    /// The drive's layers, the lowest first: its files, opened once more. The last one may be
    /// written to meanwhile, unless the drive is read-only or nothing runs.
    pub fn layers(&self) -> Result<Vec<Layer>, BlockError> {
        let layers = self.disk.backend.layers();
        layers.map_err(|source| self.layer_error(source))
    }

    /// The same when what was written so far is in the files, as another process would read them.
    /// They are not synced. The device is settled.
    pub fn flushed_layers(&self) -> Result<Vec<Layer>, BlockError> {
        let layers = self.disk.backend.flushed_layers();
        layers.map_err(|source| self.layer_error(source))
    }

    /// Freezes what was written so far, and goes on in `overlay`, a new and empty image of the
    /// same size (see [`layers::create`](super::layers::create)). The driver notices nothing. What
    /// is in flight ends first, and nothing new is begun before the event loop's next turn, so a
    /// settled device is one afterwards.
    ///
    /// Gives the frozen layers, the lowest first. They are whole, but not synced. After an error
    /// the drive goes on as it was.
    pub fn switch_to_overlay(&mut self, overlay: Layer) -> Result<Vec<Layer>, BlockError> {
        let (size, wanted) = (overlay.virtual_size(), self.disk.backend.capacity());
        let refuse = |reason: &str| {
            Err(BlockError::Overlay {
                drive: self.disk.id.clone(),
                path: overlay.path().to_owned(),
                reason: reason.to_owned(),
            })
        };
        if self.disk.read_only {
            return refuse("the drive is read-only, so that there is nothing to freeze");
        }
        if overlay.format() != Format::Qcow2 || !overlay.is_writable() {
            return refuse("it is not a qcow2 image that is open to be written");
        }
        if size != wanted {
            return refuse(&format!("it is of {size} bytes, and the drive of {wanted}"));
        }
        self.settle();
        let frozen = self.disk.backend.switch(&self.disk.id, overlay);
        self.go_on();
        frozen.map_err(|source| self.layer_error(source))
    }

    /// Undoes [`Self::switch_to_overlay`]: what was written since goes into the raw image that was
    /// frozen, which must not be in use by anybody else any more, and the drive goes on in it.
    /// Gives the overlay's file; `None` where the drive is not an overlay over a raw image. What is
    /// in flight ends first. After an error the drive goes on as it was.
    pub fn take_back(&mut self) -> Result<Option<PathBuf>, BlockError> {
        self.settle();
        let taken = self.disk.backend.take_back(&self.disk.id);
        self.go_on();
        taken.map_err(|source| self.layer_error(source))
    }

    /// Goes on with `merged`, which [`layers::merge`](super::layers::merge) has made of `instead`, in
    /// the place of those; they are the drive's layers right below its topmost. `below` is the name
    /// that `merged` will have beside the topmost in a snapshot. What is in flight ends first. Gives
    /// the paths that the drive does not use any more. After an error it goes on as it was.
    pub fn replace_below_top(
        &mut self,
        instead: &[Layer],
        merged: Layer,
        below: &str,
    ) -> Result<Vec<PathBuf>, BlockError> {
        self.settle();
        let id = &self.disk.id;
        let backend = &mut self.disk.backend;
        let replaced = backend.replace_below_top(id, instead, merged, below);
        self.go_on();
        replaced.map_err(|source| self.layer_error(source))
    }

    /// Whether the guest can only read.
    pub fn is_read_only(&self) -> bool {
        self.disk.read_only
    }

    fn layer_error(&self, source: LayerError) -> BlockError {
        BlockError::Layer {
            drive: self.disk.id.clone(),
            source,
        }
    }

    /// Requests may have come while nothing was taken.
    fn go_on(&mut self) {
        self.disk.stalled = true;
        let _ = self.disk.backend.event().write(1);
    }

    /// Goes on with another image, or with the same one and the size that it has by now. What is
    /// in flight ends first; nothing new is begun before the event loop's next turn, so a settled
    /// device is one afterwards. Only where `config` says that the disk is matters: the rest stays as it was, also when
    /// the image cannot be opened. If the size is another, the driver has to be told that the
    /// configuration space has changed.
    pub fn replace(&mut self, config: &BlockConfig) -> Result<(), BlockError> {
        let next = self.disk.backend.prepare(config)?;
        self.settle();
        self.disk.backend.replace(next);
        self.go_on();
        Ok(())
    }
}
