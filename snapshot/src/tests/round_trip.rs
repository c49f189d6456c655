//! What is written is read back the same.

use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;
use crate::{Map, Source, flatten};

#[test]
fn a_full_snapshot_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = write_first(dir.path(), "one").unwrap();
    assert_eq!(snapshot.state().unwrap(), sections());
    assert!(read_memory(&snapshot) == memory(&[0, 1, 2, 63, 64, 70, 199], 1));
    let manifest = snapshot.manifest();
    assert_eq!(manifest.machine, facts().machine);
    assert_eq!(manifest.host, facts().host);
    let file = snapshot.disk_layer_file("data-2", 0).unwrap();
    let mut start = [0; 9];
    file.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"one.image");
    let report = snapshot.verify(go_on).unwrap();
    assert_eq!((report.sections, report.memory_bytes), (3, 7 * PAGE));
    assert_eq!((report.disk_bytes, report.unchecked.len()), (2 << 20, 0));
}

#[test]
fn pages_of_zeroes_take_no_space() {
    let dir = tempfile::tempdir().unwrap();
    write_first(dir.path(), "one").unwrap();
    let meta = std::fs::metadata(dir.path().join("one/memory-0")).unwrap();
    assert_eq!(meta.len(), SIZE + PAGE);
    // Seven pages and the one that says which layer it is.
    assert!(meta.blocks() * 512 <= 8 * PAGE, "{} blocks", meta.blocks());
}

#[test]
fn files_are_for_reading_and_the_directory_for_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    write_first(dir.path(), "one").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&dir.path().join("one")), 0o700);
    for entry in std::fs::read_dir(dir.path().join("one")).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o444, "{path:?}");
    }
}

#[test]
fn a_second_layer_lies_over_the_first_and_shares_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_first(dir.path(), "one").unwrap();
    let second = write_second(dir.path(), "two", &first).unwrap();
    let mut wanted = memory(&[0, 1, 2, 63, 64, 70, 199], 1);
    let changed = memory(&[1, 100], 2);
    for n in [1, 2, 100] {
        let range = n * PAGE as usize..(n + 1) * PAGE as usize;
        wanted[range.clone()].copy_from_slice(&changed[range]);
    }
    assert!(read_memory(&second) == wanted);
    let inode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().ino();
    for file in ["memory-0", "memory-0.index", "disk-root-0.raw"] {
        assert_eq!(inode(&format!("one/{file}")), inode(&format!("two/{file}")));
    }
    // The parent is not needed any more.
    std::fs::remove_dir_all(dir.path().join("one")).unwrap();
    let report = Snapshot::open(second.path())
        .unwrap()
        .verify(go_on)
        .unwrap();
    assert_eq!(report.unchecked, ["disk-data-2-1.qcow2"]);
}

#[test]
fn a_plan_maps_the_lowest_layer_and_the_others_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_first(dir.path(), "one").unwrap();
    let second = write_second(dir.path(), "two", &first).unwrap();
    let map = |n: u64, source| Map {
        offset: n * PAGE,
        len: PAGE,
        source,
    };
    let layers = second.memory().unwrap();
    let plan = layers.plan(10).unwrap();
    assert_eq!(plan.copies, []);
    let over = [
        map(1, Source::Layer(1)),
        map(2, Source::Zero),
        map(100, Source::Layer(1)),
    ];
    assert_eq!(plan.maps, over);
    let plan = layers.plan(1).unwrap();
    assert_eq!((plan.maps.len(), plan.copies.len()), (1, 2));
}

#[test]
fn flattened_it_is_the_same_in_one_layer() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_first(dir.path(), "one").unwrap();
    let second = write_second(dir.path(), "two", &first).unwrap();
    let mut disks = |_: &crate::manifest::Disk, files: Vec<File>, path: &Path| {
        assert_eq!(files.len(), 2);
        disk(
            path.parent().unwrap(),
            path.file_name().unwrap().to_str().unwrap(),
        );
        Ok(DiskFormat::Raw)
    };
    let flat = flatten(&second, &dir.path().join("three"), &mut disks, go_on).unwrap();
    assert_eq!(flat.memory().unwrap().count(), 1);
    assert!(read_memory(&flat) == read_memory(&second));
    assert_eq!(flat.state().unwrap(), sections());
    assert!(
        flat.manifest()
            .disks
            .iter()
            .all(|disk| disk.layers.len() == 1)
    );
    flat.verify(go_on).unwrap();
    assert!(!flat.path().join("scratch").exists());
}

#[test]
fn a_disk_that_cannot_be_flattened_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_first(dir.path(), "one").unwrap();
    let second = write_second(dir.path(), "two", &first).unwrap();
    let before = std::fs::read_dir(dir.path()).unwrap().count();
    let mut disks = |_: &crate::manifest::Disk, _: Vec<File>, path: &Path| {
        std::fs::write(path, "half of it").unwrap();
        Err("of the weather".into())
    };
    let err = flatten(&second, &dir.path().join("three"), &mut disks, go_on).unwrap_err();
    let err = err.to_string();
    assert!(
        err.contains("data-2") && err.contains("of the weather"),
        "{err}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before);
}

#[test]
fn what_is_there_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    write_first(dir.path(), "one").unwrap();
    let err = SnapshotWriter::begin(&dir.path().join("one"))
        .err()
        .unwrap();
    assert!(matches!(err, WriteError::Exists { .. }), "{err}");
    let err = SnapshotWriter::begin(&dir.path().join("one/.."))
        .err()
        .unwrap();
    assert!(matches!(err, WriteError::Target { .. }), "{err}");
}

#[test]
fn a_target_that_appears_meanwhile_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("one");
    let mut writer = SnapshotWriter::begin(&target).unwrap();
    writer.write_state(&sections()).unwrap();
    std::fs::create_dir(&target).unwrap();
    let facts = Facts {
        kind: Kind::Disk,
        regions: Vec::new(),
        ..facts()
    };
    let err = writer.finish(facts).unwrap_err();
    assert!(matches!(err, WriteError::Exists { .. }), "{err}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn dropped_or_stopped_it_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("one");
    let mut writer = SnapshotWriter::begin(&target).unwrap();
    writer.write_state(&sections()).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let mut writer = SnapshotWriter::begin(&target).unwrap();
    writer.on_progress(|_| ControlFlow::Break(()));
    let mut layer = writer.memory_layer(SIZE).unwrap();
    let err = layer.write(0, &memory(&[1], 1)).unwrap_err();
    assert!(matches!(err, WriteError::Stopped { .. }), "{err}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn pages_come_in_order_and_within_memory() {
    let dir = tempfile::tempdir().unwrap();
    for (offset, len) in [
        (0, 2 * PAGE),
        (2 * PAGE, 1),
        (SIZE, PAGE),
        (u64::MAX - PAGE + 1, PAGE),
    ] {
        let mut writer = SnapshotWriter::begin(&dir.path().join("one")).unwrap();
        let mut layer = writer.memory_layer(SIZE).unwrap();
        layer.write(PAGE, &page(1, 1)).unwrap();
        let err = layer.write(offset, &vec![1; len as usize]).unwrap_err();
        assert!(matches!(err, WriteError::Invalid { .. }), "{err}");
    }
}
