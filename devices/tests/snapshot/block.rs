//! A drive.

use std::any::Any;
use std::fs;
use std::thread;

use tempfile::TempDir;
use tine_devices::bus::lock;
use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::block::layers::{Format, Layer, create};
use tine_devices::virtio::block::{Block, BlockConfig, Engine};
use tine_devices::virtio::{QueuePlace, VirtioDevice};
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::disk::FakeDisk;
use crate::suite::{NAME, Subject};

const SECTORS: u64 = 256;
const FEATURES: u64 = 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_BLK_F_FLUSH;

pub fn sector(number: u64) -> Vec<u8> {
    (0..512).map(|at| (number * 7 + at / 3) as u8).collect()
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(sector.to_le_bytes());
    bytes
}

pub fn make(engine: Engine) -> (Box<dyn VirtioDevice>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let bytes: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    fs::write(&path, bytes).unwrap();
    let mut config = BlockConfig::new("root", path);
    config.engine = engine;
    (Box::new(Block::open(&config).unwrap()), dir)
}

pub fn read(driver: &mut FakeDriver, number: u64) -> u16 {
    let header = header(VIRTIO_BLK_T_IN, number);
    driver.submit(0, &[Buffer::Out(&header), Buffer::In(512), Buffer::In(1)])
}

fn work(driver: &mut FakeDriver) {
    let mut expect = |chain: &[Buffer], data: &[u8]| {
        let head = driver.submit(0, chain);
        driver.kick(0);
        let used = driver.wait_used(0);
        assert_eq!(used.head, head);
        assert_eq!(used.data, data);
    };
    let data = sector(99);
    let write = header(VIRTIO_BLK_T_OUT, 3);
    expect(
        &[Buffer::Out(&write), Buffer::Out(&data), Buffer::In(1)],
        &[0],
    );
    expect(
        &[Buffer::Out(&header(VIRTIO_BLK_T_FLUSH, 0)), Buffer::In(1)],
        &[0],
    );
    let mut read = sector(99);
    read.push(0);
    let header = header(VIRTIO_BLK_T_IN, 3);
    expect(
        &[Buffer::Out(&header), Buffer::In(512), Buffer::In(1)],
        &read,
    );
}

fn leave(driver: &mut FakeDriver) -> Vec<(usize, u16)> {
    let mut heads: Vec<_> = (0..12).map(|n| (0, read(driver, n * 5))).collect();
    driver.kick(0);
    heads.extend((60..64).map(|n| (0, read(driver, n))));
    heads
}

struct Uring;

impl Subject for Uring {
    type Host = TempDir;
    const FEATURES: u64 = FEATURES;

    fn make() -> (Box<dyn VirtioDevice>, TempDir) {
        make(Engine::Auto)
    }

    fn work(driver: &mut FakeDriver, _: &mut TempDir) {
        work(driver);
    }

    fn leave(driver: &mut FakeDriver, _: &mut TempDir) -> Vec<(usize, u16)> {
        leave(driver)
    }
}

struct Worker;

impl Subject for Worker {
    type Host = TempDir;
    /// Writes are durable when they complete.
    const FEATURES: u64 = 0;

    fn make() -> (Box<dyn VirtioDevice>, TempDir) {
        make(Engine::Thread)
    }

    fn work(driver: &mut FakeDriver, _: &mut TempDir) {
        work(driver);
    }

    fn leave(driver: &mut FakeDriver, _: &mut TempDir) -> Vec<(usize, u16)> {
        leave(driver)
    }
}

/// A raw image with an empty layer over it.
struct Layered;

impl Subject for Layered {
    type Host = TempDir;
    const FEATURES: u64 = FEATURES;

    fn make() -> (Box<dyn VirtioDevice>, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("disk");
        let bytes: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
        fs::write(&base, bytes).unwrap();
        let base = Layer::open(&base, Format::Raw).unwrap();
        let top = create(&dir.path().join("top"), SECTORS * 512, None).unwrap();
        let config = BlockConfig::new("root", "");
        let block = Block::open_layers(&config, vec![base, top]).unwrap();
        (Box::new(block), dir)
    }

    fn work(driver: &mut FakeDriver, _: &mut TempDir) {
        work(driver);
    }

    fn leave(driver: &mut FakeDriver, _: &mut TempDir) -> Vec<(usize, u16)> {
        leave(driver)
    }
}

mod layered {
    crate::conforms!(super::Layered);
}

mod uring {
    crate::conforms!(super::Uring);
}

mod worker {
    crate::conforms!(super::Worker);
}

fn held(config: &BlockConfig, sectors: usize) -> (FakeDriver, FakeDisk) {
    let (device, disk) = make_held(config, sectors);
    let mut driver = FakeDriver::boxed(device);
    driver.start(0);
    (driver, disk)
}

fn make_held(config: &BlockConfig, sectors: usize) -> (Box<dyn VirtioDevice>, FakeDisk) {
    let disk = FakeDisk::new(sectors);
    let block = Block::with_backend(config, disk.clone()).unwrap();
    (Box::new(block), disk)
}

