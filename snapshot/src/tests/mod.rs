//! Tests of the crate as a whole, on small snapshots of machines that never were.

mod crash;
mod damage;
mod hostile;
mod pairs;
mod round_trip;
mod space;

use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

use crate::manifest::{DiskFormat, Host, Kind, Kvm, Machine, Parent, Region};
use crate::section::Section;
use crate::{DiskSource, Facts, PAGE, Progress, Snapshot, SnapshotWriter, WriteError};

/// The memory of these machines: three chunks and a bit.
const SIZE: u64 = 200 * PAGE;

fn facts() -> Facts {
    Facts {
        kind: Kind::Full,
        parent: None,
        created_at: "2026-01-31T12:34:56.000001Z".to_owned(),
        tine_version: "0.1.0".to_owned(),
        generation: 3,
        machine: Machine {
            vcpus: 2,
            memory_bytes: SIZE,
            config: serde_json::json!({ "kernel": "vmlinux", "drives": [1, null, 2.5] }),
        },
        host: Host {
            cpu_vendor: "GenuineIntel".to_owned(),
            cpu_model: "Some \"processor\"".to_owned(),
            kvm: Kvm::Hardware,
            tsc_khz: 2_100_000,
            cpuid_features: vec!["avx2".to_owned(), "fsgsbase".to_owned()],
        },
        regions: vec![
            Region {
                guest_address: 0,
                length: 150 * PAGE,
            },
            Region {
                guest_address: 1 << 32,
                length: 50 * PAGE,
            },
        ],
    }
}

fn sections() -> Vec<Section> {
    ["machine", "vcpu0", "drive/root"]
        .iter()
        .enumerate()
        .map(|(n, name)| Section {
            name: (*name).to_owned(),
            kind: "test".to_owned(),
            version: n as u16,
            payload: vec![n as u8; 20 * n],
        })
        .collect()
}

/// A page that says which it is.
fn page(n: u64, salt: u8) -> Vec<u8> {
    let mut page = vec![salt; PAGE as usize];
    page[..8].copy_from_slice(&n.to_le_bytes());
    page
}

/// Memory with something in these pages.
fn memory(pages: &[u64], salt: u8) -> Vec<u8> {
    let mut memory = vec![0; SIZE as usize];
    for n in pages {
        let at = (n * PAGE) as usize;
        memory[at..at + PAGE as usize].copy_from_slice(&page(*n, salt));
    }
    memory
}

/// A disk of 1 MiB that is mostly a hole.
fn disk(dir: &Path, name: &str) -> File {
    let path = dir.join(name);
    let mut file = File::create_new(&path).unwrap();
    file.write_all(name.as_bytes()).unwrap();
    file.set_len(1 << 20).unwrap();
    File::open(path).unwrap()
}

/// A full snapshot of one layer, with two disks.
fn write_first(dir: &Path, name: &str) -> Result<Snapshot, WriteError> {
    let image = disk(dir, &format!("{name}.image"));
    let mut writer = SnapshotWriter::begin(&dir.join(name))?;
    writer.write_state(&sections())?;
    let mut layer = writer.memory_layer(SIZE)?;
    layer.write(0, &memory(&[0, 1, 2, 63, 64, 70, 199], 1))?;
    layer.finish()?;
    for (drive, frozen) in [("root", true), ("data-2", false)] {
        writer.begin_disk(drive, !frozen)?;
        writer.add_disk_layer(&DiskSource {
            file: &image,
            format: DiskFormat::Raw,
            virtual_size: 1 << 20,
            frozen,
            checksum: true,
        })?;
    }
    writer.finish(facts())
}

/// A second one on top of it: page 1 is another, page 2 is zeroes, page 100 is new.
fn write_second(dir: &Path, name: &str, first: &Snapshot) -> Result<Snapshot, WriteError> {
    let overlay = disk(dir, &format!("{name}.image"));
    let mut writer = SnapshotWriter::begin(&dir.join(name))?;
    writer.write_state(&sections())?;
    writer.link_memory_layers(first)?;
    let mut layer = writer.memory_layer(SIZE)?;
    layer.write(PAGE, &[page(1, 2), vec![0; PAGE as usize]].concat())?;
    layer.write(100 * PAGE, &page(100, 2))?;
    layer.finish()?;
    for drive in ["root", "data-2"] {
        writer.begin_disk(drive, false)?;
        writer.link_disk_layers(first)?;
    }
    writer.add_disk_layer(&DiskSource {
        file: &overlay,
        format: DiskFormat::Qcow2,
        virtual_size: 1 << 20,
        frozen: true,
        checksum: false,
    })?;
    writer.finish(Facts {
        parent: Some(Parent {
            id: first.manifest().id,
            note: "first".to_owned(),
        }),
        ..facts()
    })
}

/// Memory as the layers together say it is.
fn read_memory(snapshot: &Snapshot) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let layers = snapshot.memory().unwrap();
    let mut memory = vec![0; layers.size() as usize];
    for run in layers.runs().unwrap() {
        let range = run.offset as usize..(run.offset + run.len) as usize;
        let file = layers.file(run.layer);
        file.read_exact_at(&mut memory[range], run.offset).unwrap();
    }
    memory
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
