//! Disks in layers. What QEMU's own tool says of the images is part of every test.

mod deep;
mod hostile;
mod kill;
mod merge;
mod model;
mod open;
mod switch;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use std::ops::ControlFlow;
use tine_devices::virtio::block::layers::{Backing, Chain, Format, Layer, create, merge};

/// The size of these disks.
pub const SIZE: u64 = 4 << 20;
/// What images allocate at once.
pub const CLUSTER: u64 = 64 << 10;

/// Bytes that depend on where they are, and on a salt.
pub fn pattern(offset: u64, len: usize, salt: u64) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| (at / 512 * 31 + at % 251 + salt * 7) as u8 | 1)
        .collect()
}

/// A raw image: every second cluster holds something.
pub fn raw_base(path: &Path) -> Vec<u8> {
    let mut disk = vec![0; SIZE as usize];
    let file = File::create_new(path).unwrap();
    file.set_len(SIZE).unwrap();
    for offset in (0..SIZE).step_by(2 * CLUSTER as usize) {
        let bytes = pattern(offset, CLUSTER as usize, 0);
        file.write_all_at(&bytes, offset).unwrap();
        disk[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    disk
}

/// A new overlay over the file `below`, which is beside it.
pub fn overlay(path: &Path, below: &Path, format: Format) -> Layer {
    let name = below.file_name().unwrap().to_str().unwrap();
    create(path, SIZE, Some(Backing { name, format })).unwrap()
}

/// All of a disk.
pub fn read_all(chain: &Chain) -> Vec<u8> {
    let mut bytes = vec![0xee; chain.virtual_size() as usize];
    chain.read(&mut bytes, 0).unwrap();
    bytes
}

/// What `qemu-img` says, and whether it is content.
pub fn qemu_img(args: &[&str], files: &[&Path]) -> (bool, String) {
    let output = Command::new("qemu-img").args(args).args(files).output();
    let output = output.expect("qemu-img: ./setup installs it");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// No errors and no lost clusters.
pub fn assert_clean(image: &Path) {
    let image = image.to_str().unwrap();
    // The image alone, wherever it says that its backing file is.
    let options = format!(
        r#"json:{{"driver":"qcow2","backing":null,"file":{{"driver":"file","filename":"{image}"}}}}"#
    );
    let (clean, text) = qemu_img(&["check"], &[Path::new(&options)]);
    assert!(clean, "{image}: {text}");
}

/// QEMU reads the same from the image, and what it lies over, as is in `disk`.
pub fn assert_same(image: &Path, disk: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let wanted = dir.path().join("wanted");
    std::fs::write(&wanted, disk).unwrap();
    let (same, text) = qemu_img(&["compare", "-f", "qcow2", "-F", "raw"], &[image, &wanted]);
    assert!(same, "{}: {text}", image.display());
}

/// A directory with a raw image in it, an overlay over it that is open, and what the disk is.
pub struct Stack {
    pub dir: tempfile::TempDir,
    pub layers: Vec<PathBuf>,
    pub disk: Vec<u8>,
}

impl Stack {
    /// With as many overlays, each with something in it.
    pub fn new(overlays: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base.raw");
        let disk = raw_base(&base);
        let mut stack = Self {
            dir,
            layers: vec![base],
            disk,
        };
        for n in 1..=overlays {
            let path = stack.dir.path().join(format!("layer-{n}.qcow2"));
            let top = overlay(&path, &stack.layers[n - 1], stack.format(n - 1));
            let mut layers = stack.lower(n);
            layers.push(top);
            stack.layers.push(path);
            let mut chain = Chain::open(layers).unwrap();
            let at = n as u64 * 3 * CLUSTER + 4096;
            stack.write(&mut chain, at, 2 * CLUSTER as usize, n as u64);
            chain.freeze().unwrap();
        }
        stack
    }

    pub fn format(&self, n: usize) -> Format {
        match n {
            0 => Format::Raw,
            _ => Format::Qcow2,
        }
    }

    /// The lowest layers, open to be read.
    pub fn lower(&self, count: usize) -> Vec<Layer> {
        let layers = self.layers[..count].iter().enumerate();
        // A lock is a child's too until it executes its program, and tests beside this one have children: it
        // may last for a moment longer than its file. Opening waits for that.
        let open = |(n, path): (usize, &PathBuf)| Layer::open(path, self.format(n)).unwrap();
        layers.map(open).collect()
    }

    /// The whole disk, the top open to be written.
    pub fn open(&self) -> Chain {
        let top = self.layers.len() - 1;
        let mut layers = self.lower(top);
        layers.push(Layer::open_writable(&self.layers[top], self.format(top)).unwrap());
        Chain::open(layers).unwrap()
    }

    pub fn write(&mut self, chain: &mut Chain, offset: u64, len: usize, salt: u64) {
        let bytes = pattern(offset, len, salt);
        chain.write(&bytes, offset).unwrap();
        self.disk[offset as usize..][..len].copy_from_slice(&bytes);
    }

    /// Makes one of some of the layers between the lowest and the topmost, if there are two: of others
    /// for each `salt`.
    pub fn merge(&mut self, salt: usize) {
        let top = self.layers.len() - 1;
        if top < 3 {
            return;
        }
        let start = 1 + salt % (top - 2);
        let end = start + 2 + salt / 7 % (top - start - 1);
        let mut lower = self.lower(end);
        let layers = lower.split_off(start);
        let path = self.dir.path().join("merged");
        let base = self.layers[start - 1]
            .file_name()
            .unwrap()
            .to_str()
            .unwrap();
        let format = self.format(start - 1);
        let backing = Backing { name: base, format };
        let go_on = |_| ControlFlow::Continue(());
        merge(lower, layers, &path, backing, go_on).unwrap();
        // Under the name that the layer over it has for what it lies over.
        std::fs::rename(&path, &self.layers[end - 1]).unwrap();
        self.layers.drain(start..end - 1);
    }

    pub fn top(&self) -> &Path {
        self.layers.last().unwrap()
    }

    /// Nobody has it open: all is as it should be, to us and to QEMU.
    pub fn assert_right(&self) {
        for image in &self.layers[1..] {
            assert_clean(image);
        }
        assert!(read_all(&Chain::open(self.lower(self.layers.len())).unwrap()) == self.disk);
        if self.layers.len() > 1 {
            assert_same(self.top(), &self.disk);
        }
    }
}
