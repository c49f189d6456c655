//! Layers made one, and taken back.

use std::ops::ControlFlow;

use tine_devices::virtio::block::layers::{commit, flatten};

use super::*;

fn go_on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn many_layers_become_one_file_of_either_format() {
    let mut stack = Stack::new(3);
    let mut chain = stack.open();
    chain.write_zeroes(0, 3 * CLUSTER, true).unwrap();
    stack.disk[..3 * CLUSTER as usize].fill(0);
    drop(chain);
    for format in [Format::Raw, Format::Qcow2] {
        let path = stack
            .dir
            .path()
            .join(format!("flat.{}", format.extension()));
        let mut last = 0;
        let told = |at| {
            assert!(at > last);
            last = at;
            ControlFlow::Continue(())
        };
        let flat = flatten(stack.lower(4), &path, format, told).unwrap();
        assert_eq!(last, SIZE);
        assert!(!flat.has_backing());
        assert!(read_all(&Chain::open(vec![flat]).unwrap()) == stack.disk);
        // Zeroes are not in it.
        use std::os::unix::fs::MetadataExt;
        let stored = std::fs::metadata(&path).unwrap().blocks() * 512;
        let data = stack
            .disk
            .chunks(CLUSTER as usize)
            .filter(|c| c.iter().any(|b| *b != 0));
        let data = data.count() as u64 * CLUSTER;
        assert!(stored <= data + 5 * CLUSTER, "{stored} for {data}");
        match format {
            Format::Raw => assert!(std::fs::read(&path).unwrap() == stack.disk),
            Format::Qcow2 => {
                assert_clean(&path);
                assert_same(&path, &stack.disk);
            }
        }
    }
    stack.assert_right();
}

#[test]
fn a_stopped_flattening_leaves_nothing() {
    let stack = Stack::new(1);
    let path = stack.dir.path().join("flat");
    for format in [Format::Raw, Format::Qcow2] {
        let stop = |_| ControlFlow::Break(());
        let err = flatten(stack.lower(2), &path, format, stop).unwrap_err();
        assert!(err.to_string().contains("stopped"), "{err}");
        assert!(!path.exists());
    }
}

#[test]
fn a_top_is_taken_back_into_its_base() {
    let mut stack = Stack::new(1);
    let mut chain = stack.open();
    chain.discard(4 * CLUSTER, 2 * CLUSTER).unwrap();
    stack.disk[4 * CLUSTER as usize..6 * CLUSTER as usize].fill(0);
    stack.write(&mut chain, SIZE - 512, 512, 9);
    let top = chain.freeze().unwrap().pop().unwrap();
    let base = Layer::open_writable(&stack.layers[0], Format::Raw).unwrap();
    commit(top, base, go_on).unwrap();
    assert!(std::fs::read(&stack.layers[0]).unwrap() == stack.disk);
    // Nothing was taken from the top: together they are still the disk.
    stack.assert_right();
}

#[test]
fn taking_back_can_be_broken_off_and_done_again() {
    let stack = Stack::new(1);
    let layers = || {
        let base = Layer::open_writable(&stack.layers[0], Format::Raw).unwrap();
        (Layer::open(stack.top(), Format::Qcow2).unwrap(), base)
    };
    for steps in 1..4 {
        let (top, base) = layers();
        let mut left = steps;
        let stop = |_| {
            left -= 1;
            if left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        assert!(commit(top, base, stop).is_err());
        stack.assert_right();
    }
    let (top, base) = layers();
    commit(top, base, go_on).unwrap();
    assert!(std::fs::read(&stack.layers[0]).unwrap() == stack.disk);
}

#[test]
fn only_a_frozen_top_goes_into_a_raw_base() {
    let stack = Stack::new(2);
    let top = || Layer::open(stack.top(), Format::Qcow2).unwrap();
    let read_only = Layer::open(&stack.layers[0], Format::Raw).unwrap();
    assert!(commit(top(), read_only, go_on).is_err());
    let qcow2 = Layer::open_writable(&stack.layers[1], Format::Qcow2).unwrap();
    assert!(commit(top(), qcow2, go_on).is_err());
    let small = stack.dir.path().join("small");
    File::create(&small).unwrap().set_len(SIZE - 512).unwrap();
    let small = Layer::open_writable(&small, Format::Raw).unwrap();
    assert!(commit(top(), small, go_on).is_err());
    stack.assert_right();
}
