//! Snapshots that were written by the first version of the format and are read for ever. They are
//! never written again: with another version come further ones beside them.
//!
//! They were made by this file, run with `TINE_MAKE_FIXTURES` naming a new directory.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tine_snapshot::manifest::{DiskFormat, Host, Kind, Kvm, Machine, Parent, Region};
use tine_snapshot::section::{Section, State};
use tine_snapshot::{DiskSource, Facts, PAGE, Snapshot, SnapshotWriter, pair};

/// 64 KiB of memory.
const SIZE: u64 = 16 * PAGE;
const DISK: u64 = 16 << 10;

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Part {
    number: u64,
    words: Vec<String>,
    maybe: Option<i32>,
}

impl State for Part {
    const KIND: &'static str = "part";
    const VERSION: u16 = 3;
}

fn part(number: u64) -> Part {
    Part {
        number,
        words: vec!["one".to_owned(), String::new()],
        maybe: Some(-1),
    }
}

fn sections() -> Vec<Section> {
    let section = |n: u64| Section::of(format!("part{n}"), &part(1 << n)).unwrap();
    vec![section(0), section(40)]
}

fn facts(kind: Kind, parent: Option<Parent>) -> Facts {
    let regions = [(0, 12 * PAGE), (1 << 32, 4 * PAGE)];
    let regions = regions.map(|(guest_address, length)| Region {
        guest_address,
        length,
    });
    Facts {
        kind,
        parent,
        created_at: "2026-01-31T12:34:56.000001Z".to_owned(),
        tine_version: "0.1.0".to_owned(),
        generation: 7,
        machine: Machine {
            vcpus: 2,
            memory_bytes: SIZE,
            config: serde_json::json!({ "drives": [{ "id": "root" }], "large": u64::MAX }),
        },
        host: Host {
            cpu_vendor: "GenuineIntel".to_owned(),
            cpu_model: "A \"processor\" \\ of ours".to_owned(),
            kvm: Kvm::Software,
            tsc_khz: 2_100_000,
            cpuid_features: vec!["avx2".to_owned(), "xsave".to_owned()],
        },
        regions: match kind {
            Kind::Full => regions.to_vec(),
            Kind::Disk => Vec::new(),
        },
    }
}

/// What the memory of the second snapshot is: pages 0, 3 and 15 of the first, but 3 of the second,
/// and 15 zeroes again.
fn memory(layers: usize) -> Vec<u8> {
    let mut memory = vec![0; SIZE as usize];
    for (page, value) in [(0, 1), (3, 2), (15, 3)] {
        memory[page * 4096..(page + 1) * 4096].fill(value);
    }
    if layers == 2 {
        memory[3 * 4096..4 * 4096].fill(9);
        memory[15 * 4096..].fill(0);
    }
    memory
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1")
}

fn verified(name: &str) -> Snapshot {
    let snapshot = Snapshot::open(&fixtures().join(name)).unwrap();
    snapshot.verify(|_| ControlFlow::Continue(())).unwrap();
    snapshot
}

fn check_facts(manifest: &tine_snapshot::Manifest, wanted: &Facts) {
    assert_eq!(manifest.version, 1);
    assert_eq!(manifest.kind, wanted.kind);
    assert_eq!(manifest.parent, wanted.parent);
    assert_eq!(manifest.created_at, wanted.created_at);
    assert_eq!(manifest.tine_version, wanted.tine_version);
    assert_eq!(manifest.generation, wanted.generation);
    assert_eq!(manifest.machine, wanted.machine);
    assert_eq!(manifest.host, wanted.host);
    let regions = manifest.memory.as_ref().map(|memory| &memory.regions);
    assert_eq!(regions.cloned().unwrap_or_default(), wanted.regions);
}

#[test]
fn full_snapshots_are_read() {
    for (name, layers) in [("full", 1), ("incremental", 2)] {
        let snapshot = verified(name);
        let parent = (layers == 2).then(|| Parent {
            id: verified("full").manifest().id,
            note: "full".to_owned(),
        });
        check_facts(snapshot.manifest(), &facts(Kind::Full, parent));
        assert_eq!(snapshot.state().unwrap(), sections());
        let decoded: Part = snapshot.state().unwrap()[1].decode().unwrap();
        assert_eq!(decoded, part(1 << 40));
        let opened = snapshot.memory().unwrap();
        let mut found = vec![0; SIZE as usize];
        for run in opened.runs().unwrap() {
            let range = run.offset as usize..(run.offset + run.len) as usize;
            let file = opened.file(run.layer);
            file.read_exact_at(&mut found[range], run.offset).unwrap();
        }
        assert!(found == memory(layers), "{name}");
    }
}

