//! Whatever is done to a file of a snapshot, reading says which file it was, and never panics.

use std::path::PathBuf;

use super::*;
use crate::ReadError;

/// Reads everything.
pub(super) fn read_all(path: &Path) -> Result<(), ReadError> {
    let snapshot = Snapshot::open(path)?;
    if snapshot.manifest().state.is_some() {
        snapshot.state()?;
    }
    if snapshot.manifest().memory.is_some() {
        snapshot.memory()?.runs()?;
    }
    snapshot.verify(go_on).map(|_| ())
}

/// Puts other bytes in a file's place.
pub(super) fn replace(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A snapshot of two layers, and the bytes of one of its files.
fn with(file: &str) -> (tempfile::TempDir, PathBuf, PathBuf, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let first = write_first(dir.path(), "one").unwrap();
    let second = write_second(dir.path(), "two", &first).unwrap();
    let path = second.path().join(file);
    let bytes = std::fs::read(&path).unwrap();
    read_all(second.path()).unwrap();
    (dir, second.path().to_owned(), path, bytes)
}

/// The error of reading, which has to name the file.
fn error(snapshot: &Path, file: &Path, what: &str) -> String {
    let err = read_all(snapshot).expect_err(what).to_string();
    assert!(err.contains(file.to_str().unwrap()), "{what}: {err}");
    err
}

#[test]
fn every_byte_flipped_is_found() {
    for name in ["manifest.json", "state", "memory-0.index", "memory-1.index"] {
        let (_dir, snapshot, path, bytes) = with(name);
        for at in 0..bytes.len() {
            for mask in [0x01, 0x20, 0xff] {
                let mut flipped = bytes.clone();
                flipped[at] ^= mask;
                replace(&path, &flipped);
                error(
                    &snapshot,
                    &path,
                    &format!("byte {at} of {name} by {mask:#x}"),
                );
            }
        }
    }
}

#[test]
fn every_truncation_is_found() {
    for name in ["manifest.json", "state", "memory-0.index", "memory-1.index"] {
        let (_dir, snapshot, path, bytes) = with(name);
        for len in 0..bytes.len() {
            replace(&path, &bytes[..len]);
            error(&snapshot, &path, &format!("{name} of {len} bytes"));
        }
        replace(&path, &[&bytes[..], b"\0"].concat());
        error(&snapshot, &path, &format!("{name} and a byte more"));
    }
}

#[test]
fn a_page_that_changed_is_found() {
    let (_dir, snapshot, path, bytes) = with("memory-0");
    // In a page that is stored, in a hole, in the page that says which layer it is.
    for at in [
        2 * PAGE + 5,
        63 * PAGE,
        10 * PAGE,
        199 * PAGE + 4095,
        SIZE + 30,
        SIZE + 4000,
    ] {
        let mut flipped = bytes.clone();
        flipped[at as usize] ^= 4;
        replace(&path, &flipped);
        error(&snapshot, &path, &format!("byte {at:#x}"));
    }
}
