//! Guest memory as the kernel takes it: lists of host buffers, reused from frame to frame.
//!
//! A leaf with `unsafe` in it. What makes it sound: a list is built from ranges that guest memory
//! has checked, by an owner that keeps a reference to that memory, so the mapping outlives the
//! list. The guest may change the bytes at any time; nobody makes a Rust reference to them.

use std::collections::VecDeque;
use std::sync::Arc;

use libc::iovec;
use vm_memory::{GuestMemoryBackend, VolatileSlice};

use super::MAX_FRAME_LEN;
use crate::GuestMemory;
use crate::virtio::Chain;

/// Most parts of one frame; one more is the overflow's. Together they are what one call takes.
pub(super) const MAX_PARTS: usize = libc::UIO_MAXIOV as usize - 1;

/// Host buffers, in order.
#[derive(Clone, Copy)]
pub struct Buffers<'a> {
    iovecs: &'a [iovec],
}

impl<'a> Buffers<'a> {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.iovecs.iter().map(|part| part.iov_len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, for whoever copies them.
    pub fn slices(&self) -> impl Iterator<Item = VolatileSlice<'a>> + use<'a> {
        self.iovecs.iter().map(|part| {
            // SAFETY: each entry is a checked range of a mapping, or of memory, that the list's
            // owner keeps alive for as long as the list is borrowed.
            unsafe { VolatileSlice::new(part.iov_base.cast(), part.iov_len) }
        })
    }

    /// Copies from the first bytes on, as many as there are, and returns how many that is.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in self.slices() {
            if done == into.len() {
                break;
            }
            done += slice.copy_to(&mut into[done..]);
        }
        done
    }

    /// Copies `bytes` to `offset`; what has no place is left out.
    pub fn copy_from(&self, mut offset: usize, mut bytes: &[u8]) {
        for slice in self.slices() {
            if let Ok(rest) = slice.offset(offset) {
                rest.copy_from(bytes);
                bytes = &bytes[rest.len().min(bytes.len())..];
            }
            offset = offset.saturating_sub(slice.len());
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// The list for the kernel.
    pub(super) fn iovecs(&self) -> &'a [iovec] {
        self.iovecs
    }
}

/// The chain is of no use: not in memory, too many parts, or of the wrong kind.
#[derive(Debug)]
pub(super) struct Malformed;

/// Appends a chain's buffers; gives their bytes.
fn append(
    list: &mut impl Extend<iovec>,
    mem: &GuestMemory,
    chain: Chain,
    writable: bool,
) -> Result<(usize, usize), Malformed> {
    let (mut parts, mut len) = (0, 0);
    let mut ended = false;
    for descriptor in chain.take(MAX_PARTS) {
        ended = !descriptor.has_next();
        if descriptor.len() == 0 {
            continue;
        }
        if descriptor.is_write_only() != writable {
            return Err(Malformed);
        }
        for slice in mem.get_slices(descriptor.addr(), descriptor.len() as usize) {
            let slice = slice.map_err(|_| Malformed)?;
            parts += 1;
            len += slice.len();
            if parts > MAX_PARTS {
                return Err(Malformed);
            }
            list.extend([iovec {
                iov_base: slice.ptr_guard_mut().as_ptr().cast(),
                iov_len: slice.len(),
            }]);
        }
    }
    // A loop, an index out of the table or a table out of memory cut the chain off.
    if ended {
        Ok((parts, len))
    } else {
        Err(Malformed)
    }
}

/// One frame from the guest.
pub(super) struct TxFrame {
    mem: Arc<GuestMemory>,
    parts: Vec<iovec>,
}

// SAFETY: the pointers are into a mapping that `mem` keeps alive, shared between threads anyhow,
// and accessed only by the kernel or as volatile slices.
unsafe impl Send for TxFrame {}

impl TxFrame {
    pub fn new(mem: Arc<GuestMemory>) -> Self {
        Self {
            mem,
            parts: Vec::new(),
        }
    }

    /// Puts the frame of a chain in place of the one before; gives its length.
    pub fn load(&mut self, chain: Chain) -> Result<usize, Malformed> {
        self.parts.clear();
        let (_, len) = append(&mut self.parts, &self.mem, chain, false)?;
        Ok(len)
    }

    pub fn buffers(&self) -> Buffers<'_> {
        Buffers {
            iovecs: &self.parts,
        }
    }
}