#[test]
fn a_save_waits_for_what_is_in_flight() {
    let config = BlockConfig::new("root", "");
    let (mut driver, disk) = held(&config, 8);
    let head = read(&mut driver, 1);
    driver.kick(0);
    assert_eq!(disk.held(), 1);
    let later = read(&mut driver, 2);
    let transport = driver.transport.clone();
    let saver = thread::spawn(move || lock(&transport).save(NAME).unwrap());
    // Locked by nobody else: it is being saved.
    while driver.transport.try_lock().is_ok() {
        thread::yield_now();
    }
    disk.finish(0);
    let sections = saver.join().unwrap();
    assert_eq!(driver.used(0).unwrap().head, head);
    assert!(driver.used(0).is_none());
    assert_eq!(driver.irq.count(), 1);
    assert_eq!(disk.held(), 0, "nothing new is begun");
    let (device, other) = make_held(&config, 8);
    let mut restored = driver.restored(device, NAME, &sections).unwrap();
    restored.run_queue_events();
    assert_eq!(other.held(), 1);
    other.finish(0);
    assert_eq!(restored.wait_used(0).head, later);
    driver.run_queue_events();
    disk.finish(0);
    assert_eq!(driver.wait_used(0).head, later);
}

#[test]
fn a_settled_drive_gets_another_image_and_is_still_settled() {
    let (device, dir) = make(Engine::Auto);
    let mut driver = FakeDriver::boxed(device);
    driver.start(0);
    let path = dir.path().join("other");
    fs::write(&path, [7; 512 * 8]).unwrap();
    let head = read(&mut driver, 3);
    {
        let mut transport = lock(&driver.transport);
        transport.device_mut().settle();
        let device: &mut dyn Any = transport.device_mut();
        let block: &mut Block = device.downcast_mut().unwrap();
        block.replace(&BlockConfig::new("root", path)).unwrap();
        assert_eq!(block.queue_places(), [QueuePlace::default()]);
    }
    assert!(driver.used(0).is_none());
    // Without any further notification.
    let used = driver.wait_used(0);
    assert_eq!(used.head, head);
    assert_eq!(used.data[..512], [7; 512]);
}

#[test]
fn another_disk_in_its_place_is_refused() {
    let config = BlockConfig::new("root", "");
    let (driver, _) = held(&config, 8);
    let sections = driver.save(NAME);
    let read_only = BlockConfig {
        read_only: true,
        ..config.clone()
    };
    let named = BlockConfig {
        serial: Some("other".into()),
        ..config.clone()
    };
    for (config, sectors, what) in [
        (
            &config,
            9,
            "the disk's size in bytes was 4096 in the snapshot and is 4608 here",
        ),
        (
            &read_only,
            8,
            "read-only was false in the snapshot and is true here",
        ),
        (&named, 8, "serial number was root"),
    ] {
        let (device, _) = make_held(config, sectors);
        let restored = driver.restored(device, NAME, &sections);
        let error = restored.err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_limit_that_is_used_up_is_used_up_after_a_restore() {
    let ops = Some(BucketConfig {
        size: 2,
        one_time_burst: None,
        refill_time: 3_600_000,
    });
    let config = BlockConfig {
        rate_limiter: Some(RateLimiterConfig {
            bandwidth: None,
            ops,
        }),
        ..BlockConfig::new("root", "")
    };
    let (mut driver, disk) = held(&config, 8);
    let heads: Vec<_> = (0..3).map(|number| read(&mut driver, number)).collect();
    driver.kick(0);
    (0..2).for_each(|_| disk.finish(0));
    let sections = driver.save(NAME);
    let (device, other) = make_held(&config, 8);
    let mut restored = driver.restored(device, NAME, &sections).unwrap();
    restored.run_queue_events();
    assert_eq!(other.held(), 0);
    assert_eq!([0, 1].map(|_| restored.used(0).unwrap().head), heads[..2]);
    // A machine with another limit, or none, does not wait.
    let (device, other) = make_held(&BlockConfig::new("root", ""), 8);
    let restored = driver.restored(device, NAME, &sections).unwrap();
    restored.run_queue_events();
    assert_eq!(other.held(), 1);
}

#[test]
fn a_driver_without_flushes_still_gets_durable_writes() {
    let config = BlockConfig::new("root", "");
    let (driver, _) = held(&config, 8);
    let (device, disk) = make_held(&config, 8);
    let mut restored = driver.restored(device, NAME, &driver.save(NAME)).unwrap();
    let header = header(VIRTIO_BLK_T_OUT, 0);
    let chain = [Buffer::Out(&header), Buffer::Out(&[7; 512]), Buffer::In(1)];
    restored.submit(0, &chain);
    restored.kick(0);
    let operation = &disk.held_operations()[0];
    assert!(operation.contains("durable: true"), "{operation}");
    disk.finish(0);
}
