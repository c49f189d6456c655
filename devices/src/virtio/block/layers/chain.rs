//! A disk made of layers, to be read and written.

use std::fs::File;
use std::io;
use std::path::Path;

use imago::file::File as Storage;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Mapping, ShallowMapping};

use super::layer::io_error;
use super::{Format, Layer, LayerError};
use crate::virtio::block::sys;

/// What is written at a time where zeroes have to be written.
const ZEROES: u64 = 256 << 10;

/// Layers, the lowest first, as one disk.
#[derive(Debug)]
pub struct Chain {
    /// Dropped before the layers, and with them their locks.
    image: FormatAccess<Storage>,
    layers: Vec<Layer>,
}

/// Where a part of a disk is, as one layer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the layer's file, at this offset.
    File(u64),
    /// It is zeroes, whatever is below.
    Zero,
    /// In this layer, but not as it is: compressed.
    Packed,
    /// Not in this layer; where there is none below, it is zeroes.
    Below,
}

impl Chain {
    /// Puts layers over one another, the lowest first. The lowest has to be whole by itself, the
    /// others have to be qcow2. Only the top may have been opened to be written.
    ///
    /// # Errors
    ///
    /// When they cannot lie over one another like this, or an image cannot be read.
    pub fn open(layers: Vec<Layer>) -> Result<Self, LayerError> {
        match layers.first() {
            Some(lowest) if lowest.has_backing() => Err(lowest.unfit(
                "it lies over another image, and an image's word for which is not taken: name all \
                 layers, or make one of them (qemu-img convert)",
            )),
            _ => Self::assemble(layers),
        }
    }

    /// One layer as if there were nothing below it.
    pub(super) fn open_alone(layer: Layer) -> Result<Self, LayerError> {
        Self::assemble(vec![layer])
    }

    fn assemble(layers: Vec<Layer>) -> Result<Self, LayerError> {
        let mut below: Option<FormatAccess<Storage>> = None;
        for (n, layer) in layers.iter().enumerate() {
            let top = n + 1 == layers.len();
            if n > 0 && layer.format() == Format::Raw {
                return Err(layer.unfit("a raw image hides everything that it would lie over"));
            }
            if !top && layer.is_writable() {
                return Err(layer.unfit("it is open to be written, and below another layer"));
            }
            let image = open(layer, below.take());
            below = Some(image.map_err(|source| io_error("read the image", &layer.path, source))?);
        }
        match below {
            Some(image) => Ok(Self { image, layers }),
            None => Err(LayerError::Unfit {
                path: Default::default(),
                reason: "a disk without a layer".to_owned(),
            }),
        }
    }

    /// The layers, the lowest first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Bytes of the disk.
    pub fn virtual_size(&self) -> u64 {
        self.image.size()
    }

