//! Snapshots that were made to mislead: names that lead elsewhere, files that are none, layers of
//! others, numbers that are too large.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::damage::{read_all, replace};
use super::*;
use crate::checksum::Checksum;
use crate::manifest::Manifest;
use crate::memory::index::{Extent, Index};
use crate::memory::trailer;
use crate::{Id, ReadError};

/// A snapshot of two layers, ready to be changed.
fn pair() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let first = write_first(dir.path(), "one").unwrap();
    let second = write_second(dir.path(), "two", &first).unwrap();
    let path = second.path().to_owned();
    (dir, path)
}

/// Writes a manifest with a checksum that fits, whatever it says.
fn rewrite(snapshot: &Path, change: impl FnOnce(&mut Manifest)) {
    let mut manifest = Snapshot::open(snapshot).unwrap().manifest().clone();
    change(&mut manifest);
    replace(&snapshot.join("manifest.json"), &manifest.to_text());
}

/// The error of opening it once the manifest says something else.
fn refused(change: impl FnOnce(&mut Manifest)) -> String {
    let (_dir, snapshot) = pair();
    rewrite(&snapshot, change);
    let err = read_all(&snapshot).unwrap_err().to_string();
    assert!(err.contains("two/"), "{err}");
    err
}

#[test]
fn names_lead_nowhere_else() {
    let hostile = [
        "../one/memory-0",
        "/etc/passwd",
        "memory-1",
        "",
        ".",
        "memory-0\0",
    ];
    for name in hostile {
        let err = refused(|manifest| {
            manifest.memory.as_mut().unwrap().layers[0].file = name.to_owned();
        });
        assert!(err.contains("memory.layers[0]"), "{err}");
        let err = refused(|manifest| {
            manifest.memory.as_mut().unwrap().layers[1].index = name.to_owned();
        });
        assert!(err.contains("memory.layers[1]"), "{err}");
        let err = refused(|manifest| manifest.disks[0].layers[0].file = name.to_owned());
        assert!(err.contains("disks[0].layers[0]"), "{err}");
    }
    for drive in ["..", "a/b", "", "root\n"] {
        let err = refused(|manifest| {
            let disk = &mut manifest.disks[0];
            disk.drive = drive.to_owned();
            disk.layers[0].file = format!("disk-{drive}-0.raw");
        });
        assert!(err.contains("disks[0]"), "{err}");
    }
}

#[test]
fn numbers_have_bounds() {
    type Change = fn(&mut Manifest);
    let wrong: [(&str, Change); 13] = [
        ("memory.size", |m| m.memory.as_mut().unwrap().size = 0),
        ("memory.size", |m| m.memory.as_mut().unwrap().size += 1),
        ("memory.size", |m| {
            m.memory.as_mut().unwrap().size = u64::MAX - 4095
        }),
        ("memory.size", |m| m.machine.memory_bytes += PAGE),
        ("memory.page", |m| m.memory.as_mut().unwrap().page = 1 << 21),
        ("memory.regions", |m| {
            m.memory.as_mut().unwrap().regions.truncate(1)
        }),
        ("memory.regions[1]", |m| {
            m.memory.as_mut().unwrap().regions[1].guest_address = PAGE
        }),
        ("memory.regions[1]", |m| {
            m.memory.as_mut().unwrap().regions[1].guest_address = u64::MAX - 4095;
        }),
        ("memory.layers", |m| {
            m.memory.as_mut().unwrap().layers.clear()
        }),
        ("memory.layers[1]", |m| {
            let layers = &mut m.memory.as_mut().unwrap().layers;
            layers[1].id = layers[0].id;
        }),
        ("memory.layers[0]", |m| {
            m.memory.as_mut().unwrap().layers[0].index_length = 1 << 40
        }),
        ("disks[1]", |m| m.disks[1].drive = "root".to_owned()),
        ("created_at", |m| m.created_at = "yesterday".to_owned()),
    ];
    for (field, change) in wrong {
        let err = refused(change);
        assert!(err.contains(field), "{field}: {err}");
    }
    let err = refused(|manifest| manifest.state = None);
    assert!(err.contains("state"), "{err}");
    let err = refused(|manifest| {
        let disk = manifest.disks[0].clone();
        manifest.disks = vec![disk; 65];
    });
    assert!(err.contains("disks"), "{err}");
}

