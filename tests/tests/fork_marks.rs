//! Many copies of one machine write at once, each a mark of its own to the same pages and the same
//! blocks. Afterwards all that there is of each, memory, registers and disk, is searched from the
//! host: no mark is where another machine could see it. With bare-metal guests, so that 64 of them take
//! seconds; `fork_linux` does the same with fewer Linux guests and their file systems.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tine_snapshot::Snapshot;
use tine_tests::api::Vmm;
use tine_tests::{guest, host};

/// Copies that write at the same time.
const CHILDREN: u32 = 64;
/// How often the mark is in the pages that a guest writes.
const IN_MEMORY: usize = 256 * 3;
/// Blocks that a guest writes, how long each is, and from one to the next.
const BLOCKS: usize = 8;
const BLOCK: usize = 4 << 10;
const STRIDE: usize = 64 << 10;
/// The words of a block that are the mark.
const WORDS: [usize; 3] = [0, 256, 511];
/// The upper half of a mark: see `marks.S`.
const MAGIC: &[u8] = b"MARK";

/// The mark of the copy `n`, as its guest writes it.
fn mark(n: u32) -> [u8; 8] {
    let mut mark = [0; 8];
    // Its balloon's size, from MiB to pages.
    mark[..4].copy_from_slice(&(n << 8).to_le_bytes());
    mark[4..].copy_from_slice(MAGIC);
    mark
}

/// Whose marks are in a file, at whatever place, and how many.
fn marks(path: &Path, found: &mut HashSet<u32>) -> usize {
    let mut file = File::open(path).unwrap();
    let mut count = 0;
    // Most of it are holes, which are read into the same pages again and again.
    let mut buffer = vec![0; 1 << 20];
    let mut kept = 0;
    loop {
        let read = file.read(&mut buffer[kept..]).unwrap();
        let bytes = &buffer[..kept + read];
        let mut at = 4;
        while let Some(next) = bytes.get(at..).and_then(|rest| find(rest, MAGIC)) {
            at += next;
            let pages = u32::from_le_bytes(bytes[at - 4..at].try_into().unwrap());
            if pages != 0 && pages % 256 == 0 {
                found.insert(pages >> 8);
                count += 1;
            }
            at += MAGIC.len();
        }
        if read == 0 {
            return count;
        }
        // A mark may go on in the next part, and none is found twice.
        let whole = bytes.len();
        kept = whole.min(MAGIC.len() * 2 - 1);
        buffer.copy_within(whole - kept..whole, 0);
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == what[0])?;
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
}

/// What the disk is before anybody writes to it.
fn base() -> Vec<u8> {
    let words = 0..(BLOCKS * STRIDE / 8) as u32;
    let word = |n: u32| [n.to_le_bytes(), *b"BASE"].concat();
    words.flat_map(word).collect()
}

/// What the disk of the copy `n` has to be.
fn written(base: &[u8], n: u32) -> Vec<u8> {
    let mut disk = base.to_vec();
    for number in 0..BLOCKS {
        let block = &mut disk[number * STRIDE..][..BLOCK];
        // What it writes between its words is what it finds there in memory: nothing.
        block.fill(0);
        for word in WORDS {
            block[word * 8..][..8].copy_from_slice(&mark(n));
        }
        block[8..16].copy_from_slice(&(number as u64).to_le_bytes());
    }
    disk
}

fn parent(disk: &Path) -> Vmm {
    let vmm = Vmm::start([] as [&str; 0]);
    let config = json!({
        "kernel": guest("marks"), "memory_mib": 64,
        "drives": [{ "id": "data", "path": disk }],
    });
    vmm.put("/v1/config", &config).expect(204);
    let balloon = json!({ "amount_mib": 0, "deflate_on_oom": false });
    vmm.put("/balloon", &balloon).expect(204);
    vmm.start_machine().expect(204);
    vmm
}

fn fork(vmm: &Vmm, count: u32) -> PathBuf {
    let body = json!({ "count": count }).to_string();
    let forked = vmm.request("POST", "/v1/fork", Some(&body)).expect(201);
    forked.json()["socket"].as_str().unwrap().into()
}