    /// Fills a buffer.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or an image is damaged.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.image.read(buffer, offset)
    }

    /// Stores a buffer.
    ///
    /// # Errors
    ///
    /// When the top was not opened to be written, or cannot be.
    pub fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.image.write(buffer, offset)?;
        self.settle_packed()
    }

    /// Writing over compressed data frees clusters: see [`Self::discard`].
    fn settle_packed(&self) -> io::Result<()> {
        match self.layers.last() {
            Some(top) if top.packed => self.image.flush(),
            _ => Ok(()),
        }
    }

    /// Makes a range zeroes. `unmap`: give back the room that it has.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        if unmap {
            return self.discard(offset, len);
        }
        match self.image.write_zeroes(offset, len) {
            // A format that has no word for them.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.write_many_zeroes(offset, len)?;
            }
            result => result?,
        }
        self.settle_packed()
    }

    fn write_many_zeroes(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let zeroes = vec![0; len.min(ZEROES) as usize];
        for at in (offset..offset + len).step_by(ZEROES as usize) {
            let piece = &zeroes[..(offset + len - at).min(ZEROES) as usize];
            self.image.write(piece, at)?;
        }
        Ok(())
    }

    /// Forgets a range, which is zeroes from then on, and gives its room back to the host.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        let (size, cluster) = (self.virtual_size(), self.top_cluster());
        // Clusters that are in the range as a whole; the last one of a disk ends with it.
        let first = offset.next_multiple_of(cluster).min(end);
        let last = if end == size {
            end
        } else {
            (end / cluster * cluster).max(first)
        };
        // Each step within one table of the image, which is there before clusters are freed: so
        // that none of those is taken again before their room is given back.
        let covered = (cluster / 8).saturating_mul(cluster).max(1 << 30);
        let mut at = first;
        while at < last {
            let next = (at / covered + 1).saturating_mul(covered).min(last);
            match self.discard_clusters(at, next - at) {
                // A format that has no word for zeroes.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    self.write_many_zeroes(at, next - at)?;
                }
                result => result?,
            }
            at = next;
        }
        for (start, end) in [(offset, first), (last, end)] {
            if start < end {
                self.write_zeroes(start, end - start, false)?;
            }
        }
        Ok(())
    }

    fn discard_clusters(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let places = self.places(offset, len)?;
        self.image.discard_to_zero(offset, len)?;
        if self
            .layers
            .last()
            .is_none_or(|top| top.format() == Format::Raw)
        {
            // imago has given the room back.
            return Ok(());
        }
        // imago leaves the file as it is.
        for (at, len, place) in places {
            let Place::File(in_file) = place else {
                continue;
            };
            if let (Some(top), true) = (self.layers.last(), self.is_out_of_file(at, len)?) {
                let _ = punch(top.file(), in_file, len);
            }
        }
        // Before the freed clusters are used again: a process killed later must not leave them in
        // two places.
        self.image.flush()
    }

    /// Bytes that the top allocates at once.
    fn top_cluster(&self) -> u64 {
        self.layers.last().map_or(1, |top| top.cluster)
    }

    /// Whether nothing of a range is in the top's file.
    fn is_out_of_file(&self, offset: u64, len: u64) -> io::Result<bool> {
        let places = self.places(offset, len)?;
        Ok(places
            .iter()
            .all(|(_, _, place)| matches!(place, Place::Zero | Place::Below)))
    }

    /// Puts what is kept in memory into the top's file. A process killed afterwards loses nothing
    /// of what was written before; the host may.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn flush(&self) -> io::Result<()> {
        self.image.flush()
    }

    /// The same, with an error that names the file.
    pub(in super::super) fn flush_all(&self) -> Result<(), LayerError> {
        let path = self.layers.last().map_or(Path::new(""), Layer::path);
        self.flush()
            .map_err(|source| io_error("write", path, source))
    }

    /// Makes everything durable that was written.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn sync(&self) -> io::Result<()> {
        self.image.flush()?;
        match self.layers.last() {
            Some(top) => top.file().sync_data(),
            None => Ok(()),
        }
    }

    /// Ends its use, and gives the layers back, frozen all of them.
    ///
    /// # Errors
    ///
    /// When what is in memory cannot be put into the file, or the lock cannot be had.
    pub fn freeze(self) -> Result<Vec<Layer>, LayerError> {
        self.flush_all()?;
        let Self { image, mut layers } = self;
        drop(image);
        if let Some(top) = layers.pop() {
            top.share()?;
            layers.push(top.into_read_only());
        }
        Ok(layers)
    }

    /// Where the start of a range is as the top sees it, and how much of the range is alike.
    pub(super) fn place(&self, offset: u64, len: u64) -> io::Result<(Place, u64)> {
        let (mapping, alike) = self.image.get_shallow_mapping(offset, len)?;
        let place = match mapping {
            ShallowMapping::Raw { offset, .. } => Place::File(offset),
            ShallowMapping::Zero { explicit: true, .. } => Place::Zero,
            ShallowMapping::Zero { .. } | ShallowMapping::Eof { .. } => Place::Below,
            ShallowMapping::Special { .. } => Place::Packed,
            ShallowMapping::Indirect { .. } => Place::Below,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        match alike {
            0 => Ok((place, len)),
            alike => Ok((place, alike.min(len))),
        }
    }

    /// Whether the start of a range is known to be zeroes by the layer that has it, and how much of
    /// the range is alike.
    pub(super) fn is_zero(&self, offset: u64, len: u64) -> io::Result<(bool, u64)> {
        let (mapping, alike) = self.image.get_mapping(offset, len)?;
        let zero = matches!(mapping, Mapping::Zero { .. } | Mapping::Eof { .. });
        match alike {
            0 => Ok((zero, len)),
            alike => Ok((zero, alike.min(len))),
        }
    }

    /// The same for all of a range: start, length and place of each part.
    pub(super) fn places(&self, offset: u64, len: u64) -> io::Result<Vec<(u64, u64, Place)>> {
        let mut places = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let (place, alike) = self.place(at, offset + len - at)?;
            places.push((at, alike, place));
            at += alike;
        }
        Ok(places)
    }
}

fn open(layer: &Layer, below: Option<FormatAccess<Storage>>) -> io::Result<FormatAccess<Storage>> {
    let file: File = layer.file().try_clone()?;
    let storage = Storage::try_from(file)?;
    let gate = DenyImplicitOpenGate::default();
    let writable = layer.is_writable();
    Ok(match layer.format() {
        Format::Raw => FormatAccess::new(Raw::builder(storage).write(writable).open(gate)?),
        Format::Qcow2 => {
            let builder = Qcow2::<Storage>::builder(storage).write(writable);
            FormatAccess::new(builder.backing(below).data_file(None).open(gate)?)
        }
    })
}

/// Gives back the room that a range of a file has.
fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(file, mode, offset, len)
}
