//! One layer: a file, open, locked and looked at.

use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::super::lock::try_lock;
use super::header::Header;
use super::{Format, LayerError, check, repair};

/// A file that is a disk, or part of one.
///
/// Many may read a file, or one may write it. The lock is the open file's: it ends when the last
/// descriptor of it is closed, however that comes.
#[derive(Debug)]
pub struct Layer {
    pub(super) path: PathBuf,
    pub(super) file: File,
    format: Format,
    writable: bool,
    virtual_size: u64,
    /// The image says that it lies over another.
    has_backing: bool,
    /// Bytes that are allocated at once.
    pub(super) cluster: u64,
    /// There is compressed data in it, of a layer to be written.
    pub(super) packed: bool,
}

impl Layer {
    /// Opens a file to be read, and locks it against writers.
    ///
    /// # Errors
    ///
    /// When it cannot be opened, is being written by another process, or is not in this format.
    pub fn open(path: &Path, format: Format) -> Result<Self, LayerError> {
        Self::new(path, open(path, false)?, format, false)
    }

    /// The same for a file that is open already; `path` is for messages.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn from_file(path: &Path, file: File, format: Format) -> Result<Self, LayerError> {
        let meta = file
            .metadata()
            .map_err(|source| io_error("look at", path, source))?;
        reject(path, meta.file_type())?;
        Self::new(path, file, format, false)
    }

    /// Opens a file to be written, and locks it against everybody else. A qcow2 image is looked at
    /// as a whole, and its reference counts are made anew if they are wrong, which they are when
    /// its last writer was killed.
    ///
    /// # Errors
    ///
    /// As [`Self::open`], and when the image is damaged beyond its reference counts.
    pub fn open_writable(path: &Path, format: Format) -> Result<Self, LayerError> {
        let mut layer = Self::new(path, open(path, true)?, format, true)?;
        if format == Format::Qcow2 {
            let checked = check(path, &layer.file)?;
            repair::repair(path, &layer.file, &checked)?;
            layer.packed = checked.packed > 0;
        }
        Ok(layer)
    }

    pub(in super::super) fn new(
        path: &Path,
        mut file: File,
        format: Format,
        writable: bool,
    ) -> Result<Self, LayerError> {
        try_lock(&file, writable).map_err(|error| match error {
            TryLockError::WouldBlock => LayerError::InUse {
                path: path.to_owned(),
                writable,
            },
            TryLockError::Error(source) => io_error("lock", path, source),
        })?;
        let (virtual_size, has_backing, cluster) = match format {
            Format::Raw => {
                let size = file.seek(SeekFrom::End(0));
                let size = size.map_err(|source| io_error("find out the size of", path, source))?;
                (size, false, 1)
            }
            Format::Qcow2 => {
                let header =
                    Header::read(&file).map_err(|source| io_error("read", path, source))?;
                let header = header.map_err(|reason| LayerError::Unfit {
                    path: path.to_owned(),
                    reason,
                })?;
                (header.virtual_size, header.has_backing, header.cluster())
            }
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            format,
            writable,
            virtual_size,
            has_backing,
            cluster,
            packed: false,
        })
    }

    /// Lets others read it too: nobody writes to it any more.
    pub(in super::super) fn share(&self) -> Result<(), LayerError> {
        let locked = self.file.lock_shared();
        locked.map_err(|source| io_error("lock", &self.path, source))
    }

    /// It is written again, by this disk alone: nobody else reads it.
    pub(in super::super) fn into_writable(self) -> Result<Self, LayerError> {
        match self.file.try_lock() {
            Ok(()) => Ok(Self {
                writable: true,
                ..self
            }),
            Err(TryLockError::WouldBlock) => Err(LayerError::InUse {
                path: self.path,
                writable: true,
            }),
            Err(TryLockError::Error(source)) => Err(io_error("lock", &self.path, source)),
        }
    }

    /// It is the same file as another one, whatever their paths.
    pub(in super::super) fn is_file_of(&self, other: &Self) -> Result<bool, LayerError> {
        let of = |layer: &Self| match layer.file.metadata() {
            Ok(meta) => Ok((meta.dev(), meta.ino())),
            Err(source) => Err(io_error("look at", &layer.path, source)),
        };
        Ok(of(self)? == of(other)?)
    }

    /// The open file.
    pub(in super::super) fn into_file(self) -> File {
        self.file
    }

    /// It is not written through this one.
    pub(in super::super) fn into_read_only(self) -> Self {
        Self {
            writable: false,
            ..self
        }
    }

    /// The same open file once more, with the same lock.
    ///
    /// # Errors
    ///
    /// When the process has no descriptors left.
    pub fn try_clone(&self) -> Result<Self, LayerError> {
        let file = self.file.try_clone();
        Ok(Self {
            path: self.path.clone(),
            file: file.map_err(|source| io_error("open", &self.path, source))?,
            ..*self
        })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// How the disk is in it.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether it was opened to be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Bytes of the disk that is seen through it.
    pub fn virtual_size(&self) -> u64 {
        self.virtual_size
    }

    /// Whether the image says that it lies over another one.
    pub fn has_backing(&self) -> bool {
        self.has_backing
    }

    pub(in super::super) fn unfit(&self, reason: impl Into<String>) -> LayerError {
        LayerError::Unfit {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }
}

fn open(path: &Path, writable: bool) -> Result<File, LayerError> {
    let failed = |source| io_error("open", path, source);
    // Before it is opened: opening a FIFO would wait for its other end.
    reject(path, std::fs::metadata(path).map_err(failed)?.file_type())?;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(writable)
        .open(path)
        .map_err(failed)
}

fn reject(path: &Path, kind: FileType) -> Result<(), LayerError> {
    let kind = match kind {
        kind if kind.is_file() || kind.is_block_device() => return Ok(()),
        kind if kind.is_dir() => "directory",
        kind if kind.is_fifo() => "FIFO",
        kind if kind.is_socket() => "socket",
        _ => "character device",
    };
    Err(LayerError::NotAFile {
        path: path.to_owned(),
        kind,
    })
}

pub(super) fn io_error(action: &'static str, path: &Path, source: io::Error) -> LayerError {
    LayerError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
