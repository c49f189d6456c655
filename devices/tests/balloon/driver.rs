//! A guest with a balloon, and a host that notes what it got.

use std::io;
use std::sync::{Arc, Mutex};

use tine_devices::GuestMemory;
use tine_devices::bus::lock;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::balloon::{Balloon, BalloonConfig, BalloonHandle, MemoryReclaim, PAGE};
use vm_memory::GuestAddress;

pub const INFLATE: usize = 0;
pub const DEFLATE: usize = 1;

pub const STATS_VQ: u64 = 1 << 1;
pub const DEFLATE_ON_OOM: u64 = 1 << 2;
pub const FREE_PAGE_HINT: u64 = 1 << 3;
pub const REPORTING: u64 = 1 << 5;

/// Notes the ranges that it is given, in pages.
#[derive(Default)]
pub struct Notes {
    pub ranges: Mutex<Vec<(u64, u64)>>,
    pub fails: bool,
}

impl MemoryReclaim for Notes {
    fn reclaim(&self, _: &GuestMemory, start: GuestAddress, len: u64) -> io::Result<()> {
        assert!(start.0.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0);
        lock(&self.ranges).push((start.0 / PAGE, len / PAGE));
        match self.fails {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => Ok(()),
        }
    }
}

impl Notes {
    /// What was given back since the last call.
    pub fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut lock(&self.ranges))
    }
}

pub struct Guest {
    pub driver: FakeDriver,
    pub handle: BalloonHandle,
    pub host: Arc<Notes>,
}

impl Guest {
    pub fn new(config: BalloonConfig, features: u64) -> Self {
        let host = Arc::new(Notes::default());
        let (driver, handle) = guest(config, features, host.clone());
        Self {
            driver,
            handle,
            host,
        }
    }

    /// Gives pages away, or takes them back, and waits for the answer.
    pub fn pages(&mut self, queue: usize, pages: &[u32]) {
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        self.exchange(queue, &[Buffer::Out(&bytes)]);
    }

    pub fn exchange(&mut self, queue: usize, chain: &[Buffer]) {
        let head = self.driver.submit(queue, chain);
        self.driver.kick(queue);
        let used = self.driver.wait_used(queue);
        assert_eq!((used.head, used.len), (head, 0));
    }

    pub fn word(&self, offset: u64) -> u32 {
        u32::from_le_bytes(self.driver.config(offset))
    }
}

pub fn guest(
    config: BalloonConfig,
    features: u64,
    host: Arc<dyn MemoryReclaim>,
) -> (FakeDriver, BalloonHandle) {
    let balloon = Balloon::new(&config, host).unwrap();
    let handle = balloon.handle();
    (FakeDriver::started(balloon, features), handle)
}

/// A free block, in pages.
pub fn block(start: u64, count: u32) -> Buffer<'static> {
    Buffer::Raw {
        addr: start * PAGE,
        len: count * PAGE as u32,
        flags: 2,
    }
}

pub fn load(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(std::sync::atomic::Ordering::Relaxed)
}
