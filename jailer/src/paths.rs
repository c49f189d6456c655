//! Paths that lead where they say: no component is a symbolic link, none leads up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, openat2, statat,
};
use rustix::io::Errno;

use crate::error::{JailError, failed};

/// Opens a path of the host as a place, not for reading or writing.
pub(crate) fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, JailError> {
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(refuse(
            path,
            "`..` is not allowed in it: give the plain path",
        ));
    }
    let flags = flags | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Err(Errno::LOOP) => Err(JailError::Symlink {
            path: path.into(),
            link: first_link(path),
        }),
        other => other.map_err(failed(format!("open {}", path.display()))),
    }
}

fn first_link(path: &Path) -> PathBuf {
    let is_link = |part: &&Path| part.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    let mut parts: Vec<&Path> = path.ancestors().collect();
    parts.reverse();
    parts.into_iter().find(is_link).unwrap_or(path).into()
}

/// Opens a directory of the host.
pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd, JailError> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens the program to be jailed, and checks that nobody can change it meanwhile. Only one that is
/// `linked` may have further names.
pub(crate) fn open_program(path: &Path, linked: bool) -> Result<OwnedFd, JailError> {
    let fd = open(path, OFlags::PATH)?;
    let stat = fstat(&fd).map_err(failed(format!("look at {}", path.display())))?;
    match unusable(&stat, linked) {
        None => Ok(fd),
        Some(reason) => Err(refuse(path, reason)),
    }
}

fn unusable(stat: &Stat, linked: bool) -> Option<&'static str> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        Some("no regular file")
    } else if stat.st_nlink > 1 && !linked {
        Some("has another name (a hard link), through which it could be changed: copy it")
    } else if mode.intersects(Mode::WGRP | Mode::WOTH) {
        Some("others than its owner can write to it: take that right away (chmod go-w)")
    } else if !mode.intersects(Mode::XUSR | Mode::XGRP | Mode::XOTH) {
        Some("cannot be executed: is it the right file? (chmod +x)")
    } else {
        None
    }
}

/// Checks that nobody but `owner` and root can put other things into a directory.
pub(crate) fn check_private(dir: BorrowedFd<'_>, path: &Path, owner: u32) -> Result<(), JailError> {
    let stat = fstat(dir).map_err(failed(format!("look at {}", path.display())))?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if stat.st_uid != 0 && stat.st_uid != owner {
        return Err(refuse(
            path,
            "belongs to another user: choose a directory of your own",
        ));
    }
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        let reason = "others than its owner can write to it: take that right away (chmod go-w)";
        return Err(refuse(path, reason));
    }
    Ok(())
}

/// The directory `name` in `dir`, made if it is not there. Says whether it was made.
pub(crate) fn subdir(
    dir: BorrowedFd<'_>,
    name: &str,
    mode: Mode,
) -> Result<(OwnedFd, bool), JailError> {
    let made = match mkdirat(dir, name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(err) => return Err(failed(format!("make the directory {name}"))(err)),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty());
    Ok((
        fd.map_err(failed(format!("open the directory {name}")))?,
        made,
    ))
}

/// Whether `fd` still is what `name` in `dir` leads to.
pub(crate) fn is_still(dir: BorrowedFd<'_>, name: &str, fd: BorrowedFd<'_>) -> bool {
    let same = |a: Stat, b: Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
    match (statat(dir, name, AtFlags::SYMLINK_NOFOLLOW), fstat(fd)) {
        (Ok(there), Ok(here)) => same(there, here),
        _ => false,
    }
}

/// Makes `path`, a relative one below `root`, a directory or an empty file to mount over. Links in
/// it are not followed. Returns what is there, and what was made, the topmost first.
pub(crate) fn mount_point(
    root: BorrowedFd<'_>,
    path: &Path,
    directory: bool,
) -> Result<(OwnedFd, Vec<PathBuf>), JailError> {
    let mut made = Vec::new();
    let mut at = PathBuf::new();
    let mut dir = root
        .as_fd()
        .try_clone_to_owned()
        .map_err(failed("keep a directory"))?;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let name = part.as_os_str().to_str().unwrap_or_default();
        at.push(name);
        if parts.peek().is_none() && !directory {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            match rustix::fs::openat(&dir, name, flags, Mode::RUSR) {
                Ok(_) => made.push(at.clone()),
                Err(Errno::EXIST) => {}
                Err(err) => return Err(failed(format!("make {}", at.display()))(err)),
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = rustix::fs::openat(&dir, name, flags, Mode::empty())
                .map_err(failed(format!("open {}", at.display())))?;
        } else {
            let (next, new) = subdir(dir.as_fd(), name, Mode::from_raw_mode(0o755))?;
            if new {
                made.push(at.clone());
            }
            dir = next;
        }
    }
    Ok((dir, made))
}

pub(crate) fn refuse(path: &Path, reason: impl Into<String>) -> JailError {
    JailError::Path {
        path: path.into(),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn program(dir: &Path) -> PathBuf {
        let path = dir.join("program");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn links_and_ways_up_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = program(dir.path());
        open_program(&path, false).unwrap();
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        let text = open_program(&link.join("program"), false)
            .unwrap_err()
            .to_string();
        assert!(text.contains("link is a symbolic link"), "{text}");
        let up = dir.path().join("x/../program");
        fs::create_dir(dir.path().join("x")).unwrap();
        assert!(
            open_program(&up, false)
                .unwrap_err()
                .to_string()
                .contains("..")
        );
    }

    #[test]
    fn a_program_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = program(dir.path());
        let reason = |path: &Path| open_program(path, false).unwrap_err().to_string();
        for mode in [0o775, 0o757] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(reason(&path).contains("go-w"));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(reason(&path).contains("executed"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::hard_link(&path, dir.path().join("other")).unwrap();
        assert!(reason(&path).contains("hard link"));
        open_program(&path, true).unwrap();
        assert!(reason(dir.path()).contains("no regular file"));
        assert!(reason(&dir.path().join("none")).contains("none"));
    }

    #[test]
    fn mount_points_do_not_follow_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = open_dir(dir.path()).unwrap();
        let (_, made) = mount_point(root.as_fd(), Path::new("a/b/file"), false).unwrap();
        assert_eq!(made.last().unwrap(), Path::new("a/b/file"));
        assert!(dir.path().join("a/b/file").is_file());
        let (_, made) = mount_point(root.as_fd(), Path::new("a/b/file"), false).unwrap();
        assert!(made.is_empty());
        symlink("/", dir.path().join("up")).unwrap();
        assert!(mount_point(root.as_fd(), Path::new("up/tmp"), true).is_err());
    }
}
