//! Disks in layers, whose top is an image that somebody made up: opened to be read and to be written, it
//! is used or refused, and what was used is whole afterwards.
//!
//! An image is large and mostly data, so an input is what is changed in a good one: first its header, then
//! entries of eight bytes, each with the cluster and the place in it where it stands.

#![no_main]

use std::fs::File;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tine_devices::virtio::block::layers::{Chain, Format, Layer, LayerError, check, create};
use tine_fuzz::bounded::Bounded;

// The longest tables that are read whole belong to the largest image.
#[global_allocator]
static ALLOCATOR: Bounded<{ 64 << 20 }> = Bounded;

/// Bytes of the header, its extensions included.
const HEADER: usize = 256;
/// Bytes of a change: a cluster's number, the number of eight bytes in it, and what they are.
const CHANGE: usize = 11;
const CLUSTER: usize = 64 << 10;
const SIZE: u64 = 4 << 20;

/// A good image, and where changed ones are put.
struct Bench {
    dir: TempDir,
    image: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().join("base.raw");
        File::create(&base)
            .and_then(|file| file.set_len(SIZE))
            .expect("a file");
        let path = dir.path().join("image.qcow2");
        let top = create(&path, SIZE, None).expect("an image");
        let mut chain = open(&base, top).expect("a disk");
        for at in [0, 5 * CLUSTER as u64 + 4096] {
            chain.write(&[7; 8192], at).expect("data");
        }
        chain
            .write_zeroes(9 * CLUSTER as u64, CLUSTER as u64, false)
            .expect("zeroes");
        drop(chain.freeze().expect("an image"));
        let image = std::fs::read(&path).expect("an image");
        Self { dir, image }
    }

    fn run(&self, data: &[u8]) {
        let mut bytes = self.image.clone();
        let (header, changes) = data.split_at(data.len().min(HEADER));
        bytes[..header.len()].copy_from_slice(header);
        for change in changes.chunks_exact(CHANGE) {
            let place = usize::from(u16::from_le_bytes([change[1], change[2]])) * 8;
            let at = usize::from(change[0]) * CLUSTER + place % CLUSTER;
            // Behind the end it grows, a little.
            if at + 8 > bytes.len() && at < self.image.len() + 4 * CLUSTER {
                bytes.resize(at + 8, 0);
            }
            if let Some(entry) = bytes.get_mut(at..at + 8) {
                entry.copy_from_slice(&change[3..]);
            }
        }
        let path = self.dir.path().join("image.qcow2");
        let base = self.dir.path().join("base.raw");
        std::fs::write(&path, bytes).expect("an image");
        read(&base, &path);
        if write(&base, &path).is_ok() {
            // What was opened to be written, and written, is whole.
            let file = File::open(&path).expect("an image");
            let found = check(&path, &file).expect("a sound image");
            assert_eq!((found.undercounted, found.leaked), (0, 0), "{found:?}");
        }
    }
}

fn open(base: &Path, top: Layer) -> Result<Chain, LayerError> {
    Chain::open(vec![Layer::open(base, Format::Raw)?, top])
}

/// To be read, much is believed: it leads to wrong bytes at worst.
fn read(base: &Path, path: &Path) {
    let Ok(chain) = Layer::open(path, Format::Qcow2).and_then(|top| open(base, top)) else {
        return;
    };
    let mut buffer = vec![0; 1 << 20];
    for offset in (0..chain.virtual_size().min(SIZE)).step_by(1 << 20) {
        let _ = chain.read(&mut buffer, offset);
    }
}

fn write(base: &Path, path: &Path) -> Result<(), ()> {
    let named = |err: LayerError| {
        let err = err.to_string();
        assert!(err.contains("image.qcow2"), "no file is named: {err}");
    };
    let top = Layer::open_writable(path, Format::Qcow2).map_err(named)?;
    let mut chain = open(base, top).map_err(named)?;
    let last = chain.virtual_size().saturating_sub(8192) / 512 * 512;
    for offset in [0, 5 * CLUSTER as u64, 9 * CLUSTER as u64 + 512, last] {
        if offset + 8192 > chain.virtual_size() {
            continue;
        }
        chain.write(&[9; 8192], offset).map_err(drop)?;
        chain.discard(offset + 512, 1024).map_err(drop)?;
        chain
            .write_zeroes(offset + 2048, 512, false)
            .map_err(drop)?;
    }
    chain.flush().map_err(drop)?;
    drop(chain.freeze().map_err(drop)?);
    Ok(())
}

thread_local! {
    static BENCH: Bench = Bench::new();
}

/// The image as it is, and with each entry of its tables named.
fn seeds() -> Vec<Vec<u8>> {
    BENCH.with(|bench| {
        let image = &bench.image;
        let mut all = image[..HEADER].to_vec();
        let entries = image.chunks_exact(8).enumerate().skip(CLUSTER / 8);
        // Data is of sevens.
        for (n, entry) in entries.filter(|(_, entry)| **entry != [0; 8] && **entry != [7; 8]) {
            let place = (n % (CLUSTER / 8)) as u16;
            all.push((n * 8 / CLUSTER) as u8);
            all.extend(place.to_le_bytes());
            all.extend(entry);
        }
        vec![image[..HEADER].to_vec(), all]
    })
}

fuzz_target!(
    init: tine_fuzz::begin(seeds),
    |data: &[u8]| BENCH.with(|bench| bench.run(data))
);