#[test]
fn a_newer_version_is_told_before_anything_else() {
    let (_dir, snapshot) = pair();
    let path = snapshot.join("manifest.json");
    let text = r#"{ "format": "tine-snapshot", "version": 2, "layers": "as never before" }"#;
    replace(&path, text.as_bytes());
    let err = Snapshot::open(&snapshot).unwrap_err();
    assert!(matches!(err, ReadError::Newer { found: 2, .. }), "{err}");
    let (_dir, snapshot) = pair();
    rewrite(&snapshot, |manifest| manifest.version = 7);
    let err = Snapshot::open(&snapshot).unwrap_err();
    assert!(matches!(err, ReadError::Newer { found: 7, .. }), "{err}");
}

#[test]
fn unknown_and_missing_members_are_refused() {
    let (_dir, snapshot) = pair();
    let path = snapshot.join("manifest.json");
    let text = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
    let body = &text[..text.find(",\n  \"checksum\"").unwrap()];
    let with = |body: &str| {
        let sum = Checksum::of(body.as_bytes());
        replace(
            &path,
            format!("{body},\n  \"checksum\": \"{sum}\"\n}}\n").as_bytes(),
        );
        Snapshot::open(&snapshot).unwrap_err().to_string()
    };
    let err = with(&format!("{body},\n  \"more\": 1"));
    assert!(err.contains("unknown field `more`"), "{err}");
    let err = with(&body.replace("\"generation\": 3,", ""));
    assert!(err.contains("missing field `generation`"), "{err}");
    let err = with(&body.replace(
        "\"generation\": 3,",
        "\"generation\": 3, \"generation\": 4,",
    ));
    assert!(err.contains("duplicate field `generation`"), "{err}");
    let deep = format!("\"config\": {}", "[".repeat(100_000));
    let err = with(&body.replace("\"config\": ", &deep));
    assert!(err.contains("recursion limit"), "{err}");
}

#[test]
fn a_manifest_too_long_is_not_read() {
    let (_dir, snapshot) = pair();
    let path = snapshot.join("manifest.json");
    std::fs::remove_file(&path).unwrap();
    // A hole: were it read, it would be noticed.
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let err = Snapshot::open(&snapshot).unwrap_err().to_string();
    assert!(
        err.contains("manifest.json") && err.contains("length"),
        "{err}"
    );
}

#[test]
fn only_regular_files_are_opened() {
    let names = [
        "manifest.json",
        "state",
        "memory-0",
        "memory-1.index",
        "disk-root-0.raw",
    ];
    for name in names {
        let (_dir, snapshot) = pair();
        let path = snapshot.join(name);
        let moved = snapshot.join("moved");
        std::fs::rename(&path, &moved).unwrap();
        let check = |found: &str| {
            let err = read_all(&snapshot).unwrap_err();
            assert!(matches!(&err, ReadError::NotAFile { .. }), "{name}: {err}");
            assert!(err.to_string().contains(found), "{name}: {err}");
            assert!(
                err.to_string().contains(path.to_str().unwrap()),
                "{name}: {err}"
            );
        };
        symlink(&moved, &path).unwrap();
        check("symbolic link");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        check("directory");
        std::fs::remove_dir(&path).unwrap();
        // Were it opened to read, this would wait for ever.
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, mode, 0).unwrap();
        check("FIFO");
        std::fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        check("socket");
    }
}

#[test]
fn a_missing_file_is_named() {
    for name in [
        "state",
        "memory-0",
        "memory-0.index",
        "memory-1",
        "disk-data-2-1.qcow2",
    ] {
        let (_dir, snapshot) = pair();
        std::fs::remove_file(snapshot.join(name)).unwrap();
        let err = Snapshot::open(&snapshot).unwrap_err();
        assert!(
            matches!(&err, ReadError::Missing { path } if path.ends_with(name)),
            "{err}"
        );
    }
    let (_dir, snapshot) = pair();
    std::fs::remove_file(snapshot.join("manifest.json")).unwrap();
    let err = Snapshot::open(&snapshot).unwrap_err();
    assert!(matches!(err, ReadError::NotASnapshot { .. }), "{err}");
    let err = Snapshot::open(&snapshot.join("nothing")).unwrap_err();
    assert!(matches!(err, ReadError::Open { .. }), "{err}");
}

#[test]
fn a_memory_file_of_another_length_is_refused() {
    for length in [0, SIZE, SIZE + PAGE - 1, SIZE + PAGE + 1, SIZE + 2 * PAGE] {
        let (_dir, snapshot) = pair();
        let path = snapshot.join("memory-0");
        let bytes = std::fs::read(&path).unwrap();
        replace(&path, &bytes);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(length)
            .unwrap();
        let err = Snapshot::open(&snapshot).unwrap_err();
        assert!(matches!(err, ReadError::Length { .. }), "{err}");
    }
}

