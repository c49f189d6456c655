//! Machines that are forked and frozen again and again, and copies of copies of copies: disks and
//! memory do not become ever deeper, and all who share layers keep them. With a bare-metal guest that
//! writes to its disk all the time and finds what it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tine::machine::{LAYERS, MOST_LAYERS};
use tine::memory::MAX_LAYERS;
use tine_snapshot::Snapshot;
use tine_tests::api::Vmm;
use tine_tests::left::{Random, files};
use tine_tests::{guest, host, require_kvm};

/// How often a machine is frozen.
const FORKS: usize = 200;
/// Copies of copies.
const GENERATIONS: usize = 40;
/// How often a machine is killed while its layers become one.
const KILLS: usize = 20;
/// The guest writes to the first 4 KiB of blocks of this many bytes, 32 of them.
const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 32;
const WRITTEN: usize = 4 << 10;

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::yield_now();
    }
}

/// A disk that is nowhere zero.
fn base() -> Vec<u8> {
    (0..4 << 20)
        .map(|at: u32| (at / 512 % 251) as u8 | 1)
        .collect()
}

/// A snapshot of a machine that writes.
fn snapshot(dir: &Path) -> PathBuf {
    let image = dir.join("disk.img");
    fs::write(&image, base()).unwrap();
    let vmm = Vmm::start([] as [&str; 0]);
    let config = json!({
        "kernel": guest("writing"), "memory_mib": 64,
        "drives": [{ "id": "data", "path": image }],
    });
    vmm.put("/v1/config", &config).expect(204);
    vmm.start_machine().expect(204);
    frozen(&vmm, &dir.join("snapshot"))
}

fn frozen(vmm: &Vmm, dir: &Path) -> PathBuf {
    vmm.put("/v1/snapshots", &json!({ "path": dir }))
        .expect(201);
    dir.to_owned()
}

/// A machine of a snapshot, or of a fork: its disk is its own.
fn made(from: Value) -> Vmm {
    let vmm = Vmm::start([] as [&str; 0]);
    let serial = json!({ "serial_out_path": vmm.dir.path().join("console") });
    vmm.put("/serial", &serial).expect(204);
    vmm.put("/v1/restore", &from).expect(204);
    vmm
}

/// Asks for a copy, which waits for so long to be taken.
fn fork(vmm: &Vmm, patience_ms: u64) -> PathBuf {
    let body = json!({ "timeout_ms": patience_ms }).to_string();
    let forked = vmm.request("POST", "/v1/fork", Some(&body)).expect(201);
    forked.json()["socket"].as_str().unwrap().into()
}

fn copy(vmm: &Vmm) -> Vmm {
    made(json!({ "fork": fork(vmm, 60_000) }))
}

/// The files of a machine's disk, the lowest first.
fn layers(vmm: &Vmm) -> Vec<PathBuf> {
    let config = vmm.get("/v1/config").expect(200).json();
    let drive = &config["drives"][0];
    let lower = drive["lower"].as_array().unwrap().iter();
    let lower = lower.map(|layer| layer["path"].as_str().unwrap().into());
    let top = drive["path"].as_str().unwrap().into();
    lower.chain([top]).collect()
}

fn writes(vmm: &Vmm) -> u64 {
    let metrics = vmm.get("/v1/metrics").expect(200).body;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("tine_drive_writes_total"));
    let count = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    count.expect("a number")
}

/// Waits until the guest has written a few more blocks.
fn writes_on(vmm: &Vmm, more: u64) {
    let before = writes(vmm);
    until("it writes", || writes(vmm) >= before + more);
}

/// The guest has found all that it has written, over and over, and goes on.
fn is_sound(vmm: &Vmm) {
    writes_on(vmm, 3 * BLOCKS as u64);
    assert_eq!(fs::read(vmm.dir.path().join("console")).unwrap(), b"");
}

