//! `tine cp`, both ways. The "machine" is the agent on this host, so both sides can be looked at.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tine_tests::cli::Place;
use tine_tests::text;

/// A tree with everything that a copy keeps. Times are whole seconds, as archives have them.
fn make_tree(at: &Path) {
    let name = OsStr::from_bytes(b"not \xff utf-8");
    fs::create_dir_all(at.join("sub/empty")).unwrap();
    fs::write(at.join("file"), "content\n").unwrap();
    fs::write(at.join("sub").join(name), [0, 255, 10]).unwrap();
    fs::write(at.join("n".repeat(255)), "long").unwrap();
    let deep: PathBuf = (0..30).map(|_| "deeper-and-deeper").collect();
    fs::create_dir_all(at.join(&deep)).unwrap();
    fs::write(at.join(deep).join("bottom"), "deep").unwrap();
    symlink("file", at.join("link")).unwrap();
    symlink("/nowhere/at/all", at.join("dangling")).unwrap();
    fs::set_permissions(at.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(at.join("sub"), fs::Permissions::from_mode(0o750)).unwrap();
    set_time(&at.join("file"), 1_000_000_000);
    // From the inside out, as making something in a directory changes it.
    for (seconds, dir) in (2_000_000u64..).zip(["sub/empty", "sub", "."]) {
        set_time(&at.join(dir), seconds);
    }
}

fn set_time(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Every name below, with kind, mode, content or target, and time, which links have none of.
fn listing(at: &Path) -> Vec<(PathBuf, u32, Vec<u8>, i64)> {
    let mut all = Vec::new();
    let mut left = vec![at.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let (content, time) = match meta.file_type() {
                kind if kind.is_dir() => {
                    left.push(path.clone());
                    (Vec::new(), meta.mtime())
                }
                kind if kind.is_symlink() => {
                    let target = fs::read_link(&path).unwrap();
                    (target.as_os_str().as_bytes().to_vec(), 0)
                }
                _ => (fs::read(&path).unwrap(), meta.mtime()),
            };
            let name = path.strip_prefix(at).unwrap().to_owned();
            all.push((name, meta.mode(), content, time));
        }
    }
    all.sort();
    all
}

fn guest(path: &Path) -> String {
    format!("m:{}", path.display())
}

#[test]
fn a_directory_goes_there_and_comes_back_unchanged() {
    let place = Place::new();
    let _agent = place.agent("m");
    let (source, there, back) = (
        place.path("source"),
        place.path("there"),
        place.path("back"),
    );
    make_tree(&source);
    let (source_text, back_text) = (source.to_str().unwrap(), back.to_str().unwrap());
    place.ok(["cp", source_text, &guest(&there)]);
    assert_eq!(listing(&there), listing(&source));
    assert_eq!(fs::metadata(&there).unwrap().mtime(), 2_000_002);
    place.ok(["cp", &guest(&there), back_text]);
    assert_eq!(listing(&back), listing(&source));
    // Into a directory that exists, under its own name; and its content alone.
    place.ok(["cp", source_text, &guest(&there)]);
    assert_eq!(listing(&there.join("source")), listing(&source));
    fs::create_dir(place.path("content")).unwrap();
    place.ok(["cp", &format!("{}/.", guest(&source)), "content"]);
    assert_eq!(listing(&place.path("content")), listing(&source));
    place.ok(["cp", "source/.", &guest(&place.path("content"))]);
}

#[test]
fn one_file_gets_the_destinations_name_or_goes_into_a_directory() {
    let place = Place::new();
    let _agent = place.agent("m");
    fs::write(place.path("a"), "one").unwrap();
    fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o751)).unwrap();
    set_time(&place.path("a"), 1_234_567_890);
    fs::create_dir(place.path("dir")).unwrap();
    for (from, to, made) in [
        ("a".to_owned(), guest(&place.path("b")), "b"),
        ("a".to_owned(), guest(&place.path("dir")), "dir/a"),
        (guest(&place.path("a")), "c".to_owned(), "c"),
        (guest(&place.path("a")), "./d:e".to_owned(), "d:e"),
        (guest(&place.path("b")), "dir/".to_owned(), "dir/b"),
        (guest(&place.path("b")), ".".to_owned(), "b"),
    ] {
        place.ok(["cp", &from, &to]);
        let meta = fs::metadata(place.path(made)).unwrap();
        assert_eq!(fs::read(place.path(made)).unwrap(), b"one", "{made}");
        assert_eq!(
            (meta.mode() & 0o7777, meta.mtime()),
            (0o751, 1_234_567_890),
            "{made}"
        );
    }
    // What is there is replaced; a source that is a link is followed.
    fs::write(place.path("a"), "two").unwrap();
    symlink("a", place.path("link")).unwrap();
    place.ok(["cp", &guest(&place.path("link")), "c"]);
    assert_eq!(fs::read(place.path("c")).unwrap(), b"two");
    assert!(fs::symlink_metadata(place.path("c")).unwrap().is_file());
    place.ok(["cp", "link", &guest(&place.path("b"))]);
    assert_eq!(fs::read(place.path("b")).unwrap(), b"two");
}