#[test]
fn a_layer_of_another_snapshot_in_its_place_is_found_when_it_is_opened() {
    let (dir, snapshot) = pair();
    let other = write_first(dir.path(), "other").unwrap();
    let swap = |name: &str| {
        let ours = std::fs::read(snapshot.join(name)).unwrap();
        let theirs = std::fs::read(other.path().join(name)).unwrap();
        replace(&snapshot.join(name), &theirs);
        let err = read_all(&snapshot).unwrap_err();
        replace(&snapshot.join(name), &ours);
        read_all(&snapshot).unwrap();
        err
    };
    let err = swap("memory-0");
    assert!(matches!(err, ReadError::OtherLayer { .. }), "{err}");
    let err = swap("memory-0.index");
    assert!(matches!(err, ReadError::OtherLayer { .. }), "{err}");
    let err = swap("state").to_string();
    assert!(
        err.contains("two/state") && err.contains("another snapshot"),
        "{err}"
    );
    let err = swap("disk-root-0.raw").to_string();
    assert!(err.contains("two/disk-root-0.raw: head"), "{err}");
}

/// An index with these extents, in the place of the lower layer's, with everything else fitting.
fn with_extents(extents: Vec<Extent>, sums: usize) -> Result<(), ReadError> {
    let (_dir, snapshot) = pair();
    let id = Id::random().unwrap();
    let index = Index {
        id,
        size: SIZE,
        extents,
        sums: vec![Checksum(0); sums],
    };
    let bytes = index.encode();
    replace(&snapshot.join("memory-0.index"), &bytes);
    let path = snapshot.join("memory-0");
    let mut memory = std::fs::read(&path).unwrap();
    memory.truncate(SIZE as usize);
    memory.extend(trailer::encode(id, SIZE));
    replace(&path, &memory);
    let mut manifest = Manifest::parse(
        &snapshot,
        &std::fs::read(snapshot.join("manifest.json")).unwrap(),
    )?;
    let layer = &mut manifest.memory.as_mut().unwrap().layers[0];
    layer.id = id;
    layer.index_length = bytes.len() as u64;
    layer.index_checksum = Checksum::of(&bytes);
    layer.stored_bytes = index.stored_bytes().min(SIZE);
    replace(&snapshot.join("manifest.json"), &manifest.to_text());
    Snapshot::open(&snapshot)?
        .memory()
        .and_then(|layers| layers.runs().map(drop))
}

#[test]
fn extents_are_ascending_and_within_memory() {
    let extent = |first, count, zero| Extent { first, count, zero };
    with_extents(vec![extent(0, 1, false), extent(1, 2, true)], 1).unwrap();
    let last = (SIZE / PAGE) as u32;
    let wrong = [
        vec![extent(0, 0, false)],
        vec![extent(last, 1, false)],
        vec![extent(last - 1, 2, true)],
        vec![extent(u32::MAX, (1 << 31) - 1, true)],
        vec![extent(5, 2, true), extent(6, 1, true)],
        vec![extent(5, 2, true), extent(0, 1, true)],
    ];
    for extents in wrong {
        let what = format!("{extents:?}");
        let sums = usize::from(!extents[0].zero);
        let err = with_extents(extents, sums).unwrap_err().to_string();
        assert!(err.contains("memory-0.index: extent"), "{what}: {err}");
    }
    for sums in [0, 2] {
        let err = with_extents(vec![extent(0, 1, false)], sums)
            .unwrap_err()
            .to_string();
        assert!(err.contains("memory-0.index: header"), "{err}");
    }
}

#[test]
fn counts_that_lie_allocate_nothing() {
    let (_dir, snapshot) = pair();
    for (name, at) in [
        ("state", 12),
        ("memory-0.index", 44),
        ("memory-0.index", 48),
    ] {
        let path = snapshot.join(name);
        let bytes = std::fs::read(&path).unwrap();
        let mut lie = bytes.clone();
        lie[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        if name == "state" {
            let sum = Checksum::of(&lie[..40]);
            lie[40..48].copy_from_slice(&sum.0.to_le_bytes());
        }
        replace(&path, &lie);
        let err = read_all(&snapshot).unwrap_err().to_string();
        assert!(err.contains(name) && err.contains("header"), "{err}");
        replace(&path, &bytes);
    }
    // A section of 2^63 bytes.
    let path = snapshot.join("state");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[56..64].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    replace(&path, &bytes);
    let err = read_all(&snapshot).unwrap_err().to_string();
    assert!(err.contains("section \"machine\""), "{err}");
}
