//! Archives of guests that mean no good, and what is kept of those that do.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tar::{Builder, Header};

use super::*;

/// Kind, path as it stands, link, content.
type Made<'a> = (EntryType, &'a [u8], &'a [u8], &'a [u8]);

fn archive(entries: &[Made]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, link, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o6755);
        header.set_mtime(1_000_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..path.len()].copy_from_slice(path);
        gnu.linkname[..link.len()].copy_from_slice(link);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn unpack(into: Into, archive: &[u8]) -> Result<u64, UnpackError> {
    Unpack::new(into, false).unwrap().run(archive)
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
const DIR: EntryType = EntryType::Directory;

#[test]
fn modes_and_times_are_kept_and_set_id_bits_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("new");
    let bytes = archive(&[
        (DIR, b"./", b"", b""),
        (DIR, b"d/", b"", b""),
        (FILE, b"d/\xff", b"", b"hi"),
        (LINK, b"d/l", b"/nowhere", b""),
    ]);
    assert_eq!(unpack(Into::Directory(place.clone()), &bytes).unwrap(), 0);
    let name = OsStr::from_bytes(b"d/\xff");
    let meta = std::fs::metadata(place.join(name)).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o755);
    assert_eq!(meta.mtime(), 1_000_000_000);
    assert_eq!(
        std::fs::metadata(place.join("d")).unwrap().mtime(),
        1_000_000_000
    );
    assert_eq!(std::fs::metadata(&place).unwrap().mtime(), 1_000_000_000);
    let target = std::fs::read_link(place.join("d/l")).unwrap();
    assert_eq!(target, Path::new("/nowhere"));
}

#[test]
fn nothing_is_made_outside() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().as_os_str().as_bytes();
    let escapes = [
        archive(&[(FILE, b"../x", b"", b"")]),
        archive(&[(FILE, b"a/../../x", b"", b"")]),
        archive(&[(FILE, &[victim, b"/x"].concat(), b"", b"")]),
        archive(&[(LINK, b"l", victim, b""), (FILE, b"l/x", b"", b"")]),
        archive(&[(LINK, b"l", victim, b""), (DIR, b"l", b"", b"")]),
        archive(&[(LINK, b"l", victim, b""), (DIR, b"l/d", b"", b"")]),
        archive(&[(EntryType::Link, b"h", b"/etc/passwd", b"")]),
        archive(&[(FILE, b"", b"", b"")]),
    ];
    for bytes in escapes {
        let dir = tempfile::tempdir().unwrap();
        let before = std::fs::metadata(outside.path()).unwrap();
        let result = unpack(Into::Directory(dir.path().join("p")), &bytes);
        assert!(result.is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        let after = std::fs::metadata(outside.path()).unwrap();
        assert_eq!(
            (before.mode(), before.mtime()),
            (after.mode(), after.mtime())
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_link_is_replaced_by_a_file_and_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::write(&outside, "mine").unwrap();
    let target = outside.as_os_str().as_bytes();
    let bytes = archive(&[(LINK, b"l", target, b""), (FILE, b"l", b"", b"theirs")]);
    let place = dir.path().join("p");
    unpack(Into::Directory(place.clone()), &bytes).unwrap();
    assert_eq!(std::fs::read(&outside).unwrap(), b"mine");
    assert_eq!(std::fs::read(place.join("l")).unwrap(), b"theirs");
}

#[test]
fn a_copy_that_breaks_off_leaves_no_half_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "old").unwrap();
    let bytes = archive(&[(FILE, b"x", b"", &[7; 3000])]);
    for cut in [0, 512, 1000, 3000] {
        let result = unpack(Into::File(path.clone()), &bytes[..cut]);
        assert!(result.is_err(), "{cut}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    unpack(Into::File(path.clone()), &bytes).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), [7; 3000]);
}

#[test]
fn devices_are_left_out_and_long_descriptions_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = || Into::Directory(dir.path().join("p"));
    let device = archive(&[(EntryType::Block, b"sda", b"", b""), (FILE, b"f", b"", b"")]);
    assert_eq!(unpack(place(), &device).unwrap(), 1);
    assert!(!dir.path().join("p/sda").exists());
    let flood = vec![b'x'; 2 << 20];
    for kind in [EntryType::GNULongName, EntryType::XHeader] {
        let bytes = archive(&[(kind, b"x", b"", &flood)]);
        let err = unpack(place(), &bytes).unwrap_err().to_string();
        assert!(err.contains("too long"), "{err}");
    }
}

#[test]
fn zeros_take_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut content = vec![0; 8 << 20];
    content[5 << 20] = 1;
    let bytes = archive(&[(FILE, b"f", b"", &content)]);
    let path = dir.path().join("f");
    unpack(Into::File(path.clone()), &bytes).unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert!(meta.blocks() * 512 < 1 << 20, "{}", meta.blocks());
    assert_eq!(std::fs::read(&path).unwrap(), content);
}