/// What other tools say of a machine's disk: each layer is sound, names the one below it, and the rest
/// of the disk is as it was.
fn disk_is_sound(vmm: &Vmm) {
    let dir = TempDir::new().unwrap();
    let taken = Snapshot::open(&frozen(vmm, &dir.path().join("taken"))).unwrap();
    taken
        .verify(|_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let mut top = PathBuf::new();
    for layer in &taken.disk("data").unwrap().layers {
        top = taken.path().join(&layer.file);
        if top.extension().is_some_and(|ext| ext == "qcow2") {
            host(&["qemu-img", "check", "-q", top.to_str().unwrap()]);
        }
    }
    let all = dir.path().join("all.img");
    let (from, to) = (top.to_str().unwrap(), all.to_str().unwrap());
    host(&["qemu-img", "convert", "-O", "raw", from, to]);
    let (disk, base) = (fs::read(&all).unwrap(), base());
    assert_eq!(disk.len(), base.len());
    for (n, (now, then)) in disk.chunks(BLOCK).zip(base.chunks(BLOCK)).enumerate() {
        let from = if n < BLOCKS { WRITTEN } else { 0 };
        assert!(now[from..] == then[from..], "block {n}");
    }
}

/// What is in files, but for the last one, which is written.
fn contents(files: &[PathBuf]) -> BTreeMap<PathBuf, Vec<u8>> {
    let (_, frozen) = files.split_last().unwrap();
    let read = |path: &PathBuf| (path.clone(), fs::read(path).unwrap());
    frozen.iter().map(read).collect()
}

#[test]
fn a_machine_forked_again_and_again_keeps_a_shallow_disk() {
    require_kvm();
    let dir = TempDir::new().unwrap();
    let vmm = made(json!({ "snapshot": snapshot(dir.path()) }));
    // As a life before this one has left it.
    let record = vmm.dir.path().join("machine.json");
    fs::write(&record, "{}").unwrap();
    let mut kept = Vec::new();
    let mut deepest = 0;
    for n in 0..FORKS {
        writes_on(&vmm, 1);
        if [3, LAYERS + 2, FORKS - 1].contains(&n) {
            let copy = copy(&vmm);
            let shared = contents(&layers(&copy));
            kept.push((copy, shared));
        } else {
            fork(&vmm, 1);
        }
        deepest = deepest.max(layers(&vmm).len());
    }
    println!("layers at most: {deepest}");
    assert!(deepest <= MOST_LAYERS + 1, "{deepest}");
    // The last fork may have begun what brings it down.
    until("it is shallow", || layers(&vmm).len() <= LAYERS);
    is_sound(&vmm);
    let all = layers(&vmm);
    // What it does not use any more is gone, and nothing names it.
    let own = fs::read_dir(vmm.dir.path()).unwrap().flatten();
    let mut own: Vec<_> = own.map(|entry| entry.path()).collect();
    own.retain(|path| path.extension().is_some_and(|ext| ext == "qcow2"));
    own.sort();
    let mut used: Vec<_> = all
        .iter()
        .filter(|path| path.starts_with(vmm.dir.path()))
        .cloned()
        .collect();
    used.sort();
    assert_eq!(own, used);
    let recorded: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    assert_eq!(recorded["drives"][0]["path"], json!(all.last().unwrap()));
    for (copy, shared) in &kept {
        is_sound(copy);
        for (path, bytes) in shared {
            assert!(fs::read(path).unwrap() == *bytes, "{path:?}");
        }
        disk_is_sound(copy);
    }
    disk_is_sound(&vmm);
}

#[test]
fn a_copy_of_a_copy_of_a_copy_is_as_good_as_the_first() {
    require_kvm();
    let dir = TempDir::new().unwrap();
    let mut last = made(json!({ "snapshot": snapshot(dir.path()) }));
    let (mut deepest, mut open) = (0, 0);
    for _ in 0..GENERATIONS {
        writes_on(&last, 1);
        // The one before is killed as soon as there is a copy of it.
        last = copy(&last);
        deepest = deepest.max(layers(&last).len());
        let fds = fs::read_dir(format!("/proc/{}/fd", last.child.id()))
            .unwrap()
            .flatten();
        let of_memory = |path: &PathBuf| path.to_string_lossy().contains("memfd:tine-memory");
        let fds = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        open = open.max(fds.filter(of_memory).count());
    }
    println!("layers at most: {deepest} of the disk, {open} of memory");
    assert!(deepest <= MOST_LAYERS + 1, "{deepest}");
    assert!(open <= MAX_LAYERS, "{open}");
    is_sound(&last);
    disk_is_sound(&last);
}

#[test]
fn a_machine_killed_while_layers_become_one_harms_nobody() {
    require_kvm();
    let dir = TempDir::new().unwrap();
    let first = made(json!({ "snapshot": snapshot(dir.path()) }));
    // So that the second fork of a machine of it begins to make one layer of them.
    while layers(&first).len() < LAYERS - 2 {
        writes_on(&first, 1);
        fork(&first, 1);
    }
    let deep = frozen(&first, &dir.path().join("deep"));
    drop(first);
    let all = || {
        let all = files(&deep).into_iter();
        all.map(|(path, (hash, _))| (path, hash))
            .collect::<BTreeMap<_, _>>()
    };
    let before = all();
    let mut random = Random::new();
    let mut whole = Duration::ZERO;
    let (mut early, mut late) = (0, 0);
    for round in 0..KILLS {
        let mut vmm = made(json!({ "snapshot": deep }));
        writes_on(&vmm, BLOCKS as u64);
        let kid = copy(&vmm);
        writes_on(&vmm, BLOCKS as u64);
        fork(&vmm, 60_000);
        let began = Instant::now();
        if round == 0 {
            // How long it takes when nobody is killed.
            until("it is shallow", || layers(&vmm).len() <= LAYERS);
            whole = began.elapsed() * 3 / 2;
        } else {
            // Another moment each time; no event of it is waited for.
            thread::sleep(random.within(whole));
        }
        vmm.child.kill().unwrap();
        vmm.child.wait().unwrap();
        let left = fs::read_dir(vmm.dir.path()).unwrap().flatten();
        let left = left.filter(|entry| entry.path().extension().is_some_and(|e| e == "qcow2"));
        match left.count() {
            // All that it made are there: none is removed before one is in their place.
            0..=2 => late += 1,
            _ => early += 1,
        }
        is_sound(&kid);
        if round % 5 == 0 {
            disk_is_sound(&kid);
        }
        assert!(all() == before, "round {round}");
    }
    println!("killed before it was one {early}, after {late}; it takes {whole:?}");
}
