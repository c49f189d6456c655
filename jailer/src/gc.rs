//! Removing what machines left that did not end in good order: groups, sockets, nodes, notes.
//!
//! Mounts and namespaces end with their process. What the launcher put into a root stays: it is
//! not known whether it is wanted.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, flock, openat2, statat,
    unlinkat,
};
use rustix::io::Errno;

use crate::error::{JailError, failed};
use crate::proc_fs::{Identity, Proc};
use crate::state::{Claim, FILE, ROOT, Taken, file_of};
use crate::{cgroup, kept, paths};

/// How deep a root is searched. What lies deeper was made by somebody who wanted it to.
const DEPTH: usize = 8;
/// How deep a file of the host can lie that is shown where it lies.
const DEEPEST: usize = 64;
/// How many files of a root are looked at.
const FILES: usize = 10_000;

/// What came of a clean-up.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Collected {
    /// Jails whose machine was dead, now gone but for what their launcher put there.
    pub removed: Vec<PathBuf>,
    /// Jails whose machine lives, or is just being started.
    pub living: Vec<PathBuf>,
    /// Jails that could not be removed, and why.
    pub left: Vec<(PathBuf, String)>,
}

/// Cleans up after all dead machines whose jails are below `base`. With no living one left, what
/// all jails share goes too. With `dry_run` it is only told what would be removed.
pub fn collect(base: &Path, dry_run: bool) -> Result<Collected, JailError> {
    let mut all = Collected::default();
    let proc = Proc::open()?;
    let base_dir = match paths::open_dir(base) {
        Err(JailError::Os { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            forget_shared(dry_run);
            return Ok(all);
        }
        other => other?,
    };
    // What is written down there names what is removed.
    let own = rustix::process::geteuid().as_raw();
    paths::check_private(base_dir.as_fd(), base, own)?;
    for program in names(base_dir.as_fd()) {
        let above_path = base.join(&program);
        let Ok(above) = paths::open_dir(&above_path) else {
            continue;
        };
        if paths::check_private(above.as_fd(), &above_path, own).is_err() {
            continue;
        }
        for id in names(above.as_fd()) {
            // One that cannot be told of is in no other's way.
            if let Err(err) = collect_one(&proc, &above_path, &id, own, dry_run, &mut all) {
                all.left.push((above_path.join(&id), err.to_string()));
            }
        }
        if !dry_run {
            // Goes when it is empty.
            let _ = fs::remove_dir(&above_path);
        }
    }
    if all.living.is_empty() {
        forget_shared(dry_run);
    }
    Ok(all)
}

/// Removes what jails share, which is root's.
fn forget_shared(dry_run: bool) {
    if !dry_run && rustix::process::geteuid().is_root() {
        kept::forget();
    }
}

/// Ends the process of the machine `id` of `program` in its jail below `base`, if there is one: by what
/// was noted when the jail was made, and not by anything that the process says of itself.
///
/// # Errors
///
/// When it cannot be told whether there is one, or it cannot be ended.
pub fn kill(base: &Path, program: &str, id: &str) -> Result<(), JailError> {
    let proc = Proc::open()?;
    match living(&proc, base, program, id)? {
        Some(process) => proc
            .kill(&process)
            .map_err(failed(format!("end the process of {id}"))),
        None => Ok(()),
    }
}

/// The process in a machine's jail, while it lives.
fn living(
    proc: &Proc,
    base: &Path,
    program: &str,
    id: &str,
) -> Result<Option<Identity>, JailError> {
    let base_dir = paths::open_dir(base)?;
    let own = rustix::process::geteuid().as_raw();
    paths::check_private(base_dir.as_fd(), base, own)?;
    let above = base.join(program);
    let (Ok(dir), Ok(above)) = (paths::open_dir(&above.join(id)), paths::open_dir(&above)) else {
        return Ok(None);
    };
    Ok(match Claim::take(proc, above, id, dir, false)? {
        Taken::Living(process) => Some(process),
        _ => None,
    })
}

/// Cleans up after the machine `id` of `program`, whose jail is below `base`, if there was one. Its
/// process is dead, or about to be, which is waited for.
pub fn discard(base: &Path, program: &str, id: &str) -> Result<Collected, JailError> {
    let mut one = Collected::default();
    let proc = Proc::open()?;
    if let Some(process) = living(&proc, base, program, id)? {
        proc.wait_for_end(&process);
    }
    let own = rustix::process::geteuid().as_raw();
    let above = base.join(program);
    collect_one(&proc, &above, id, own, false, &mut one)?;
    remove_skeleton(&above, id);
    // Goes when it is empty. A start that meets this makes it again.
    let _ = fs::remove_dir(&above);
    Ok(one)
}

/// Removes the directories of a jail that was given up while it was made, and so has no notes any more.
/// One with anything in it stays, and so does that of a start that is going on.
fn remove_skeleton(above: &Path, id: &str) {
    let (Ok(dir), Ok(parent)) = (paths::open_dir(&above.join(id)), paths::open_dir(above)) else {
        return;
    };
    if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err()
        || statat(&dir, FILE, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    {
        return;
    }
    let mut budget = FILES;
    remove_empty(dir.as_fd(), DEEPEST, &mut budget);
    let _ = unlinkat(&parent, id, AtFlags::REMOVEDIR);
}

/// Removes what is below a directory and has nothing in it: empty files and directories, made to mount
/// over.
fn remove_empty(dir: BorrowedFd<'_>, depth: usize, budget: &mut usize) {
    for name in names(dir) {
        if *budget == 0 {
            return;
        }
        *budget -= 1;
        if let Some(below) = open_below(dir, &name).filter(|_| depth > 0) {
            remove_empty(below.as_fd(), depth - 1, budget);
        }
        remove_placeholder(dir, Path::new(&name));
    }
}

/// Cleans up after the machine `id`, whose jail is in `above`.
fn collect_one(
    proc: &Proc,
    above: &Path,
    id: &str,
    own: u32,
    dry_run: bool,
    all: &mut Collected,
) -> Result<(), JailError> {
    let path = above.join(id);
    let (Ok(dir), Ok(parent)) = (paths::open_dir(&path), paths::open_dir(above)) else {
        return Ok(());
    };
    if paths::check_private(dir.as_fd(), &path, own).is_err() {
        return Ok(());
    }
    match Claim::take(proc, parent, id, dir, false)? {
        Taken::Ours(_) if dry_run => all.removed.push(path),
        Taken::Ours(claim) => match remove(&claim) {
            None => all.removed.push(path),
            Some(group) => {
                let reason = format!("the cgroup {} is in use", group.display());
                all.left.push((path, reason));
            }
        },
        Taken::Living(_) | Taken::Locked => all.living.push(path),
        Taken::Unknown => {
            let reason = JailError::Foreign(file_of(&path)).to_string();
            all.left.push((path, reason));
        }
        Taken::Gone => {}
    }
    Ok(())
}

fn names(dir: BorrowedFd<'_>) -> Vec<String> {
    let Ok(entries) = Dir::read_from(dir) else {
        return Vec::new();
    };
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_str().ok()?.to_owned();
        (name != "." && name != "..").then_some(name)
    });
    names.collect()
}

