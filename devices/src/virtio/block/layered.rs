//! A drive made of layers. imago reads and writes on the calling thread, so all of it is done by a
//! thread of the drive's own.

use std::io;
use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

use super::layers::{Chain, Layer, LayerError};
use super::worker::{Perform, Worker};
use super::{Backend, Buffers, Completion, Operation, SECTOR, Token};

/// What is copied between guest memory and the layers at a time. imago takes slices, which guest
/// memory must never be.
const PIECE: usize = 256 << 10;

/// The backend over layers.
///
/// For a system call filter: the drive's thread needs `preadv`, `pwritev`, `pread64`, `pwrite64`,
/// `fallocate`, `ftruncate`, `fsync`, `fdatasync`, `futex` and `write`.
pub struct Layered {
    capacity: u64,
    event: Arc<EventFd>,
    worker: Worker<Disk>,
}

/// The layers, and room for a piece of a request.
struct Disk {
    chain: Chain,
    buffer: Vec<u8>,
}

impl Layered {
    /// A drive with this id over `layers`, that writes `event`.
    pub(super) fn new(
        id: &str,
        layers: Vec<Layer>,
        event: Arc<EventFd>,
    ) -> Result<Self, LayerError> {
        let chain = Chain::open(layers)?;
        let size = chain.virtual_size();
        let disk = Disk {
            chain,
            buffer: Vec::new(),
        };
        Ok(Self {
            capacity: size - size % SECTOR,
            worker: Worker::new(id, disk, event.clone()),
            event,
        })
    }

    /// The layers' files once more, the lowest first. Waits for the operation that is being done.
    pub(super) fn layers(&self) -> Result<Vec<Layer>, LayerError> {
        let disk = self.worker.disk();
        disk.chain.layers().iter().map(Layer::try_clone).collect()
    }

    /// Puts all that is known of the top into its file, so that it can be opened anew. Nothing is in
    /// flight.
    pub(super) fn settle(&self) -> Result<(), LayerError> {
        self.worker.disk().chain.settle_all()
    }

    /// Puts what is kept in memory into the top's file. Nothing is in flight.
    pub(super) fn flush(&self) -> Result<(), LayerError> {
        self.worker.disk().chain.flush_all()
    }
}

impl Backend for Layered {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn event(&self) -> &Arc<EventFd> {
        &self.event
    }

    fn submit(&mut self, token: Token, operation: Operation) {
        self.worker.submit(token, operation);
    }

    fn start(&mut self) {
        self.worker.start();
    }

    fn completed(&mut self, into: &mut Vec<Completion>) {
        self.worker.completed(into);
    }
}

impl Perform for Disk {
    fn perform(&mut self, operation: Operation) -> io::Result<u64> {
        let chain = &mut self.chain;
        match operation {
            Operation::Read { offset, buffers } => {
                pieces(buffers, offset, &mut self.buffer, |piece, into, at| {
                    chain.read(into, at)?;
                    piece.copy_from(into);
                    Ok(())
                })
            }
            Operation::Write {
                offset,
                buffers,
                durable,
            } => {
                let written = pieces(buffers, offset, &mut self.buffer, |piece, from, at| {
                    piece.copy_to(from);
                    chain.write(from, at)
                })?;
                if durable {
                    chain.sync()?;
                }
                Ok(written)
            }
            Operation::Flush => chain.sync().map(|()| 0),
            Operation::Discard { offset, len } => match chain.discard(offset, len) {
                // A hint.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(0),
                result => result.map(|()| 0),
            },
            Operation::WriteZeroes {
                offset,
                len,
                unmap,
                durable,
            } => {
                chain.write_zeroes(offset, len, unmap)?;
                if durable {
                    chain.sync()?;
                }
                Ok(0)
            }
        }
    }
}

/// A part of a request's buffers, to be copied out of or into.
struct Piece<'a> {
    buffers: &'a Buffers,
    len: usize,
}

impl Piece<'_> {
    fn copy_to(&self, into: &mut [u8]) {
        let mut at = 0;
        for slice in self.buffers.slices() {
            if at == self.len {
                return;
            }
            at += slice.copy_to(&mut into[at..self.len]);
        }
    }

    fn copy_from(&self, from: &[u8]) {
        let mut at = 0;
        for slice in self.buffers.slices() {
            if at == self.len {
                return;
            }
            let count = slice.len().min(self.len - at);
            slice.copy_from(&from[at..at + count]);
            at += count;
        }
    }
}

/// Does a request piece by piece; gives how much was done.
fn pieces(
    mut buffers: Buffers,
    offset: u64,
    room: &mut Vec<u8>,
    mut each: impl FnMut(&Piece<'_>, &mut [u8], u64) -> io::Result<()>,
) -> io::Result<u64> {
    let mut done = 0;
    while !buffers.is_empty() {
        // What one list of the kernel's would hold: longer ones come in several pieces anyway.
        let listed: usize = buffers.slices().map(|slice| slice.len()).sum();
        let len = listed.min(PIECE);
        if room.len() < len {
            room.resize(len, 0);
        }
        let piece = Piece {
            buffers: &buffers,
            len,
        };
        each(&piece, &mut room[..len], offset + done)?;
        buffers.advance(len);
        done += len as u64;
    }
    Ok(done)
}
