//! A drive in one file, byte for byte: an image, or a block device of the host.
//!
//! Reads, writes and flushes go through io_uring where the kernel lets us have one, everything
//! else, and everything where it does not, to a thread of the drive's own. Both are made when the
//! first request needs them: most drives of a short run never need the thread, and opening a drive
//! costs no more than opening its file.

mod blocking;
mod uring;

use std::fs::{File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use self::uring::Uring;
use super::layers::{Format, Layer, LayerError};
use super::lock::try_lock;
use super::worker::Worker;
use super::{Backend, BlockConfig, BlockError, Completion, Engine, Operation, SECTOR, Token};

/// The backend over a file.
///
/// For a system call filter: the first request makes the thread of the event loop call
/// `io_uring_setup`, `mmap` and `io_uring_register`, and each one `io_uring_enter`. The drive's own
/// thread is made by the event loop's, and inherits its filter; it needs `preadv`, `pwritev2`,
/// `pwrite64`, `fdatasync`, `fallocate`, `futex` and `write`.
pub struct RawFile {
    path: PathBuf,
    read_only: bool,
    file: Arc<File>,
    capacity: u64,
    event: Arc<EventFd>,
    uring: Ring,
    worker: Worker<Arc<File>>,
}

enum Ring {
    Untried,
    Ready(Box<Uring>),
    /// Not to be had, or not wanted.
    None,
}

/// What takes a file's place.
pub(super) enum Replacement {
    /// The same file with another size.
    Size(u64),
    /// Another file.
    File(Box<RawFile>),
}

impl RawFile {
    /// Opens and locks the file.
    pub fn open(config: &BlockConfig) -> Result<Self, BlockError> {
        let event =
            EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(|source| BlockError::Events {
                drive: config.id.clone(),
                source,
            })?;
        Self::open_with(config, Arc::new(event))
    }

    /// Opens what is to take this file's place. The same image again is the same open file, as
    /// its lock would exclude a second one.
    pub(super) fn prepare(&self, config: &BlockConfig) -> Result<Replacement, BlockError> {
        let same = |meta: &Metadata| {
            let ours = self.file.metadata();
            ours.is_ok_and(|ours| (ours.dev(), ours.ino()) == (meta.dev(), meta.ino()))
        };
        match std::fs::metadata(&config.path) {
            Ok(meta) if same(&meta) => Ok(Replacement::Size(capacity(&self.file, config)?)),
            _ => Self::open_with(config, self.event.clone())
                .map(|file| Replacement::File(Box::new(file))),
        }
    }

    /// Puts it in this file's place. Nothing is in flight.
    pub(super) fn replace(&mut self, by: Replacement) {
        match by {
            Replacement::Size(capacity) => self.capacity = capacity,
            Replacement::File(file) => *self = *file,
        }
    }

    /// The file once more, as a layer of a disk.
    pub(super) fn layer(&self) -> Result<Layer, LayerError> {
        let file = self.file.try_clone().map_err(|source| LayerError::Io {
            action: "open",
            path: self.path.clone(),
            source,
        })?;
        Layer::new(&self.path, file, Format::Raw, !self.read_only)
    }

    /// The file of a raw layer that is alone its disk.
    pub(super) fn of_layer(
        id: &str,
        layer: &Layer,
        event: Arc<EventFd>,
    ) -> Result<Self, LayerError> {
        let file = layer.try_clone()?.into_file();
        let file = Arc::new(file);
        Ok(Self {
            path: layer.path().to_owned(),
            read_only: !layer.is_writable(),
            worker: Worker::new(id, file.clone(), event.clone()),
            file,
            capacity: layer.virtual_size() / SECTOR * SECTOR,
            event,
            uring: Ring::Untried,
        })
    }

    pub(super) fn open_with(config: &BlockConfig, event: Arc<EventFd>) -> Result<Self, BlockError> {
        let drive = || config.id.clone();
        let path = || config.path.clone();
        let open = |source| BlockError::Open {
            drive: drive(),
            path: path(),
            source,
        };
        let not_a_disk = |kind| BlockError::NotADisk {
            drive: drive(),
            path: path(),
            kind,
        };
        // Before it is opened: opening a FIFO would wait for its other end.
        let kind = std::fs::metadata(&config.path).map_err(open)?.file_type();
        reject(kind).map_err(not_a_disk)?;
        let file = OpenOptions::new()
            .read(true)
            .write(!config.read_only)
            .open(&config.path)
            .map_err(open)?;
        lock(&file, config)?;
        let capacity = capacity(&file, config)?;
        let file = Arc::new(file);
        Ok(Self {
            path: config.path.clone(),
            read_only: config.read_only,
            worker: Worker::new(&config.id, file.clone(), event.clone()),
            file,
            capacity,
            event,
            uring: match config.engine {
                Engine::Auto => Ring::Untried,
                Engine::Thread => Ring::None,
            },
        })
    }

    /// Whether requests go through io_uring; `None` before the first one.
    pub fn uses_io_uring(&self) -> Option<bool> {
        match self.uring {
            Ring::Untried => None,
            Ring::Ready(_) => Some(true),
            Ring::None => Some(false),
        }
    }

    fn uring(&mut self) -> Option<&mut Uring> {
        if let Ring::Untried = self.uring {
            self.uring = match Uring::new(self.file.clone(), self.event.clone()) {
                Ok(uring) => Ring::Ready(Box::new(uring)),
                Err(_) => Ring::None,
            };
        }
        match &mut self.uring {
            Ring::Ready(uring) => Some(uring),
            _ => None,
        }
    }
}

impl Backend for RawFile {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn event(&self) -> &Arc<EventFd> {
        &self.event
    }

    fn submit(&mut self, token: Token, operation: Operation) {
        use Operation::{Flush, Read, Write};
        let refused = match operation {
            Read { .. } | Write { .. } | Flush => match self.uring() {
                Some(uring) => uring.submit(token, operation),
                None => Err(operation),
            },
            // These would always go to a thread of the kernel's, and may have to be made up for
            // where the file system lacks them.
            _ => Err(operation),
        };
        if let Err(operation) = refused {
            self.worker.submit(token, operation);
        }
    }

    fn start(&mut self) {
        if let Ring::Ready(uring) = &mut self.uring {
            for (token, operation) in uring.start() {
                self.worker.submit(token, operation);
            }
        }
        self.worker.start();
    }

    fn completed(&mut self, into: &mut Vec<Completion>) {
        if let Ring::Ready(uring) = &mut self.uring
            && uring.completed(into)
        {
            self.start();
        }
        self.worker.completed(into);
    }
}

fn reject(kind: FileType) -> Result<(), &'static str> {
    match kind {
        kind if kind.is_file() || kind.is_block_device() => Ok(()),
        kind if kind.is_dir() => Err("directory"),
        kind if kind.is_fifo() => Err("FIFO"),
        kind if kind.is_socket() => Err("socket"),
        _ => Err("character device"),
    }
}

/// Bytes in whole sectors.
fn capacity(file: &File, config: &BlockConfig) -> Result<u64, BlockError> {
    let (drive, path) = (config.id.clone(), config.path.clone());
    match (&mut &*file).seek(SeekFrom::End(0)) {
        Ok(size) if size < SECTOR => Err(BlockError::TooSmall { drive, path, size }),
        Ok(size) => Ok(size - size % SECTOR),
        Err(source) => Err(BlockError::Size {
            drive,
            path,
            source,
        }),
    }
}

/// Many may read an image, or one may write it.
fn lock(file: &File, config: &BlockConfig) -> Result<(), BlockError> {
    let (drive, path) = (config.id.clone(), config.path.clone());
    let read_only = config.read_only;
    try_lock(file, !read_only).map_err(|error| match error {
        TryLockError::WouldBlock => BlockError::InUse {
            drive,
            path,
            read_only,
        },
        TryLockError::Error(source) => BlockError::Lock {
            drive,
            path,
            source,
        },
    })
}
