//! New images: an empty qcow2 over something, or over nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder};

use super::layer::io_error;
use super::{Format, Layer, LayerError};

/// What a new image's header says that it lies over. For other tools: it is never followed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing<'a> {
    /// The file's name; relative, it is sought beside the image.
    pub name: &'a str,
    /// How the disk is in it.
    pub format: Format,
}

/// Makes the file `path`, which must not exist, an empty qcow2 image of a disk of `virtual_size`
/// bytes, open to be written. It reads as what is put under it.
///
/// The file is not synced: a machine that needs it after a crash of the host syncs it and its
/// directory first.
///
/// # Errors
///
/// When the file is there already, or cannot be made. Nothing of it is left then.
pub fn create(
    path: &Path,
    virtual_size: u64,
    backing: Option<Backing<'_>>,
) -> Result<Layer, LayerError> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.map_err(|source| io_error("make", path, source))?;
    let made = format(&file, virtual_size, backing)
        .map_err(|source| io_error("make a qcow2 image of", path, source))
        .and_then(|()| Layer::new(path, file, Format::Qcow2, true));
    if made.is_err() {
        let _ = std::fs::remove_file(path);
    }
    made
}

fn format(file: &File, virtual_size: u64, backing: Option<Backing<'_>>) -> io::Result<()> {
    let storage = imago::file::File::try_from(file.try_clone()?)?;
    let mut builder = Qcow2::<imago::file::File>::create_builder(storage).size(virtual_size);
    if let Some(Backing { name, format }) = backing {
        builder = builder.backing(name.to_owned(), format.extension().to_owned());
    }
    let image = builder.create_open(DenyImplicitOpenGate::default(), |storage| {
        Ok(Qcow2::<imago::file::File>::builder(storage).backing(None))
    })?;
    FormatAccess::new(image).flush()
}
