//! The balloon.

use std::io;
use std::sync::{Arc, Mutex};

use tine_devices::GuestMemory;
use tine_devices::bus::lock;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::balloon::{
    Balloon, BalloonConfig, BalloonHandle, CHAINS_PER_EVENT, MemoryReclaim, PAGE,
};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::GuestAddress;

use crate::suite::Subject;

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const STATISTICS: usize = 2;
const REPORTING: usize = 4;

#[derive(Default)]
struct Notes(Mutex<Vec<(u64, u64)>>);

impl MemoryReclaim for Notes {
    fn reclaim(&self, _: &GuestMemory, start: GuestAddress, len: u64) -> io::Result<()> {
        lock(&self.0).push((start.0 / PAGE, len / PAGE));
        Ok(())
    }
}

pub struct Host {
    notes: Arc<Notes>,
    handle: BalloonHandle,
}

fn config() -> BalloonConfig {
    BalloonConfig {
        amount_mib: 4,
        deflate_on_oom: true,
        stats_polling_interval_s: 3600,
        free_page_reporting: true,
        free_page_hinting: true,
    }
}

fn make(config: &BalloonConfig) -> (Box<dyn VirtioDevice>, Host) {
    let notes = Arc::new(Notes::default());
    let balloon = Balloon::new(config, notes.clone()).unwrap();
    let handle = balloon.handle();
    (Box::new(balloon), Host { notes, handle })
}

fn pages(driver: &mut FakeDriver, queue: usize, pages: &[u32]) -> (usize, u16) {
    let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
    (queue, driver.submit(queue, &[Buffer::Out(&bytes)]))
}

fn tell(driver: &mut FakeDriver, free: u64) {
    let mut entry = 4u16.to_le_bytes().to_vec();
    entry.extend(free.to_le_bytes());
    driver.submit(STATISTICS, &[Buffer::Out(&entry)]);
    driver.kick(STATISTICS);
}

struct Everything;

impl Subject for Everything {
    type Host = Host;
    const FEATURES: u64 = 1 << VIRTIO_RING_F_EVENT_IDX | 0b101110;

    fn make() -> (Box<dyn VirtioDevice>, Host) {
        make(&config())
    }

    fn work(driver: &mut FakeDriver, host: &mut Host) {
        lock(&host.notes.0).clear();
        for queue in [INFLATE, DEFLATE] {
            let (_, head) = pages(driver, queue, &[0x800, 0x801]);
            driver.kick(queue);
            assert_eq!(driver.wait_used(queue).head, head);
        }
        let block = Buffer::Raw {
            addr: 0x900 * PAGE,
            len: 16 * PAGE as u32,
            flags: 2,
        };
        driver.submit(REPORTING, &[block]);
        driver.kick(REPORTING);
        driver.wait_used(REPORTING);
        assert_eq!(*lock(&host.notes.0), [(0x800, 2), (0x900, 16)]);
        tell(driver, 1 << 20);
        let stats = host.handle.stats().unwrap();
        assert_eq!(stats.free_memory, Some(1 << 20));
    }

    fn leave(driver: &mut FakeDriver, _: &mut Host) -> Vec<(usize, u16)> {
        // The device keeps this one.
        tell(driver, 2 << 20);
        // More than one turn's share.
        let chains = CHAINS_PER_EVENT as u32 + 3;
        let mut left: Vec<_> = (0..chains)
            .map(|page| pages(driver, INFLATE, &[0xa00 + page]))
            .collect();
        driver.kick(INFLATE);
        left.push(pages(driver, DEFLATE, &[0xa00]));
        left
    }
}

crate::conforms!(Everything);