/// Room for frames to the guest: the chains in hand, and an overflow for what of a frame does not
/// fit into them yet.
pub(super) struct RxRoom {
    mem: Arc<GuestMemory>,
    /// Head, parts and bytes of each chain.
    chains: VecDeque<(u16, usize, usize)>,
    parts: VecDeque<iovec>,
    len: usize,
    overflow: Box<[u8]>,
    call: Vec<iovec>,
}

// SAFETY: as for `TxFrame`; `call` is rebuilt before each use and besides points into `overflow`,
// which is owned.
unsafe impl Send for RxRoom {}

impl RxRoom {
    pub fn new(mem: Arc<GuestMemory>) -> Self {
        Self {
            mem,
            chains: VecDeque::new(),
            parts: VecDeque::new(),
            len: 0,
            overflow: vec![0; MAX_FRAME_LEN].into(),
            call: Vec::new(),
        }
    }

    /// Takes a chain in hand.
    pub fn add(&mut self, chain: Chain) -> Result<(), Malformed> {
        let head = chain.head_index();
        let before = self.parts.len();
        match append(&mut self.parts, &self.mem, chain, true) {
            Ok((parts, len @ 1..)) => {
                self.chains.push_back((head, parts, len));
                self.len += len;
                Ok(())
            }
            _ => {
                self.parts.truncate(before);
                Err(Malformed)
            }
        }
    }

    /// Chains in hand.
    pub fn chains(&self) -> usize {
        self.chains.len()
    }

    /// Parts of guest memory in hand.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes in hand.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All the room there is for one frame, the overflow at its end, and how many bytes of guest
    /// memory come before that.
    pub fn buffers(&mut self) -> (Buffers<'_>, usize) {
        self.call.clear();
        self.call.extend(self.parts.iter().take(MAX_PARTS));
        let len = self.call.iter().map(|part| part.iov_len).sum();
        self.call.push(iovec {
            iov_base: self.overflow.as_mut_ptr().cast(),
            iov_len: self.overflow.len(),
        });
        let iovecs = &self.call;
        (Buffers { iovecs }, len)
    }

    /// Copies what lies in the overflow to `offset` of the chains in hand, which have room for it.
    pub fn spill(&mut self, offset: usize, count: usize) {
        self.call.clear();
        self.call.extend(self.parts.iter());
        let iovecs = &self.call;
        Buffers { iovecs }.copy_from(offset, &self.overflow[..count]);
    }

    /// How many chains, from the first one, a frame of `len` bytes takes.
    pub fn needed(&self, len: usize) -> usize {
        let mut left = len;
        let taken = self.chains.iter().take_while(|(_, _, room)| {
            let more = left > 0;
            left = left.saturating_sub(*room);
            more
        });
        taken.count()
    }

    /// Lets go of the first chain: its head, and its bytes.
    pub fn pop(&mut self) -> Option<(u16, usize)> {
        let (head, parts, len) = self.chains.pop_front()?;
        self.parts.drain(..parts);
        self.len -= len;
        Some((head, len))
    }

    /// Writes to guest memory in hand.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.buffers().0.copy_from(offset, bytes);
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;

    fn list(parts: &mut [Vec<u8>]) -> Vec<iovec> {
        let entry = |part: &mut Vec<u8>| iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        };
        parts.iter_mut().map(entry).collect()
    }

    #[test]
    fn bytes_are_copied_across_parts_from_any_offset() {
        for offset in 0..8 {
            let mut parts = [vec![0; 3], vec![0; 1], vec![0; 3]];
            let iovecs = list(&mut parts);
            let buffers = Buffers { iovecs: &iovecs };
            buffers.copy_from(offset, b"abcd");
            let mut all = [0xff; 7];
            assert_eq!((buffers.copy_to(&mut all), buffers.len()), (7, 7));
            let expected: Vec<u8> = (0..7)
                .map(|at| *b"abcd".get(at - offset.min(at)).unwrap_or(&0))
                .enumerate()
                .map(|(at, byte)| if at < offset { 0 } else { byte })
                .collect();
            assert_eq!(all.as_slice(), expected, "{offset}");
        }
    }

    #[test]
    fn ranges_outside_of_memory_are_not_in_any_list() {
        let mem = GuestMemory::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        assert!(mem.get_slices(GuestAddress(0xfff), 2).any(|s| s.is_err()));
    }
}
