//! Disks of many layers, some of which become one.

use std::any::Any;
use std::collections::HashMap;
use std::ops::ControlFlow;

use tine_devices::bus::lock;
use tine_devices::testing::FakeDriver;
use tine_devices::virtio::block::layers::{merge, to_merge};
use tine_devices::virtio::block::{Block, BlockConfig};

use super::*;
use crate::driver::{FLUSH, OK, Requests};

fn go_on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The drive's device.
fn with<T>(driver: &FakeDriver, work: impl FnOnce(&mut Block) -> T) -> T {
    let mut transport = lock(&driver.transport);
    let device: &mut dyn Any = transport.device_mut();
    work(device.downcast_mut().unwrap())
}

/// A guest's drive over all layers of a stack.
fn drive(stack: &Stack) -> FakeDriver {
    let top = stack.layers.len() - 1;
    let mut layers = stack.lower(top);
    layers.push(Layer::open_writable(stack.top(), Format::Qcow2).unwrap());
    let config = BlockConfig::new("root", "/nowhere");
    FakeDriver::started(Block::open_layers(&config, layers).unwrap(), FLUSH)
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn a_drive_goes_on_over_what_was_made_of_its_layers() {
    let mut stack = Stack::new(6);
    let mut driver = drive(&stack);
    let before: HashMap<_, _> = stack.layers[..6]
        .iter()
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    let write = |driver: &mut FakeDriver, stack: &mut Stack, sector: u64, salt| {
        let bytes = pattern(sector * 512, 4096, salt);
        assert_eq!(driver.write(sector, &bytes).status, OK);
        stack.disk[sector as usize * 512..][..4096].copy_from_slice(&bytes);
    };
    // In the guest's hands, and in imago's memory: neither is lost.
    write(&mut driver, &mut stack, 77, 50);
    assert_eq!(driver.discard(4 * 128, 256).status, OK);
    let range = 4 * 128 * 512..(4 * 128 + 256) * 512;
    stack.disk[range.clone()].copy_from_slice(&driver.read(4 * 128, 256 * 512).data);

    let layers = with(&driver, |block| block.layers().unwrap());
    let range = to_merge(&layers, 4).unwrap().expect("it is deep");
    assert_eq!(range, 1..6);
    let mut lower = layers;
    lower.truncate(6);
    let instead = lower.split_off(1);
    let path = stack.dir.path().join("a");
    let backing = Backing {
        name: name(&stack.layers[0]),
        format: Format::Raw,
    };
    let copies = || {
        instead
            .iter()
            .map(|layer| layer.try_clone().unwrap())
            .collect()
    };
    let merged = merge(lower, copies(), &path, backing, go_on).unwrap();
    let others = stack.lower(2);
    let refused = with(&driver, |block| {
        block.replace_below_top(&others[..1], merged.try_clone().unwrap(), "a")
    });
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("other layers by now"), "{refused}");
    write(&mut driver, &mut stack, 900, 51);
    let replaced = with(&driver, |block| {
        block.replace_below_top(&instead, merged, "a").unwrap()
    });
    assert_eq!(replaced, stack.layers[1..6]);
    assert_eq!(with(&driver, |block| block.layers().unwrap().len()), 3);
    write(&mut driver, &mut stack, 2000, 52);
    assert_eq!(driver.discard(20 * 128, 128).status, OK);
    stack.disk[20 * 128 * 512..21 * 128 * 512].fill(0);
    write(&mut driver, &mut stack, 3000, 53);
    assert!(driver.read(0, SIZE as u32 / 2).data == stack.disk[..SIZE as usize / 2]);
    drop(driver);
    // Whoever shares the layers has them as they were.
    for (path, bytes) in before {
        assert!(std::fs::read(&path).unwrap() == bytes, "{path:?}");
    }
    let top = stack.layers.pop().unwrap();
    stack.layers.drain(1..);
    stack.layers.extend([path, top]);
    // Also to QEMU, which goes by the names in the headers.
    stack.assert_right();
}

#[test]
fn what_is_merged_grows_with_what_is_over_it() {
    let stack = Stack::new(9);
    let layers = |count| {
        let mut layers = stack.lower(count);
        layers.push(Layer::open_writable(&stack.layers[count], Format::Qcow2).unwrap());
        layers
    };
    // All of about one size.
    assert_eq!(to_merge(&layers(9), 8).unwrap(), Some(1..9));
    assert_eq!(to_merge(&layers(9), 10).unwrap(), None);
    assert_eq!(to_merge(&layers(2), 1).unwrap(), None, "one is one already");
    assert_eq!(to_merge(&layers(3), 1).unwrap(), Some(1..3));
    // One that is much larger stays, as long as there are two others.
    let grow = |n: usize| {
        let file = File::options().write(true).open(&stack.layers[n]).unwrap();
        let end = file.metadata().unwrap().len();
        file.write_all_at(&vec![1; 16 << 20], end).unwrap();
    };
    grow(4);
    assert_eq!(to_merge(&layers(9), 8).unwrap(), Some(5..9));
    // What is smaller goes with it.
    assert_eq!(to_merge(&layers(5), 3).unwrap(), Some(1..5));
}

#[test]
fn a_stopped_merge_leaves_nothing_and_harms_nothing() {
    let stack = Stack::new(4);
    let path = stack.dir.path().join("merged");
    for steps in 0..20 {
        let mut lower = stack.lower(4);
        let layers = lower.split_off(1);
        let backing = Backing {
            name: name(&stack.layers[0]),
            format: Format::Raw,
        };
        let mut left = steps;
        let stop = |_| {
            left -= 1;
            match left < 0 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        match merge(lower, layers, &path, backing, stop) {
            Err(err) => assert!(err.to_string().contains("stopped"), "{err}"),
            Ok(_) => {
                assert!(steps > 3, "it was done after {steps} steps");
                std::fs::remove_file(&path).unwrap();
            }
        }
        assert!(!path.exists());
    }
    stack.assert_right();
}

#[test]
fn what_cannot_be_one_is_refused() {
    let stack = Stack::new(2);
    let path = stack.dir.path().join("merged");
    let backing = || Backing {
        name: "base.raw",
        format: Format::Raw,
    };
    let mut all = stack.lower(3);
    let layers = all.split_off(1);
    let refused = merge(Vec::new(), layers, &path, backing(), go_on).unwrap_err();
    assert!(refused.to_string().contains("over another"), "{refused}");
    let mut lower = stack.lower(2);
    let mut layers = lower.split_off(1);
    layers.push(Layer::open_writable(stack.top(), Format::Qcow2).unwrap());
    let refused = merge(lower, layers, &path, backing(), go_on).unwrap_err();
    assert!(refused.to_string().contains("frozen"), "{refused}");
    assert!(!path.exists());
}
