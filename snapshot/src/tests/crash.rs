//! Writers that are killed: after every single step of theirs there is a whole snapshot or none,
//! and the next writer finds a clean place. A child process, this test's own program, writes and
//! kills itself at the step that it is told.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;
use crate::pair::{MemoryFile, read_state, write_state};
use crate::steps::counted::VARIABLE;

/// Where the child writes. Without it, this is the parent.
const DIRECTORY: &str = "TINE_TEST_DIRECTORY";

/// Runs one test of this program as a child that dies at `step`. True if it lived.
fn child(test: &str, dir: &Path, step: u64) -> bool {
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program)
        .args(["--exact", test, "--test-threads=1"])
        .env(DIRECTORY, dir)
        .env(VARIABLE, step.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    if status.success() {
        return true;
    }
    assert_eq!(status.signal(), Some(9), "{status} at step {step}");
    false
}

fn directory() -> Option<std::path::PathBuf> {
    std::env::var_os(DIRECTORY).map(Into::into)
}

/// What is in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> = entries.map(|e| name(e).into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn killed_at_any_step_it_leaves_a_whole_snapshot_or_none() {
    if let Some(dir) = directory() {
        let first = Snapshot::open(&dir.join("one")).unwrap();
        write_second(&dir, "two", &first).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    write_first(dir.path(), "one").unwrap();
    let test = "tests::crash::killed_at_any_step_it_leaves_a_whole_snapshot_or_none";
    let (mut step, mut whole) = (0, 0);
    loop {
        step += 1;
        let lived = child(test, dir.path(), step);
        // The one before is as it was.
        let first = Snapshot::open(&dir.path().join("one")).unwrap();
        first.verify(go_on).unwrap();
        let left = names(dir.path());
        let hidden = left
            .iter()
            .filter(|name| name.starts_with(".two.partial-"))
            .count();
        if left.iter().any(|name| name == "two") {
            Snapshot::open(&dir.path().join("two"))
                .unwrap()
                .verify(go_on)
                .unwrap();
            assert_eq!(hidden, 0, "{left:?}");
            std::fs::remove_dir_all(dir.path().join("two")).unwrap();
            whole += 1;
        } else {
            assert!(!lived, "it lived, and there is nothing");
            assert!(
                hidden <= 1,
                "{left:?}: the one of the step before was not removed"
            );
        }
        let _ = std::fs::remove_file(dir.path().join("two.image"));
        if lived {
            assert_eq!(hidden, 0, "{left:?}");
            break;
        }
    }
    // At least: make, lock, 6 files of its own, 9 of the other, their syncs, publish.
    assert!(step > 25, "only {step} steps");
    // The last, and those in which it was killed behind the renaming.
    assert!(whole >= 2, "{whole} whole ones");
}

#[test]
fn killed_at_any_moment_it_leaves_a_whole_snapshot_or_none() {
    if let Some(dir) = directory() {
        for n in 0.. {
            write_first(&dir, &format!("snapshot{n}")).unwrap();
        }
    }
    let test = "tests::crash::killed_at_any_moment_it_leaves_a_whole_snapshot_or_none";
    let dir = tempfile::tempdir().unwrap();
    let mut whole = 0;
    for round in 0..30_u64 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--test-threads=1"])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let first = dir.path().join("snapshot0.image");
        while !first.exists() {
            std::thread::yield_now();
        }
        // No event to wait for: the moment is to be any.
        std::thread::sleep(std::time::Duration::from_micros(round * 7919 % 40_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let left = names(dir.path());
        for name in left.iter().filter(|name| name.starts_with("snapshot")) {
            if let Some(name) = name.strip_suffix(".image") {
                // What it was killed at is made again.
                let there = left.iter().any(|other| other == name);
                std::fs::remove_file(dir.path().join(format!("{name}.image"))).unwrap();
                let path = dir.path().join(name);
                if !there {
                    write_first(dir.path(), name).unwrap();
                    std::fs::remove_file(dir.path().join(format!("{name}.image"))).unwrap();
                }
                Snapshot::open(&path).unwrap().verify(go_on).unwrap();
                std::fs::remove_dir_all(path).unwrap();
                whole += u32::from(there);
            }
        }
        assert_eq!(names(dir.path()).len(), 0);
    }
    assert!(whole > 0, "it was always killed before there was one");
}

fn write_pair(dir: &Path) {
    let mut memory = MemoryFile::begin(&dir.join("memory"), SIZE).unwrap();
    let salt = std::fs::read(dir.join("salt")).unwrap()[0];
    memory.write(0, &super::memory(&[0, 5, 100], salt)).unwrap();
    let memory = memory.finish().unwrap();
    write_state(&dir.join("state"), facts(), &sections(), memory).unwrap();
}

#[test]
fn a_pair_is_the_old_one_or_the_new_one_or_known_not_to_fit() {
    if let Some(dir) = directory() {
        return write_pair(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    let test = "tests::crash::a_pair_is_the_old_one_or_the_new_one_or_known_not_to_fit";
    let write = |salt: u8, step: u64| {
        std::fs::write(dir.path().join("salt"), [salt]).unwrap();
        child(test, dir.path(), step)
    };
    let read = || -> Result<u8, crate::ReadError> {
        use std::os::unix::fs::FileExt;
        let memory = read_state(&dir.path().join("state"))?.memory(&dir.path().join("memory"))?;
        let mut last = [0];
        memory
            .file(0)
            .read_exact_at(&mut last, 6 * PAGE - 1)
            .unwrap();
        Ok(last[0])
    };
    assert!(write(1, 0));
    assert_eq!(read().unwrap(), 1);
    let mut between = 0;
    for step in 1.. {
        assert!(write(1, 0));
        let lived = write(2, step);
        match read() {
            Ok(1) => assert!(!lived),
            Ok(salt) => assert_eq!(salt, 2),
            // Between the two renames.
            Err(_) => between += 1,
        }
        if lived {
            break;
        }
    }
    assert_eq!(between, 1);
    assert_eq!(names(dir.path()), ["memory", "salt", "state"]);
}

#[test]
fn a_living_writer_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("one");
    let mut first = SnapshotWriter::begin(&target).unwrap();
    first.write_state(&sections()).unwrap();
    let second = SnapshotWriter::begin(&target).unwrap();
    assert_eq!(names(dir.path()).len(), 2);
    drop(second);
    let mut layer = first.memory_layer(SIZE).unwrap();
    layer.write(0, &memory(&[3], 1)).unwrap();
    layer.finish().unwrap();
    first.finish(facts()).unwrap().verify(go_on).unwrap();
    assert_eq!(names(dir.path()), ["one"]);
}

#[test]
fn what_only_looks_like_a_leftover_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let id = "0123456789abcdef0123456789abcdef";
    let others = [
        ".one.partial-".to_owned(),
        format!(".one.partial-{id}x"),
        format!(".two.partial-{id}"),
        format!("one.partial-{id}"),
    ];
    for name in &others {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink(&others[2], dir.path().join(format!(".one.partial-{id}"))).unwrap();
    write_first(dir.path(), "one").unwrap();
    assert_eq!(names(dir.path()).len(), others.len() + 3);
}