#[test]
fn a_name_that_is_not_utf_8_can_be_given() {
    let place = Place::new();
    let _agent = place.agent("m");
    let name = OsStr::from_bytes(b"n\xffme");
    fs::write(place.path(name), "x").unwrap();
    let mut guest = OsStr::new("m:").to_owned();
    guest.push(place.path("there\u{e9}"));
    place.ok([OsStr::new("cp"), name, &guest]);
    place.ok([OsStr::new("cp"), &guest, OsStr::from_bytes(b"b\xffck")]);
    assert_eq!(
        fs::read(place.path(OsStr::from_bytes(b"b\xffck"))).unwrap(),
        b"x"
    );
}

#[test]
fn a_large_sparse_file_takes_no_room_here() {
    let place = Place::new();
    let _agent = place.agent("m");
    let size = 300 << 20;
    let file = fs::File::create(place.path("sparse")).unwrap();
    file.set_len(size).unwrap();
    (&file).write_all(b"start").unwrap();
    place.ok(["cp", &guest(&place.path("sparse")), "copy"]);
    let meta = fs::metadata(place.path("copy")).unwrap();
    assert_eq!(meta.len(), size);
    assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
    assert!(
        fs::read(place.path("copy"))
            .unwrap()
            .starts_with(b"start\0")
    );
    place.ok(["cp", "copy", &guest(&place.path("there"))]);
    assert_eq!(fs::metadata(place.path("there")).unwrap().len(), size);
}

#[test]
fn archives_pass_through_standard_streams() {
    let place = Place::new();
    let _agent = place.agent("m");
    make_tree(&place.path("source"));
    let down = place.output(["cp", &guest(&place.path("source")), "-"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    fs::create_dir(place.path("by-tar")).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("x").current_dir(place.path("by-tar"));
    let mut tar = tar.stdin(Stdio::piped()).spawn().unwrap();
    tar.stdin.take().unwrap().write_all(&down.stdout).unwrap();
    assert!(tar.wait().unwrap().success());
    assert_eq!(
        listing(&place.path("by-tar")),
        listing(&place.path("source"))
    );
    let packed = Command::new("tar")
        .args(["c", "."])
        .current_dir(place.path("source"))
        .output()
        .unwrap();
    let mut up = place.tine(["cp", "-", &guest(&place.path("new/there"))]);
    let mut up = up.stdin(Stdio::piped()).spawn().unwrap();
    up.stdin.take().unwrap().write_all(&packed.stdout).unwrap();
    let up = up.wait_with_output().unwrap();
    assert!(up.status.success(), "{}", text(&up.stderr));
    assert_eq!(
        listing(&place.path("new/there")),
        listing(&place.path("source"))
    );
}

#[test]
fn what_cannot_be_copied_is_named_and_leaves_nothing() {
    let place = Place::new();
    let _agent = place.agent("m");
    fs::create_dir(place.path("dir")).unwrap();
    fs::write(place.path("file"), "old").unwrap();
    for (from, to, word) in [
        ("missing".to_owned(), guest(&place.path("x")), "missing"),
        (guest(&place.path("missing")), "x".to_owned(), "ENOENT"),
        (
            "file".to_owned(),
            guest(Path::new("/no/such/dir/x")),
            "/no/such/dir",
        ),
        (
            "file".to_owned(),
            format!("{}/", guest(&place.path("no"))),
            "no such directory",
        ),
        (
            guest(&place.path("file")),
            "no/".to_owned(),
            "no such directory",
        ),
        (
            guest(&place.path("file")),
            "no/x".to_owned(),
            "No such file",
        ),
        (
            "dir".to_owned(),
            guest(&place.path("file")),
            "that is a file",
        ),
        (guest(&place.path("dir")), "file".to_owned(), "no directory"),
        (guest(Path::new("/dev/null")), "x".to_owned(), "neither"),
        ("/dev/null".to_owned(), guest(&place.path("x")), "neither"),
    ] {
        let error = place.fails(1, ["cp", &from, &to]);
        assert!(error.contains(word), "{from} {to}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    for sides in [["file", "x"], ["m:/a", "m:/b"], ["-", "x"]] {
        place.fails(2, ["cp", sides[0], sides[1]]);
    }
    assert!(!place.path("x").exists());
    assert_eq!(fs::read(place.path("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(place.path("dir")).unwrap().count(), 0);
}

#[test]
fn a_copy_that_breaks_off_is_an_error_and_leaves_what_was_there() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    fs::write(place.path("big"), vec![7; 4 << 20]).unwrap();
    fs::write(place.path("copy"), "old").unwrap();
    cutter.cut_down_after(1 << 20);
    let error = place.fails(1, ["cp", &guest(&place.path("big")), "copy"]);
    assert!(error.contains("broke"), "{error}");
    assert_eq!(fs::read(place.path("copy")).unwrap(), b"old");
    cutter.cut_down_after(usize::MAX);
    cutter.cut_up_after(1 << 20);
    let error = place.fails(1, ["cp", "big", &guest(&place.path("there"))]);
    assert!(error.contains("broke"), "{error}");
    let names: Vec<_> = fs::read_dir(place.path("")).unwrap().flatten().collect();
    assert!(
        !names
            .iter()
            .any(|name| text(name.file_name().as_bytes()).starts_with(".tine"))
    );
}
