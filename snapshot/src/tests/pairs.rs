//! The known API's two files.

use std::os::unix::fs::FileExt;

use super::*;
use crate::ReadError;
use crate::pair::{MemoryFile, read_state, write_state};

/// A pair of files in a directory.
fn write(dir: &Path, salt: u8) {
    let mut file = MemoryFile::begin(&dir.join("mem"), SIZE).unwrap();
    file.write(0, &memory(&[0, 5, 100, 199], salt)).unwrap();
    let file = file.finish().unwrap();
    write_state(&dir.join("vm"), facts(), &sections(), file).unwrap();
}

fn read(dir: &Path) -> Result<Vec<u8>, ReadError> {
    let state = read_state(&dir.join("vm"))?;
    assert_eq!(state.sections, sections());
    assert_eq!(state.manifest.machine, facts().machine);
    let layers = state.memory(&dir.join("mem"))?;
    let mut memory = vec![0; SIZE as usize];
    layers.file(0).read_exact_at(&mut memory, 0).unwrap();
    Ok(memory)
}

#[test]
fn a_pair_is_read_back_and_may_be_written_over() {
    let dir = tempfile::tempdir().unwrap();
    for salt in [1, 2] {
        write(dir.path(), salt);
        assert!(read(dir.path()).unwrap() == memory(&[0, 5, 100, 199], salt));
        assert_eq!(
            std::fs::metadata(dir.path().join("mem")).unwrap().len(),
            SIZE
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}

#[test]
fn every_byte_of_the_state_counts() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1);
    let path = dir.path().join("vm");
    let bytes = std::fs::read(&path).unwrap();
    let check = |bytes: &[u8], what: String| {
        std::fs::write(&path, bytes).unwrap();
        let err = read(dir.path()).expect_err(&what).to_string();
        assert!(err.contains(path.to_str().unwrap()), "{what}: {err}");
    };
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        check(&flipped, format!("byte {at}"));
        check(&bytes[..at], format!("{at} bytes"));
    }
}

#[test]
fn another_memory_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(dir.path(), 1);
    write(other.path(), 2);
    let path = dir.path().join("mem");
    let ours = std::fs::read(&path).unwrap();
    std::fs::copy(other.path().join("mem"), &path).unwrap();
    let err = read(dir.path()).unwrap_err();
    assert!(matches!(err, ReadError::Damaged { .. }), "{err}");
    for len in [0, ours.len() - 1, ours.len() + 1] {
        std::fs::write(&path, &ours).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(len as u64)
            .unwrap();
        let err = read(dir.path()).unwrap_err();
        assert!(matches!(err, ReadError::Length { .. }), "{err}");
    }
    std::fs::remove_file(&path).unwrap();
    let err = read(dir.path()).unwrap_err();
    assert!(matches!(err, ReadError::Open { .. }), "{err}");
    std::fs::create_dir(&path).unwrap();
    let err = read(dir.path()).unwrap_err();
    assert!(matches!(err, ReadError::NotAFile { .. }), "{err}");
}

#[test]
fn files_of_other_kinds_are_not_state() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_first(dir.path(), "one").unwrap();
    // The state of a directory lacks what a pair's has.
    let err = read_state(&first.path().join("state"))
        .unwrap_err()
        .to_string();
    assert!(err.contains("tine/manifest"), "{err}");
    let err = read_state(Path::new("/dev/zero")).unwrap_err();
    assert!(matches!(err, ReadError::NotAFile { .. }), "{err}");
}
