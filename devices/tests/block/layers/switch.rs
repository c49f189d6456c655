//! Drives that go on in a new layer while their guest runs.

use std::any::Any;

use tine_devices::bus::lock;
use tine_devices::testing::FakeDriver;
use tine_devices::virtio::block::{Block, BlockConfig};

use super::*;
use crate::driver::{ENGINES, OK, Requests, config, guest};

/// Freezes the drive's disk and lets it go on in a new overlay.
fn switch(driver: &FakeDriver, overlay: Layer) -> Vec<Layer> {
    let mut transport = lock(&driver.transport);
    let device: &mut dyn Any = transport.device_mut();
    let block: &mut Block = device.downcast_mut().unwrap();
    block.switch_to_overlay(overlay).unwrap()
}

/// Lets a guest read and write all over a disk through several switches.
fn go_through(stack: &mut Stack, mut driver: FakeDriver) {
    let mut frozen_disks = Vec::new();
    for round in 1..4_u64 {
        for n in 0..20 {
            let sector = (n * 397 + round * 11) % (SIZE / 512 - 16);
            let bytes = pattern(sector * 512, 4096, round);
            assert_eq!(driver.write(sector, &bytes).status, OK);
            stack.disk[sector as usize * 512..][..4096].copy_from_slice(&bytes);
        }
        let discarded = round * 5 * 128;
        assert_eq!(driver.discard(discarded as u32 as u64, 256).status, OK);
        let read = driver.read(discarded, 256 * 512);
        let range = discarded as usize * 512..(discarded as usize + 256) * 512;
        stack.disk[range].copy_from_slice(&read.data);
        assert_eq!(driver.flush().status, OK);
        // One request is in the queue, and not yet taken, when the disk is switched.
        let head = driver.send(
            virtio_bindings::virtio_blk::VIRTIO_BLK_T_IN,
            5,
            &[tine_devices::testing::Buffer::In(512)],
        );
        let below = stack.layers.len() - 1;
        let path = stack.dir.path().join(format!("layer-{}.qcow2", below + 1));
        let top = overlay(&path, &stack.layers[below], stack.format(below));
        let frozen = switch(&driver, top);
        let paths: Vec<_> = frozen.iter().map(|layer| layer.path().to_owned()).collect();
        assert_eq!(paths, stack.layers);
        assert!(frozen.iter().all(|layer| !layer.is_writable()));
        frozen_disks.push((stack.layers.len(), stack.disk.clone()));
        stack.layers.push(path);
        let used = driver.wait_used(0);
        assert_eq!(used.head, head);
        assert!(used.data[..512] == stack.disk[5 * 512..6 * 512]);
        // What is frozen may be read by others while the guest goes on.
        assert!(read_all(&Chain::open(frozen).unwrap()) == stack.disk);
    }
    let all = driver.read(0, SIZE as u32 / 2);
    assert!(all.data == stack.disk[..SIZE as usize / 2]);
    drop(driver);
    // Each is still what it was when it was frozen.
    for (count, disk) in frozen_disks {
        assert!(read_all(&Chain::open(stack.lower(count)).unwrap()) == disk);
    }
    stack.assert_right();
}

#[test]
fn a_raw_image_becomes_the_lowest_layer() {
    for engine in ENGINES {
        let mut stack = Stack::new(0);
        let driver = guest(&config(&stack.layers[0], engine));
        go_through(&mut stack, driver);
    }
}

#[test]
fn a_layer_becomes_one_more_below() {
    let mut stack = Stack::new(1);
    let base = Layer::open(&stack.layers[0], Format::Raw).unwrap();
    let top = Layer::open_writable(stack.top(), Format::Qcow2).unwrap();
    let config = BlockConfig::new("root", "/nowhere");
    let block = Block::open_layers(&config, vec![base, top]).unwrap();
    let driver = FakeDriver::started(block, crate::driver::FLUSH);
    go_through(&mut stack, driver);
}

#[test]
fn counters_limits_and_size_stay() {
    let stack = Stack::new(0);
    let mut driver = guest(&config(&stack.layers[0], ENGINES[0]));
    assert_eq!(driver.read(0, 512).status, OK);
    let space = driver.config::<60>(0);
    let path = stack.dir.path().join("top.qcow2");
    switch(&driver, overlay(&path, &stack.layers[0], Format::Raw));
    assert_eq!(driver.read(0, 512).status, OK);
    assert_eq!(driver.config::<60>(0), space);
    let mut transport = lock(&driver.transport);
    let device: &mut dyn Any = transport.device_mut();
    let block: &mut Block = device.downcast_mut().unwrap();
    let reads = &block.stats().reads;
    assert_eq!(reads.load(std::sync::atomic::Ordering::Relaxed), 2);
}

#[test]
fn an_overlay_that_does_not_fit_changes_nothing() {
    let stack = Stack::new(0);
    let mut driver = guest(&config(&stack.layers[0], ENGINES[0]));
    let path = |name: &str| stack.dir.path().join(name);
    let small = tine_devices::virtio::block::layers::create(&path("small"), SIZE - 512, None);
    drop(overlay(&path("read"), &stack.layers[0], Format::Raw));
    let read = Layer::open(&path("read"), Format::Qcow2);
    File::create(path("raw")).unwrap().set_len(SIZE).unwrap();
    let raw = Layer::open_writable(&path("raw"), Format::Raw);
    for (overlay, reason) in [
        (small.unwrap(), "is of 4193792 bytes"),
        (read.unwrap(), "open to be written"),
        (raw.unwrap(), "not a qcow2 image"),
    ] {
        let mut transport = lock(&driver.transport);
        let device: &mut dyn Any = transport.device_mut();
        let block: &mut Block = device.downcast_mut().unwrap();
        let err = block.switch_to_overlay(overlay).unwrap_err().to_string();
        assert!(
            err.contains(reason) && err.starts_with("drive \"root\""),
            "{err}"
        );
    }
    driver.assert_alive();
    assert_eq!(driver.write(0, &[3; 512]).status, OK);
    // It is still locked as before.
    assert!(Layer::open(&stack.layers[0], Format::Raw).is_err());
}

#[test]
fn a_read_only_drive_is_not_switched() {
    let stack = Stack::new(0);
    let config = BlockConfig {
        read_only: true,
        ..config(&stack.layers[0], ENGINES[0])
    };
    let mut block = Block::open(&config).unwrap();
    let path = stack.dir.path().join("top.qcow2");
    let top = overlay(&path, &stack.layers[0], Format::Raw);
    let err = block.switch_to_overlay(top).unwrap_err().to_string();
    assert!(err.contains("read-only"), "{err}");
    assert_eq!(block.layers().unwrap().len(), 1);
}