/// Removes what was made for the dead machine that had the directory before, but for directories.
/// Returns a group that is still in use.
pub(crate) fn clean(claim: &Claim) -> Option<PathBuf> {
    let mut in_use = None;
    for (dir, above) in &claim.record.groups {
        if !cgroup::remove(dir, *above) {
            in_use = Some(dir.clone());
        }
    }
    let Some(root) = open_below(claim.dir.as_fd(), ROOT) else {
        return in_use;
    };
    if let Some(name) = &claim.record.pid_file {
        let _ = unlinkat(&root, name.as_str(), AtFlags::empty());
    }
    let mut budget = FILES;
    // A root that was never used by one of ours is its launcher's, sockets and all.
    if claim.record != Default::default() {
        remove_dead_ends(root.as_fd(), DEPTH, &mut budget);
    }
    for path in claim.record.made.iter().rev() {
        remove_placeholder(root.as_fd(), path);
    }
    in_use
}

/// Opens a directory of a root without following links or crossing mounts: what is in a root is
/// the machine's, and so may be anything.
fn open_below(dir: BorrowedFd<'_>, name: &str) -> Option<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(dir, name, flags, Mode::empty(), resolve).ok()
}

/// Removes sockets and device nodes: nothing is behind a dead machine's any more.
fn remove_dead_ends(dir: BorrowedFd<'_>, depth: usize, budget: &mut usize) {
    for name in names(dir) {
        if *budget == 0 {
            return;
        }
        *budget -= 1;
        let Ok(stat) = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => {
                let _ = unlinkat(dir, &name, AtFlags::empty());
            }
            FileType::Directory if depth > 0 => {
                if let Some(below) = open_below(dir, &name) {
                    remove_dead_ends(below.as_fd(), depth - 1, budget);
                }
            }
            _ => {}
        }
    }
}

/// Removes an empty file or directory that was made to mount over. One with something in it stays.
fn remove_placeholder(root: BorrowedFd<'_>, path: &Path) {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = parent.unwrap_or(Path::new("."));
    let (Ok(dir), Some(name)) = (
        openat2(root, parent, flags, Mode::empty(), resolve),
        path.file_name(),
    ) else {
        return;
    };
    let empty = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_size == 0);
    if unlinkat(&dir, name, AtFlags::REMOVEDIR) == Err(Errno::NOTDIR) && empty {
        let _ = unlinkat(&dir, name, AtFlags::empty());
    }
}

/// Removes what was made for the dead machine, with its directories as far as they are empty.
/// Returns a group that is still in use; the notes stay then.
pub(crate) fn remove(claim: &Claim) -> Option<PathBuf> {
    let in_use = clean(claim);
    if in_use.is_none() {
        let _ = unlinkat(&claim.dir, FILE, AtFlags::empty());
        let _ = unlinkat(&claim.dir, ROOT, AtFlags::REMOVEDIR);
        let _ = unlinkat(&claim.above, &claim.name, AtFlags::REMOVEDIR);
    }
    in_use
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, mknodat};

    use super::*;

    #[test]
    fn what_is_no_file_in_the_place_of_notes_holds_nothing_up() {
        let base = tempfile::tempdir().unwrap();
        let jail = |id: &str| {
            let dir = base.path().join("program").join(id);
            fs::create_dir_all(&dir).unwrap();
            dir
        };
        mknodat(CWD, jail("a").join(FILE), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::create_dir(jail("b").join(FILE)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", jail("c").join(FILE)).unwrap();
        fs::write(jail("d").join(FILE), "").unwrap();
        let (tell, hear) = mpsc::channel();
        let place = base.path().to_owned();
        // Left behind where it waits.
        std::thread::spawn(move || tell.send(collect(&place, true)));
        let all = hear.recv_timeout(Duration::from_secs(10));
        let all = all.expect("nobody is waited for").unwrap();
        assert_eq!(all.removed, [jail("d")]);
        let mut left = all.left;
        left.sort();
        let wanted = [
            ("a", "a FIFO"),
            ("b", "a directory"),
            ("c", "a symbolic link"),
        ];
        assert_eq!(left.len(), wanted.len(), "{left:?}");
        for ((path, why), (id, what)) in left.iter().zip(wanted) {
            assert_eq!(*path, jail(id));
            assert!(why.contains(what), "{why}");
        }
    }
}
