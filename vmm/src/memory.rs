//! Guest memory: one memfd, mapped shared, as one region below the MMIO gap and one above.
//!
//! The memfd is sealed against resizing, so no one who holds it can make a mapped page vanish.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

use tine_devices::GuestMemory;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap, MmapRegion};

use crate::layout;

/// Why guest memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file behind the memory could not be made.
    #[error("cannot create {size} bytes of guest memory: {source}")]
    Create {
        /// Size in bytes.
        size: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file could not be mapped.
    #[error("cannot map {size} bytes of guest memory: {reason}")]
    Map {
        /// Size in bytes.
        size: u64,
        /// What the kernel said.
        reason: String,
    },
}

/// The memory of one machine.
#[derive(Clone)]
pub struct MachineMemory {
    /// The mapped regions.
    pub regions: Arc<GuestMemory>,
    /// Size in bytes, without the gap.
    pub size: u64,
}

impl MachineMemory {
    /// Fresh, zeroed memory of `size` bytes. Nothing is allocated until it is touched.
    pub fn create(size: u64) -> Result<Self, MemoryError> {
        let file = create_memfd(c"tine-memory", size)
            .map_err(|source| MemoryError::Create { size, source })?;
        let file = Arc::new(file);
        let mut offset = 0;
        let mut regions = Vec::with_capacity(2);
        for range in layout::ram_ranges(size) {
            let len = range.end - range.start;
            let mapping = MmapRegion::build(
                Some(FileOffset::from_arc(file.clone(), offset)),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
            )
            .map_err(|err| MemoryError::Map {
                size: len,
                reason: err.to_string(),
            })?;
            regions.push(
                GuestRegionMmap::new(mapping, GuestAddress(range.start))
                    .expect("the address map does not wrap around"),
            );
            offset += len;
        }
        let regions = GuestMemory::from_regions(regions).expect("ranges are disjoint and sorted");
        Ok(Self {
            regions: Arc::new(regions),
            size,
        })
    }
}

fn create_memfd(name: &CStr, size: u64) -> io::Result<File> {
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an integer and touches no memory of ours.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryRegion};

    use super::*;

    #[test]
    fn memory_is_zero_and_has_the_size_asked_for() {
        let memory = MachineMemory::create(5 << 30).unwrap();
        let total: u64 = memory.regions.iter().map(|region| region.len()).sum();
        assert_eq!(total, 5 << 30);
        for addr in [0, layout::MMIO_GAP.start - 8, layout::MMIO_GAP.end] {
            assert_eq!(
                memory.regions.read_obj::<u64>(GuestAddress(addr)).unwrap(),
                0
            );
        }
        assert!(
            memory
                .regions
                .read_obj::<u64>(GuestAddress(layout::MMIO_GAP.start))
                .is_err()
        );
    }

    #[test]
    fn the_file_cannot_be_resized() {
        let memory = MachineMemory::create(layout::MIN_MEMORY).unwrap();
        let region = memory.regions.iter().next().unwrap();
        let file = region.file_offset().unwrap().file();
        assert!(file.set_len(0).is_err());
    }
}
