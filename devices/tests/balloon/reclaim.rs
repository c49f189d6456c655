//! Giving real memory back: what vanishes, and what must not.

use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use tine_devices::GuestMemory;
use tine_devices::testing::MEMORY_LEN;
use tine_devices::virtio::balloon::{BalloonConfig, MappedMemory, MemoryReclaim};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestRegionMmap, MmapRegion};

use super::driver::*;

const LEN: usize = 1 << 20;
/// Where in its file the memory begins.
const OFFSET: u64 = 0x10_0000;
const START: GuestAddress = GuestAddress(0x4000_0000);

fn memfd() -> Arc<File> {
    // SAFETY: the name is a NUL-terminated string.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new.
    let file = unsafe { File::from_raw_fd(fd) };
    file.write_all_at(&vec![1; OFFSET as usize + LEN], 0)
        .unwrap();
    Arc::new(file)
}

fn map(file: &Arc<File>, flags: i32) -> GuestMemory {
    let offset = FileOffset::from_arc(file.clone(), OFFSET);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let mapping = MmapRegion::build(Some(offset), LEN, prot, flags).unwrap();
    let region = GuestRegionMmap::new(mapping, START).unwrap();
    GuestMemory::from_regions(vec![region]).unwrap()
}

fn byte(mem: &GuestMemory, offset: u64) -> u8 {
    mem.read_obj(GuestAddress(START.0 + offset)).unwrap()
}

fn blocks(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

#[test]
fn shared_memory_is_punched_out_of_its_file() {
    let file = memfd();
    let mem = map(&file, libc::MAP_SHARED);
    let before = blocks(&file);
    let start = GuestAddress(START.0 + 0x2000);
    MappedMemory::new().reclaim(&mem, start, 0x3000).unwrap();
    assert_eq!(before - blocks(&file), 0x3000);
    let seen = [0x1fff, 0x2000, 0x4fff, 0x5000].map(|at| byte(&mem, at));
    assert_eq!(seen, [1, 0, 0, 1]);
    assert_eq!(file.metadata().unwrap().len(), OFFSET + LEN as u64);
}

#[test]
fn private_memory_is_dropped_and_its_image_is_left_alone() {
    let file = memfd();
    let mem = map(&file, libc::MAP_PRIVATE);
    mem.write_slice(&[2; 0x3000], START).unwrap();
    let before = blocks(&file);
    MappedMemory::new().reclaim(&mem, START, 0x2000).unwrap();
    assert_eq!(blocks(&file), before);
    let seen = [0, 0x1fff, 0x2000, 0x3000].map(|at| byte(&mem, at));
    assert_eq!(seen, [1, 1, 2, 1], "the image shows through");
}

#[test]
fn memory_that_a_snapshot_has_frozen_is_not_punched_any_more() {
    let file = memfd();
    let mem = map(&file, libc::MAP_SHARED);
    let reclaim = MappedMemory::new();
    let before = blocks(&file);
    reclaim.set_private(true);
    reclaim.reclaim(&mem, START, 0x2000).unwrap();
    assert_eq!(blocks(&file), before);
    reclaim.set_private(false);
    reclaim.reclaim(&mem, START, 0x2000).unwrap();
    assert_eq!(before - blocks(&file), 0x2000);
}

#[test]
fn ranges_outside_of_memory_are_refused() {
    let file = memfd();
    let mem = map(&file, libc::MAP_SHARED);
    let before = blocks(&file);
    for (start, len) in [
        (START.0 - 0x1000, 0x2000),
        (START.0 + LEN as u64 - 0x1000, 0x2000),
        (0, 0x1000),
        (START.0, u64::MAX),
    ] {
        let refused = MappedMemory::new().reclaim(&mem, GuestAddress(start), len);
        assert!(refused.is_err(), "{start:#x}");
    }
    assert_eq!(blocks(&file), before);
}

#[test]
fn what_a_guest_gives_away_leaves_this_process() {
    let (driver, handle) = guest(BalloonConfig::default(), 0, Arc::new(MappedMemory::new()));
    let mut guest = Guest {
        driver,
        handle,
        host: Arc::default(),
    };
    // The upper half of memory, 32 MiB, which rings and buffers do not use.
    let half = MEMORY_LEN / 2;
    let start = GuestAddress(half as u64);
    guest.driver.mem.write_slice(&vec![7; half], start).unwrap();
    assert_eq!(resident(&guest.driver.mem, start, half), half / 4096);
    let first = (half / 4096) as u32;
    for page in (0..first).step_by(256) {
        let pages: Vec<u32> = (first + page..first + page + 256).collect();
        guest.pages(INFLATE, &pages);
    }
    assert_eq!(resident(&guest.driver.mem, start, half), 0);
    assert_eq!(load(&guest.handle.counters().reclaim_errors), 0);
}

/// How many pages of a range are in memory.
fn resident(mem: &GuestMemory, start: GuestAddress, len: usize) -> usize {
    let mut pages = vec![0u8; len / 4096];
    let address = mem.get_host_address(start).unwrap();
    // SAFETY: the range is mapped, and there is a byte for each of its pages.
    let result = unsafe { libc::mincore(address.cast(), len, pages.as_mut_ptr()) };
    assert_eq!(result, 0);
    pages.into_iter().filter(|page| page & 1 == 1).count()
}
