//! Random operations against an array of bytes that they should be no different from, with new
//! layers in between.

use proptest::prelude::*;
use tine_devices::virtio::block::layers::{Chain, Format, Layer};

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Write {
        offset: u64,
        len: usize,
    },
    Zero {
        offset: u64,
        len: u64,
        unmap: bool,
    },
    Discard {
        offset: u64,
        len: u64,
    },
    Flush,
    /// Closed and opened again.
    Reopen,
    /// A new layer on top.
    Layer,
    /// Layers below the top made one.
    Merge,
}

fn step() -> impl Strategy<Value = Step> {
    // Sectors; also whole clusters, which images treat apart.
    let range = || {
        prop_oneof![
            2 => (0..SIZE / 512, 1..400_u64).prop_map(|(at, len)| (at * 512, len * 512)),
            1 => (0..SIZE / CLUSTER, 1..20_u64).prop_map(|(at, len)| (at * CLUSTER, len * CLUSTER)),
        ]
        .prop_map(|(at, len)| (at, len.min(SIZE - at)))
    };
    prop_oneof![
        6 => range().prop_map(|(offset, len)| Step::Write { offset, len: len as usize }),
        2 => (range(), any::<bool>())
            .prop_map(|((offset, len), unmap)| Step::Zero { offset, len, unmap }),
        3 => range().prop_map(|(offset, len)| Step::Discard { offset, len }),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        2 => Just(Step::Layer),
        1 => Just(Step::Merge),
    ]
}

fn run(steps: &[Step], raw: bool) {
    let mut stack = Stack::new(usize::from(!raw));
    let mut chain = stack.open();
    for (n, step) in steps.iter().enumerate() {
        match *step {
            Step::Write { offset, len } => stack.write(&mut chain, offset, len, n as u64),
            Step::Zero { offset, len, unmap } => {
                chain.write_zeroes(offset, len, unmap).unwrap();
                stack.disk[offset as usize..][..len as usize].fill(0);
            }
            Step::Discard { offset, len } => {
                chain.discard(offset, len).unwrap();
                stack.disk[offset as usize..][..len as usize].fill(0);
            }
            Step::Flush => chain.sync().unwrap(),
            Step::Merge => {
                drop(chain);
                stack.merge(n);
                chain = stack.open();
            }
            Step::Reopen => {
                drop(chain);
                chain = stack.open();
            }
            Step::Layer => {
                let below = stack.layers.len() - 1;
                let path = stack.dir.path().join(format!("layer-after-{n}.qcow2"));
                let mut layers = chain.freeze().unwrap();
                layers.push(overlay(&path, &stack.layers[below], stack.format(below)));
                stack.layers.push(path);
                chain = Chain::open(layers).unwrap();
            }
        }
        assert!(read_all(&chain) == stack.disk, "after step {n}, {step:?}");
    }
    drop(chain);
    stack.assert_right();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn layers_are_a_disk(steps in prop::collection::vec(step(), 1..30), raw in any::<bool>()) {
        run(&steps, raw);
    }
}

#[test]
fn images_that_qemu_made_are_written_too() {
    for options in [
        "compat=0.10",
        "compat=1.1",
        "cluster_size=4k",
        "refcount_bits=64",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.qcow2");
        let size = SIZE.to_string();
        let create = ["create", "-q", "-f", "qcow2", "-o", options];
        let (made, text) = qemu_img(&create, &[&path, Path::new(&size)]);
        assert!(made, "{text}");
        let open = || Chain::open(vec![Layer::open_writable(&path, Format::Qcow2).unwrap()]);
        let mut chain = open().unwrap();
        let mut disk = vec![0; SIZE as usize];
        for (offset, len) in [(4096, 200_000), (SIZE - 70_000, 70_000)] {
            let bytes = pattern(offset, len, 1);
            chain.write(&bytes, offset).unwrap();
            disk[offset as usize..][..len].copy_from_slice(&bytes);
        }
        chain.write_zeroes(8192, 100_000, true).unwrap();
        disk[8192..108_192].fill(0);
        assert!(read_all(&chain) == disk, "{options}");
        drop(chain);
        assert!(read_all(&open().unwrap()) == disk, "{options}");
        assert_clean(&path);
        assert_same(&path, &disk);
    }
}

#[test]
fn compressed_clusters_are_read_and_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let (raw, path) = (dir.path().join("raw"), dir.path().join("image.qcow2"));
    let mut disk = raw_base(&raw);
    let (done, text) = qemu_img(
        &["convert", "-c", "-f", "raw", "-O", "qcow2"],
        &[&raw, &path],
    );
    assert!(done, "{text}");
    let mut chain = Chain::open(vec![Layer::open_writable(&path, Format::Qcow2).unwrap()]).unwrap();
    assert!(read_all(&chain) == disk);
    for offset in [4096, 2 * CLUSTER + 512, 5 * CLUSTER] {
        let bytes = pattern(offset, 10_240, 5);
        chain.write(&bytes, offset).unwrap();
        disk[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    chain.discard(8 * CLUSTER, CLUSTER).unwrap();
    disk[(8 * CLUSTER) as usize..][..CLUSTER as usize].fill(0);
    assert!(read_all(&chain) == disk);
    drop(chain);
    assert_clean(&path);
    assert_same(&path, &disk);
}

#[test]
fn what_is_discarded_is_given_back_to_the_host() {
    use std::os::unix::fs::MetadataExt;
    let mut stack = Stack::new(1);
    let mut chain = stack.open();
    stack.write(&mut chain, 0, SIZE as usize, 3);
    chain.sync().unwrap();
    let blocks = || std::fs::metadata(stack.top()).unwrap().blocks() * 512;
    let full = blocks();
    assert!(full >= SIZE);
    chain.discard(512, SIZE - 512).unwrap();
    chain.sync().unwrap();
    // All but the tables, and the cluster that was not discarded as a whole.
    assert!(
        blocks() <= full - SIZE + 2 * CLUSTER,
        "{} of {full}",
        blocks()
    );
    stack.disk[512..].fill(0);
    drop(chain);
    stack.assert_right();
}
