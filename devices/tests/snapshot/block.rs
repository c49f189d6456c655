//! A drive.

use std::fs;

use tempfile::TempDir;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::block::{Block, BlockConfig, Engine};
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::suite::Subject;

const SECTORS: u64 = 256;
const FEATURES: u64 = 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_BLK_F_FLUSH;

fn sector(number: u64) -> Vec<u8> {
    (0..512).map(|at| (number * 7 + at / 3) as u8).collect()
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(sector.to_le_bytes());
    bytes
}

fn make(engine: Engine) -> (Box<dyn VirtioDevice>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let bytes: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    fs::write(&path, bytes).unwrap();
    let mut config = BlockConfig::new("root", path);
    config.engine = engine;
    (Box::new(Block::open(&config).unwrap()), dir)
}

fn read(driver: &mut FakeDriver, number: u64) -> u16 {
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
    heads.extend((0..4).map(|n| (0, read(driver, n))));
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

mod uring {
    crate::conforms!(super::Uring);
}

mod worker {
    crate::conforms!(super::Worker);
}
