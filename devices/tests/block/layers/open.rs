//! What can be opened how, and what excludes what.

use tine_devices::virtio::block::layers::LayerError;
use tine_devices::virtio::block::{Block, BlockConfig, BlockError, LowerConfig};

use super::*;

fn in_use(result: Result<Layer, LayerError>) -> bool {
    matches!(result, Err(LayerError::InUse { .. }))
}

#[test]
fn one_may_write_or_many_may_read() {
    let stack = Stack::new(1);
    let top = stack.top();
    let writer = Layer::open_writable(top, Format::Qcow2).unwrap();
    assert!(in_use(Layer::open_writable(top, Format::Qcow2)));
    assert!(in_use(Layer::open(top, Format::Qcow2)));
    drop(writer);
    let readers = [(); 3].map(|()| Layer::open(top, Format::Qcow2).unwrap());
    assert!(in_use(Layer::open_writable(top, Format::Qcow2)));
    drop(readers);
    Layer::open_writable(top, Format::Qcow2).unwrap();
}

#[test]
fn a_frozen_layer_may_be_below_several_disks() {
    let stack = Stack::new(1);
    let chain = stack.open();
    let frozen = chain.freeze().unwrap();
    let others: Vec<_> = (0..3)
        .map(|n| {
            let path = stack.dir.path().join(format!("child-{n}.qcow2"));
            let mut layers = stack.lower(2);
            layers.push(overlay(&path, stack.top(), Format::Qcow2));
            let mut chain = Chain::open(layers).unwrap();
            chain.write(&[n; 512], 0).unwrap();
            (chain, n)
        })
        .collect();
    for (chain, n) in &others {
        let mut sector = [0; 512];
        chain.read(&mut sector, 0).unwrap();
        assert_eq!(sector, [*n; 512]);
    }
    assert!(in_use(Layer::open_writable(stack.top(), Format::Qcow2)));
    drop((others, frozen));
    stack.assert_right();
}

#[test]
fn what_an_image_says_of_its_backing_file_is_not_followed() {
    let stack = Stack::new(1);
    let err = Chain::open(vec![Layer::open(stack.top(), Format::Qcow2).unwrap()]).unwrap_err();
    assert!(
        err.to_string()
            .contains("layer-1.qcow2: it lies over another image"),
        "{err}"
    );
    // With another file in its place, that one is read, and no other.
    let other = stack.dir.path().join("other.raw");
    File::create(&other).unwrap().set_len(SIZE).unwrap();
    let layers = vec![
        Layer::open(&other, Format::Raw).unwrap(),
        Layer::open(stack.top(), Format::Qcow2).unwrap(),
    ];
    let chain = Chain::open(layers).unwrap();
    let mut start = [1; 4096];
    chain.read(&mut start, 0).unwrap();
    assert_eq!(start, [0; 4096]);
}

#[test]
fn layers_lie_over_one_another_in_one_way_only() {
    let stack = Stack::new(1);
    let base = || Layer::open(&stack.layers[0], Format::Raw).unwrap();
    let top = || Layer::open(stack.top(), Format::Qcow2).unwrap();
    let refused = |layers| Chain::open(layers).unwrap_err().to_string();
    assert!(refused(vec![base(), top(), base()]).contains("base.raw: a raw image hides"));
    assert!(refused(vec![]).contains("without a layer"));
    let writable = Layer::open_writable(stack.top(), Format::Qcow2).unwrap();
    let third = stack.dir.path().join("third.qcow2");
    let layers = vec![
        base(),
        writable,
        overlay(&third, stack.top(), Format::Qcow2),
    ];
    assert!(refused(layers).contains("below another layer"));
}

#[test]
fn an_overlay_takes_nobodys_place() {
    let stack = Stack::new(1);
    let err = create_error(stack.top());
    assert!(
        err.contains("layer-1.qcow2") && err.contains("exists"),
        "{err}"
    );
    let err = create_error(&stack.dir.path().join("none/overlay.qcow2"));
    assert!(err.contains("No such file"), "{err}");
    // Nor is one that was not made left beside it, or one that was under another name.
    let left = std::fs::read_dir(stack.dir.path()).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
    left.sort();
    assert_eq!(left, stack.layers);
    stack.assert_right();
}

fn create_error(path: &Path) -> String {
    tine_devices::virtio::block::layers::create(path, SIZE, None)
        .unwrap_err()
        .to_string()
}

#[test]
fn a_drive_is_opened_from_paths() {
    let stack = Stack::new(2);
    let lower = |n: usize| LowerConfig {
        path: stack.layers[n].clone(),
        format: stack.format(n),
    };
    let config = BlockConfig {
        format: Format::Qcow2,
        lower: vec![lower(0), lower(1)],
        ..BlockConfig::new("root", stack.top())
    };
    let block = Block::open(&config).unwrap();
    assert_eq!(block.backend().uses_io_uring(), Some(false));
    let err = Block::open(&config).err().unwrap();
    assert!(matches!(err, BlockError::Layer { .. }), "{err}");
    assert!(err.to_string().starts_with("drive \"root\": "), "{err}");
    assert!(
        err.to_string().contains("in use by another machine"),
        "{err}"
    );
    drop(block);
    let missing = BlockConfig {
        lower: vec![lower(0)],
        ..config.clone()
    };
    // The second overlay, right over the base: what the first has is not seen.
    drop(Block::open(&missing).unwrap());
    let read_only = BlockConfig {
        read_only: true,
        ..config
    };
    let readers = [(); 2].map(|()| Block::open(&read_only).unwrap());
    drop(readers);
    stack.assert_right();
}

#[test]
fn only_images_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    raw_base(&raw);
    let err = Layer::open(&raw, Format::Qcow2).unwrap_err().to_string();
    assert!(err.contains("raw: it is not a qcow2 image"), "{err}");
    let err = Layer::open(dir.path(), Format::Raw).unwrap_err();
    assert!(matches!(err, LayerError::NotAFile { .. }), "{err}");
    let fifo = dir.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let err = Layer::open(&fifo, Format::Qcow2).unwrap_err();
    assert!(matches!(err, LayerError::NotAFile { .. }), "{err}");
}

#[test]
fn a_disk_may_be_smaller_than_a_cluster() {
    const SMALL: u64 = 16 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.qcow2");
    let top = create(&path, SMALL, None).unwrap();
    let mut chain = Chain::open(vec![top]).unwrap();
    let mut disk = pattern(0, SMALL as usize, 1);
    chain.write(&disk, 0).unwrap();
    for (offset, len, unmap) in [
        (0, 512, false),
        (1024, 512, true),
        (SMALL - 512, 512, false),
    ] {
        chain.write_zeroes(offset, len, unmap).unwrap();
        disk[offset as usize..][..len as usize].fill(0);
        assert!(read_all(&chain) == disk, "{len} bytes at {offset}");
    }
    chain.discard(0, SMALL).unwrap();
    assert!(read_all(&chain) == vec![0; SMALL as usize]);
    drop(chain.freeze().unwrap());
    assert_clean(&path);
}
