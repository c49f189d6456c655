//! The seam between the device and where its bytes are.

use std::io;
use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

use super::Buffers;

/// Names an operation in flight. Chosen by the device: a small number, unique among those in
/// flight.
pub type Token = u16;

/// One thing for a backend to do. Offsets and lengths are in bytes, multiples of 512, and lie
/// within the backend's capacity.
#[derive(Debug)]
pub enum Operation {
    /// Fill the buffers.
    Read {
        /// Where to read.
        offset: u64,
        /// Where to put it.
        buffers: Buffers,
    },
    /// Store what is in the buffers.
    Write {
        /// Where to write.
        offset: u64,
        /// What to write.
        buffers: Buffers,
        /// It must survive a crash of the host once it has completed.
        durable: bool,
    },
    /// Make everything durable whose completion was taken before this was submitted.
    Flush,
    /// The range is of no use to the guest any more. A hint: doing nothing is a success.
    Discard {
        /// Start of the range.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// Make the range read as zeroes.
    WriteZeroes {
        /// Start of the range.
        offset: u64,
        /// Its length.
        len: u64,
        /// The range's room may be given back.
        unmap: bool,
        /// It must survive a crash of the host once it has completed.
        durable: bool,
    },
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation.
    pub token: Token,
    /// How many bytes were read or written (less than asked is an error too: the device says so
    /// to the guest), or why it failed.
    pub result: io::Result<u64>,
}

/// Storage behind a [`super::Block`]. Operations run side by side and end in any order; the
/// device orders nothing but a flush after the writes that it has seen complete.
///
/// Dropping a backend ends its operations: none touches guest memory after the drop.
pub trait Backend: Send + 'static {
    /// How many bytes there are, a multiple of 512.
    fn capacity(&self) -> u64;

    /// A non-blocking eventfd, the same one for the backend's life, that the backend writes after
    /// it has a completion to take. (The device reads it, and may write it to be called again.)
    fn event(&self) -> &Arc<EventFd>;

    /// Takes an operation, without waiting for anything. It need not begin before
    /// [`Self::start`]. Every operation taken completes some time, be it with an error.
    fn submit(&mut self, token: Token, operation: Operation);

    /// Begins everything submitted.
    fn start(&mut self);

    /// Appends the operations that ended since the last call. Does not wait.
    fn completed(&mut self, into: &mut Vec<Completion>);
}
