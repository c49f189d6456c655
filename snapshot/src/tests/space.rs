//! A full file system: a small tmpfs, in a mount namespace of the test's own.

use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags};

use super::*;
use crate::pair::MemoryFile;

/// Where the child mounts. Without it, this is the parent.
const DIRECTORY: &str = "TINE_TEST_MOUNT";

/// Runs the body of the test `name` where 1 MiB can be written and no more: in a child, this
/// program again, that has a mount namespace of its own. Needs root.
fn in_one_mebibyte(name: &str, test: impl FnOnce(&Path)) {
    if let Some(path) = std::env::var_os(DIRECTORY) {
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).unwrap();
        let none = MountFlags::empty();
        rustix::mount::mount("tmpfs", &path, "tmpfs", none, c"size=1M").unwrap();
        test(path.as_ref());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("tests::space::{name}"), "--nocapture"])
        .env(DIRECTORY, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}

fn left(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn too_little_space_is_told_before_anything_is_written() {
    in_one_mebibyte(
        "too_little_space_is_told_before_anything_is_written",
        |dir| {
            let mut writer = SnapshotWriter::begin(&dir.join("one")).unwrap();
            writer.reserve(100 << 10).unwrap();
            let err = writer.reserve(2 << 20).unwrap_err();
            assert!(
                matches!(err, WriteError::NoSpace { needed, free, .. }
                if needed == (2 << 20) + (100 << 10) && free <= 1 << 20),
                "{err}"
            );
            assert_eq!(left(dir), 0);
        },
    );
}

#[test]
fn a_disk_that_does_not_fit_is_told_before_it_is_copied() {
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("image");
    std::fs::write(&path, vec![1; 2 << 20]).unwrap();
    in_one_mebibyte(
        "a_disk_that_does_not_fit_is_told_before_it_is_copied",
        |dir| {
            let mut writer = SnapshotWriter::begin(&dir.join("one")).unwrap();
            writer.begin_disk("root", false).unwrap();
            let layer = DiskSource {
                file: &File::open(path).unwrap(),
                format: DiskFormat::Raw,
                virtual_size: 2 << 20,
                frozen: false,
                checksum: true,
            };
            let err = writer.add_disk_layer(&layer).unwrap_err();
            assert!(
                matches!(err, WriteError::NoSpace { needed, .. } if needed == 2 << 20),
                "{err}"
            );
            assert_eq!(left(dir), 0);
        },
    );
}

#[test]
fn full_while_writing_it_says_what_it_needed_and_leaves_nothing() {
    in_one_mebibyte(
        "full_while_writing_it_says_what_it_needed_and_leaves_nothing",
        |dir| {
            let size = 600 * PAGE;
            let mut writer = SnapshotWriter::begin(&dir.join("one")).unwrap();
            writer.reserve(900 << 10).unwrap();
            // Somebody else takes the space meanwhile.
            std::fs::write(dir.join("other"), vec![1; 512 << 10]).unwrap();
            let mut layer = writer.memory_layer(size).unwrap();
            let mut result = Ok(());
            for n in 0..225 {
                result = result.and_then(|()| layer.write(n * PAGE, &page(n, 7)));
            }
            let err = result.unwrap_err();
            assert!(
                matches!(err, WriteError::NoSpace { needed, .. } if needed == 900 << 10),
                "{err}"
            );
            assert!(err.to_string().contains("removed"), "{err}");
            drop(layer);
            assert_eq!(left(dir), 1);
            // And nothing keeps the space.
            std::fs::write(dir.join("again"), vec![1; 400 << 10]).unwrap();
        },
    );
}

#[test]
fn a_pair_does_not_fit_either() {
    in_one_mebibyte("a_pair_does_not_fit_either", |dir| {
        let mut memory = MemoryFile::begin(&dir.join("memory"), 600 * PAGE).unwrap();
        let err = memory.write(0, &vec![1; 600 * PAGE as usize]).unwrap_err();
        assert!(matches!(err, WriteError::NoSpace { .. }), "{err}");
        drop(memory);
        assert_eq!(left(dir), 0);
    });
}
