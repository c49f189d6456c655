//! Guest memory as a list of host buffers, for vectored I/O without a copy in between.
//!
//! A leaf with `unsafe` in it. What makes it sound: a [`Buffers`] is built from ranges that guest
//! memory has checked, and owns a reference to that memory, so the mapping outlives it. The guest
//! may change the bytes at any time; nobody makes a Rust reference to them.

use std::sync::Arc;

use libc::iovec;
use vm_memory::{GuestAddress, GuestMemoryBackend, VolatileSlice};

use crate::GuestMemory;

/// Ranges of guest memory, in order.
pub struct Buffers {
    iovecs: Vec<iovec>,
    /// Those before are used up, see [`Self::advance`].
    first: usize,
    len: usize,
    /// Keeps the memory mapped that `iovecs` points into.
    _mem: Arc<GuestMemory>,
}

// SAFETY: the pointers are into a mapping that `_mem` keeps alive, shared between threads anyhow,
// and accessed only by the kernel or as volatile slices.
unsafe impl Send for Buffers {}

impl Buffers {
    /// The ranges given, or `None` if some byte of them is not in memory.
    pub fn new(
        mem: &Arc<GuestMemory>,
        ranges: impl IntoIterator<Item = (GuestAddress, u32)>,
    ) -> Option<Self> {
        let mut iovecs: Vec<iovec> = Vec::new();
        let mut len = 0usize;
        for (addr, count) in ranges {
            for slice in mem.get_slices(addr, count as usize) {
                let slice = slice.ok()?;
                let base = slice.ptr_guard_mut().as_ptr().cast();
                len = len.checked_add(slice.len())?;
                iovecs.push(iovec {
                    iov_base: base,
                    iov_len: slice.len(),
                });
            }
        }
        Some(Self {
            iovecs,
            first: 0,
            len,
            _mem: mem.clone(),
        })
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, for a backend that copies them.
    pub fn slices(&self) -> impl Iterator<Item = VolatileSlice<'_>> {
        self.iovecs().iter().map(|part| {
            // SAFETY: the iovec is a checked range of a mapping that `self` keeps alive for as
            // long as the slice borrows it.
            unsafe { VolatileSlice::new(part.iov_base.cast(), part.iov_len) }
        })
    }

    /// Forgets the first `count` bytes.
    ///
    /// Not while the kernel works on the buffers: it reads the list.
    pub fn advance(&mut self, count: usize) {
        let mut count = count.min(self.len);
        self.len -= count;
        while let Some(part) = self.iovecs.get_mut(self.first) {
            if count < part.iov_len {
                part.iov_len -= count;
                part.iov_base = part.iov_base.wrapping_byte_add(count);
                return;
            }
            count -= part.iov_len;
            self.first += 1;
        }
    }

    /// The list for the kernel, at most as long as one call takes. It stays where it is when
    /// `self` moves.
    pub(super) fn iovecs(&self) -> &[iovec] {
        let parts = &self.iovecs[self.first..];
        &parts[..parts.len().min(libc::UIO_MAXIOV as usize)]
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffers({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

    fn mem() -> Arc<GuestMemory> {
        let ranges = [(GuestAddress(0), 0x1000), (GuestAddress(0x1000), 0x1000)];
        Arc::new(GuestMemory::from_ranges(&ranges).unwrap())
    }

    fn bytes(buffers: &Buffers) -> Vec<u8> {
        let mut all = Vec::new();
        for slice in buffers.slices() {
            let start = all.len();
            all.resize(start + slice.len(), 0);
            slice.copy_to(&mut all[start..]);
        }
        all
    }

    #[test]
    fn ranges_may_cross_regions_and_are_read_in_order() {
        let mem = mem();
        mem.write_slice(b"abcd", GuestAddress(0xffe)).unwrap();
        mem.write_slice(b"xy", GuestAddress(0x10)).unwrap();
        let ranges = [(GuestAddress(0xffe), 4), (GuestAddress(0x10), 2)];
        let mut buffers = Buffers::new(&mem, ranges).unwrap();
        assert_eq!(bytes(&buffers), b"abcdxy");
        for left in (0..6).rev() {
            buffers.advance(1);
            assert_eq!(buffers.len(), left);
            assert_eq!(bytes(&buffers), b"abcdxy"[6 - left..]);
        }
        buffers.advance(100);
        assert!(buffers.is_empty() && buffers.iovecs().is_empty());
    }

    #[test]
    fn a_range_outside_memory_makes_no_buffers() {
        let mem = mem();
        for (addr, len) in [(0x1fff, 2), (0x2000, 1), (u64::MAX, 1), (u64::MAX - 3, 16)] {
            let ranges = [(GuestAddress(0), 4), (GuestAddress(addr), len)];
            assert!(Buffers::new(&mem, ranges).is_none(), "{addr:#x}+{len}");
        }
    }
}
