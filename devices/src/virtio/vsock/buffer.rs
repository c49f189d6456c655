//! What the guest sent and the host program has not taken yet. Credit bounds it.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;

use super::packet::Parts;
use super::stream::send_bytes;

/// Bytes on their way to a host socket. Takes no memory while it is empty.
#[derive(Default)]
pub struct Buffer {
    bytes: VecDeque<u8>,
}

impl Buffer {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds all of `parts` but the first `skip` bytes.
    pub fn push(&mut self, parts: &Parts, mut skip: usize) {
        let mut piece = [0; 4096];
        for part in parts.as_slice() {
            let mut at = skip.min(part.len());
            skip -= at;
            while at < part.len() {
                let rest = part.offset(at).expect("within the part");
                let len = rest.copy_to(&mut piece);
                self.bytes.extend(&piece[..len]);
                at += len;
            }
        }
    }

    /// Sends as much as the socket takes and returns how much that was. An error means that the
    /// socket will never take more.
    pub fn flush(&mut self, stream: &UnixStream) -> io::Result<usize> {
        let mut total = 0;
        while !self.bytes.is_empty() {
            let (front, _) = self.bytes.as_slices();
            match send_bytes(stream, front) {
                Ok(sent) => {
                    self.bytes.drain(..sent);
                    total += sent;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        if self.bytes.is_empty() {
            self.bytes = VecDeque::new();
        }
        Ok(total)
    }

    /// Throws everything away.
    pub fn clear(&mut self) {
        self.bytes = VecDeque::new();
    }
}
