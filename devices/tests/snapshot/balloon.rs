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
use virtio_bindings::virtio_mmio::VIRTIO_MMIO_CONFIG;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::GuestAddress;

use crate::suite::{Machine, NAME, Subject};

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const STATISTICS: usize = 2;
const HINTING: usize = 3;
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
    pub handle: BalloonHandle,
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

pub struct Everything;

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

fn word(driver: &FakeDriver, offset: u64) -> u32 {
    u32::from_le_bytes(driver.config(offset))
}

#[test]
fn targets_and_answers_are_kept() {
    let mut machine = Machine::<Everything>::started();
    machine.host.handle.set_target_mib(9).unwrap();
    machine
        .host
        .handle
        .set_stats_polling_interval_s(77)
        .unwrap();
    machine.driver.run_backend(0);
    let register = VIRTIO_MMIO_CONFIG + 4;
    machine.driver.set_register(register, 123);
    tell(&mut machine.driver, 5 << 20);
    let restored = machine.restored(&machine.save());
    let handle = &restored.host.handle;
    assert_eq!(
        (handle.target_pages(), handle.actual_pages()),
        (9 * 256, 123)
    );
    assert_eq!(word(&restored.driver, 0), 9 * 256);
    assert_eq!(word(&restored.driver, 4), 123);
    let config = handle.config();
    assert_eq!(
        (config.amount_mib, config.stats_polling_interval_s),
        (9, 77)
    );
    let stats = handle.stats().unwrap();
    assert_eq!((stats.free_memory, stats.swap_in), (Some(5 << 20), None));
}

#[test]
fn a_target_that_the_driver_was_not_told_of_yet_is_told() {
    let machine = Machine::<Everything>::started();
    machine.host.handle.set_target_mib(9).unwrap();
    let restored = machine.restored(&machine.save());
    for machine in [&machine, &restored] {
        assert_eq!(machine.driver.irq.count(), 0);
        assert!(machine.driver.run_backend(0));
        assert_eq!(machine.driver.irq.count(), 1);
        assert_eq!(word(&machine.driver, 0), 9 * 256);
        assert!(!machine.driver.run_backend(0));
    }
}

#[test]
fn the_chain_with_statistics_is_used_when_the_guest_is_to_tell_anew() {
    let mut machine = Machine::<Everything>::started();
    tell(&mut machine.driver, 1 << 20);
    let mut restored = machine.restored(&machine.save());
    for machine in [&mut machine, &mut restored] {
        machine.driver.run_queue_events();
        assert!(machine.driver.used(STATISTICS).is_none());
        machine.host.handle.set_stats_polling_interval_s(1).unwrap();
        machine.driver.wait_used(STATISTICS);
        assert!(machine.driver.used(STATISTICS).is_none());
    }
}

#[test]
fn a_run_of_hinting_goes_on() {
    let mut machine = Machine::<Everything>::started();
    machine.host.handle.start_hinting(true).unwrap();
    // The device has not begun it when it is saved.
    machine = machine.restored(&machine.save());
    machine.driver.run_backend(0);
    let run = word(&machine.driver, 8);
    assert_eq!(run, 2);
    let id = run.to_le_bytes();
    machine.driver.submit(HINTING, &[Buffer::Out(&id)]);
    machine.driver.kick(HINTING);
    machine = machine.restored(&machine.save());
    let block = Buffer::Raw {
        addr: 0xb00 * PAGE,
        len: 8 * PAGE as u32,
        flags: 2,
    };
    machine.driver.submit(HINTING, &[block]);
    machine.driver.kick(HINTING);
    assert_eq!(*lock(&machine.host.notes.0), [(0xb00, 8)]);
    let stop = 0u32.to_le_bytes();
    machine.driver.submit(HINTING, &[Buffer::Out(&stop)]);
    machine.driver.kick(HINTING);
    assert_eq!(word(&machine.driver, 8), 1, "the guest has its pages back");
    machine = machine.restored(&machine.save());
    machine.host.handle.start_hinting(false).unwrap();
    machine.driver.run_backend(0);
    assert_eq!(word(&machine.driver, 8), 3, "a number of its own");
}

#[test]
fn a_balloon_that_can_do_something_else_is_refused() {
    let machine = Machine::<Everything>::started();
    let sections = machine.save();
    let less = BalloonConfig {
        free_page_reporting: false,
        ..config()
    };
    let silent = BalloonConfig {
        stats_polling_interval_s: 0,
        ..config()
    };
    let none = BalloonConfig::default();
    for config in [less, silent, none] {
        let (device, _) = make(&config);
        let restored = machine.driver.restored(device, NAME, &sections);
        let error = restored.err().unwrap().to_string();
        assert!(error.starts_with("section device/0"), "{error}");
    }
    // Nobody uses them yet, but somebody may have seen them.
    let machine = Machine::<Everything>::new();
    let (device, _) = make(&BalloonConfig {
        deflate_on_oom: false,
        ..config()
    });
    let restored = machine.driver.restored(device, NAME, &machine.save());
    let error = restored.err().unwrap().to_string();
    assert!(
        error.contains("the set of the balloon's features"),
        "{error}"
    );
}