/// A copy that stands still, and has been told its mark.
fn child(socket: &Path, n: u32) -> Vmm {
    let vmm = Vmm::start([] as [&str; 0]);
    let serial = json!({ "serial_out_path": vmm.dir.path().join("console") });
    vmm.put("/serial", &serial).expect(204);
    let request = json!({ "fork": socket, "resume": false });
    vmm.put("/v1/restore", &request).expect(204);
    vmm.patch("/balloon", &json!({ "amount_mib": n }))
        .expect(204);
    vmm
}

/// Waits until a guest has written all of it and found all of it.
fn finished(vmm: &Vmm, n: u32) {
    let start = Instant::now();
    loop {
        match &fs::read(vmm.dir.path().join("console")).unwrap()[..] {
            b"." => return,
            b"" => {}
            said => panic!("copy {n} has not found what it wrote: {said:?}"),
        }
        assert!(start.elapsed() < Duration::from_secs(120), "copy {n}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// All that there is of a machine, and the marks in it.
struct Taken {
    snapshot: Snapshot,
    found: HashSet<u32>,
    count: usize,
}

impl Taken {
    fn of(vmm: &Vmm) -> Self {
        let dir = vmm.dir.path().join("snapshot");
        let request = json!({ "path": dir });
        vmm.put("/v1/snapshots", &request).expect(201);
        let snapshot = Snapshot::open(&dir).unwrap();
        let mut found = HashSet::new();
        let files = fs::read_dir(&dir).unwrap();
        let counts = files.map(|entry| marks(&entry.unwrap().path(), &mut found));
        let count = counts.sum();
        Self {
            snapshot,
            found,
            count,
        }
    }

    /// The disk as another program reads it, which finds each layer in order, too.
    fn disk(&self, to: &Path) -> Vec<u8> {
        let mut chain = json!(null);
        for layer in &self.snapshot.disk("data").unwrap().layers {
            let path = self.snapshot.path().join(&layer.file);
            let format = json!(layer.format);
            if format == "qcow2" {
                host(&["qemu-img", "check", "-q", path.to_str().unwrap()]);
            }
            let file = json!({ "driver": "file", "filename": path });
            let mut image = json!({ "driver": format, "file": file });
            if !chain.is_null() {
                image["backing"] = chain;
            }
            chain = image;
        }
        let chain = format!("json:{chain}");
        let to_arg = to.to_str().unwrap();
        host(&["qemu-img", "convert", "-O", "raw", &chain, to_arg]);
        fs::read(to).unwrap()
    }
}

#[test]
fn no_page_or_block_of_one_is_seen_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    let base = base();
    fs::write(&image, &base).unwrap();
    let parent = parent(&image);
    let socket = fork(&parent, CHILDREN);
    let children: Vec<_> = (1..=CHILDREN).map(|n| (n, child(&socket, n))).collect();
    for (_, vmm) in &children {
        let resumed = json!({ "state": "Resumed" });
        vmm.patch("/vm", &resumed).expect(204);
    }
    for (n, vmm) in &children {
        finished(vmm, *n);
    }
    let seen = dir.path().join("seen");
    for (n, vmm) in &children {
        let taken = Taken::of(vmm);
        let (found, count) = (&taken.found, taken.count);
        assert_eq!(*found, HashSet::from([*n]), "in what there is of copy {n}");
        assert!(count >= IN_MEMORY + BLOCKS * WORDS.len(), "{count}");
        let disk = taken.disk(&seen);
        assert!(disk == written(&base, *n), "the disk of copy {n}");
    }
    // And the machine that they are copies of has none.
    let taken = Taken::of(&parent);
    assert_eq!(taken.found, HashSet::new());
    assert!(taken.disk(&seen) == base);
    assert!(fs::read(&image).unwrap() == base, "the caller's image");

    // One that wrote is forked in turn: its mark comes along, and no other does.
    let (n, last) = children.last().unwrap();
    let again = child(&fork(last, 1), *n);
    let taken = Taken::of(&again);
    assert_eq!(taken.found, HashSet::from([*n]));
    assert!(taken.disk(&seen) == written(&base, *n));
}
