//! A disk made of layers, to be read and written.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;

use imago::file::File as Storage;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder};

use super::layer::io_error;
use super::{Format, Layer, LayerError};

/// Layers, the lowest first, as one disk.
#[derive(Debug)]
pub struct Chain {
    /// Dropped before the layers, and with them their locks.
    pub(super) image: FormatAccess<Storage>,
    pub(super) layers: Vec<Layer>,
    /// Clusters were freed, and it is not durable that they are.
    pub(super) freed: bool,
    /// Tables that are known to be in the top's file, by their numbers.
    pub(super) tables: HashSet<u64>,
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
            Some(image) => Ok(Self {
                image,
                layers,
                freed: false,
                tables: HashSet::new(),
            }),
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
        self.settle_freed(offset, buffer.len() as u64)?;
        self.image.write(buffer, offset)?;
        self.settle_packed()
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

    /// The same, and nothing is left that this value alone knows: clusters that are free are so
    /// durably.
    pub(in super::super) fn settle_all(&mut self) -> Result<(), LayerError> {
        let settled = match self.freed {
            true => self.sync(),
            false => self.flush(),
        };
        let path = self.layers.last().map_or(Path::new(""), Layer::path);
        settled.map_err(|source| io_error("write", path, source))
    }

    /// Makes everything durable that was written.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn sync(&mut self) -> io::Result<()> {
        self.image.flush()?;
        if let Some(top) = self.layers.last() {
            top.file().sync_data()?;
        }
        self.freed = false;
        Ok(())
    }

    /// Ends its use, and gives the layers back, frozen all of them.
    ///
    /// # Errors
    ///
    /// When what is in memory cannot be put into the file, or the lock cannot be had.
    pub fn freeze(self) -> Result<Vec<Layer>, LayerError> {
        self.flush_all()?;
        let Self {
            image, mut layers, ..
        } = self;
        drop(image);
        if let Some(top) = layers.pop() {
            top.share()?;
            layers.push(top.into_read_only());
        }
        Ok(layers)
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
