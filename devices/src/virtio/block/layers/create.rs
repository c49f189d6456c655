//! New images: an empty qcow2 over something, or over nothing.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

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
/// It has its name once its head is written: a process that is killed meanwhile leaves a file beside it
/// that ends in `.new`, and none that looks like an image and is not. The file is not synced: a machine that
/// needs it after a crash of the host syncs it and its directory first.
///
/// # Errors
///
/// When the file is there already, or cannot be made. Nothing of it is left then.
pub fn create(
    path: &Path,
    virtual_size: u64,
    backing: Option<Backing<'_>>,
) -> Result<Layer, LayerError> {
    let hidden = beside(path);
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&hidden);
    let file = file.map_err(|source| io_error("make", path, source))?;
    let made = format(&file, virtual_size, backing)
        .map_err(|source| io_error("make a qcow2 image of", path, source))
        .and_then(|()| Layer::new(path, file, Format::Qcow2, true))
        .and_then(|layer| match publish(&hidden, path) {
            Ok(()) => Ok(layer),
            Err(source) => Err(io_error("make", path, source)),
        });
    if made.is_err() {
        let _ = std::fs::remove_file(&hidden);
    }
    made
}

/// The name of an image in the making.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Gives it its name, which nothing else has.
fn publish(hidden: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE) {
        // A file system that knows no such rename.
        Err(Errno::INVAL) if path.symlink_metadata().is_err() => {
            renameat_with(CWD, hidden, CWD, path, RenameFlags::empty())
        }
        Err(Errno::INVAL) => Err(Errno::EXIST),
        other => other,
    }
    .map_err(Into::into)
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
