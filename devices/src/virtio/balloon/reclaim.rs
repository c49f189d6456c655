//! Giving ranges of guest memory back to the host. A leaf with `unsafe` in it.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

use crate::GuestMemory;

/// Knows how guest memory is mapped now.
pub trait MemoryReclaim: Send + Sync {
    /// Gives memory back: the guest does not care for what is in the range until it writes there
    /// again. The range is of whole pages and lies within one region of `mem`.
    fn reclaim(&self, mem: &GuestMemory, start: GuestAddress, len: u64) -> io::Result<()>;
}

/// Guest memory as its regions say that they are mapped, until it is said to be private.
///
/// * Mapped MAP_SHARED from a file: the range is punched out of the file.
/// * Mapped in any other way: the pages of this process are dropped; what a file has there shows
///   through. The file itself, which may be an image that others use, is left alone.
///
/// So after a restore, and after a snapshot has frozen memory, a page that was given back does not
/// read as zeroes: the guest finds there what it had in it at the snapshot. It is its own memory,
/// and no driver may count on what such a page holds (sections 5.5.6 and 5.5.6.7; Linux does not
/// report free pages to a device that promises nothing, where it relies on poison in them). What
/// this process had written there is given back in full; the image's page stays in the page cache,
/// which the host reclaims by itself.
#[derive(Debug, Default)]
pub struct MappedMemory {
    private: AtomicBool,
    kept: AtomicBool,
}

impl MappedMemory {
    /// Memory mapped as its regions say.
    pub fn new() -> Self {
        Self::default()
    }

    /// The regions are mapped privately over their file from now on, or are not any more: a
    /// snapshot freezes the file. To be called with the devices stopped, before they go on. Regions
    /// that were made as private ones, over a snapshot's memory, need no such call.
    pub fn set_private(&self, private: bool) {
        self.private.store(private, Ordering::SeqCst);
    }

    /// Nothing is given back as long as this is so: what vanishes would come again as it once was,
    /// where another process serves memory.
    pub fn set_kept(&self, kept: bool) {
        self.kept.store(kept, Ordering::SeqCst);
    }
}

impl MemoryReclaim for MappedMemory {
    fn reclaim(&self, mem: &GuestMemory, start: GuestAddress, len: u64) -> io::Result<()> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let (region, offset) = mem.to_region_addr(start).ok_or_else(outside)?;
        let len = usize::try_from(len).map_err(|_| outside())?;
        // Checks the range, and that it is in this one region.
        let slice = region
            .get_slice(MemoryRegionAddress(offset.0), len)
            .map_err(|_| outside())?;
        if self.kept.load(Ordering::SeqCst) {
            return Ok(());
        }
        let shared = region.flags() & libc::MAP_SHARED != 0 && !self.private.load(Ordering::SeqCst);
        let result = match region.file_offset().filter(|_| shared) {
            Some(file) => {
                // SAFETY: no memory is passed. What vanishes from the file reads as zeroes in guest
                // memory, which changes under everyone at any time anyhow.
                unsafe {
                    libc::fallocate(
                        file.file().as_raw_fd(),
                        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                        (file.start() + offset.0) as libc::off_t,
                        len as libc::off_t,
                    )
                }
            }
            None => {
                let start = slice.ptr_guard_mut().as_ptr().cast();
                // SAFETY: the range is mapped guest memory, no Rust reference covers it, and it
                // stays mapped: its content alone changes, which it does at any time anyhow.
                unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) }
            }
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