#[test]
fn disk_snapshots_are_read() {
    let snapshot = verified("disk");
    check_facts(snapshot.manifest(), &facts(Kind::Disk, None));
    let disks = &snapshot.manifest().disks;
    assert_eq!(disks.len(), 2);
    assert!(disks[1].read_only && disks[0].layers.len() == 2);
    let mut first = [0; 4];
    let file = snapshot.disk_layer_file("root", 0).unwrap();
    file.read_exact_at(&mut first, DISK - 4).unwrap();
    assert_eq!(first, [5; 4]);
    let file = snapshot.disk_layer_file("root", 1).unwrap();
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(&first, b"QFI\xfb");
}

#[test]
fn pairs_of_files_are_read() {
    let state = pair::read_state(&fixtures().join("pair/state")).unwrap();
    check_facts(&state.manifest, &facts(Kind::Full, None));
    assert_eq!(state.sections, sections());
    let opened = state.memory(&fixtures().join("pair/memory")).unwrap();
    let mut found = vec![0; SIZE as usize];
    opened.file(0).read_exact_at(&mut found, 0).unwrap();
    assert!(found == memory(1));
}

/// How they were made.
#[test]
fn fixtures_can_be_made() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = std::env::var_os("TINE_MAKE_FIXTURES").map(PathBuf::from);
    make(&dir.unwrap_or_else(|| temporary.path().join("new")));
}

fn make(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let mut writer = SnapshotWriter::begin(&dir.join("full")).unwrap();
    writer.write_state(&sections()).unwrap();
    let mut layer = writer.memory_layer(SIZE).unwrap();
    layer.write(0, &memory(1)).unwrap();
    layer.finish().unwrap();
    let full = writer.finish(facts(Kind::Full, None)).unwrap();

    let mut writer = SnapshotWriter::begin(&dir.join("incremental")).unwrap();
    writer.write_state(&sections()).unwrap();
    writer.link_memory_layers(&full).unwrap();
    let mut layer = writer.memory_layer(SIZE).unwrap();
    for page in [3, 15] {
        let at = page * PAGE as usize;
        layer
            .write(at as u64, &memory(2)[at..at + PAGE as usize])
            .unwrap();
    }
    layer.finish().unwrap();
    let parent = Parent {
        id: full.manifest().id,
        note: "full".to_owned(),
    };
    writer.finish(facts(Kind::Full, Some(parent))).unwrap();

    let raw = dir.join("raw");
    std::fs::write(&raw, vec![5; DISK as usize]).unwrap();
    let overlay = dir.join("overlay");
    let status = std::process::Command::new("qemu-img")
        .args([
            "create",
            "-q",
            "-f",
            "qcow2",
            "-o",
            "cluster_size=4k",
            "-F",
            "raw",
            // As it is called in the snapshot, where it is not yet.
            "-u",
            "-b",
            "disk-root-0.raw",
        ])
        .arg(&overlay)
        .arg(DISK.to_string())
        .status()
        .unwrap();
    assert!(status.success());
    let add = |writer: &mut SnapshotWriter, path: &Path, format| {
        let file = File::open(path).unwrap();
        let layer = DiskSource {
            file: &file,
            format,
            virtual_size: DISK,
            frozen: false,
            checksum: true,
        };
        writer.add_disk_layer(&layer).unwrap();
    };
    let mut writer = SnapshotWriter::begin(&dir.join("disk")).unwrap();
    writer.begin_disk("root", false).unwrap();
    add(&mut writer, &raw, DiskFormat::Raw);
    add(&mut writer, &overlay, DiskFormat::Qcow2);
    writer.begin_disk("data-2", true).unwrap();
    add(&mut writer, &raw, DiskFormat::Raw);
    writer.finish(facts(Kind::Disk, None)).unwrap();
    std::fs::remove_file(raw).unwrap();
    std::fs::remove_file(overlay).unwrap();

    std::fs::create_dir(dir.join("pair")).unwrap();
    let mut file = pair::MemoryFile::begin(&dir.join("pair/memory"), SIZE).unwrap();
    file.write(0, &memory(1)).unwrap();
    let file = file.finish().unwrap();
    pair::write_state(
        &dir.join("pair/state"),
        facts(Kind::Full, None),
        &sections(),
        file,
    )
    .unwrap();
}
