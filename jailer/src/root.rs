//! The jail's root: the directory `root` of its own, on a mount where nothing can be executed,
//! with `/dev` over it. Launchers put the machine's files there, and find its sockets there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::pivot_root;

use crate::config::Bind;
use crate::error::{JailError, failed};
use crate::namespace::{self, NODES};
use crate::owners::Owners;
use crate::paths;
use crate::state::ROOT;
use crate::sys::{self, MountFlags, mount_flags};

/// Where the program makes its socket when it is not told otherwise, and where `/dev` is put.
const DIRECTORIES: [&str; 2] = ["run", DEV];
const DEV: &str = "dev";

/// Makes the directories of the root below `jail`, for their user. Returns the root, and what is
/// new in it.
pub(crate) fn prepare(
    jail: BorrowedFd<'_>,
    owner: Option<(u32, u32)>,
) -> Result<(OwnedFd, Vec<PathBuf>), JailError> {
    let private = Mode::RWXU;
    let own = |dir: &OwnedFd, name: &str| {
        if let Some((uid, gid)) = owner {
            fchown(dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(failed(format!("give /{name} to the jail's user")))?;
        }
        fchmod(dir, private).map_err(failed(format!("make /{name} private")))
    };
    let (root, _) = paths::subdir(jail, ROOT, private)?;
    own(&root, "")?;
    let mut made = Vec::new();
    for name in DIRECTORIES {
        let (dir, new) = paths::subdir(root.as_fd(), name, private)?;
        if name != DEV {
            own(&dir, name)?;
        }
        if new {
            made.push(name.into());
        }
    }
    Ok((root, made))
}

/// A copy of the mount that `dir` is on, from `dir` on, that is attached nowhere yet. What was
/// mounted below `dir` comes along.
pub(crate) fn take(dir: BorrowedFd<'_>, flags: u64) -> Result<OwnedFd, JailError> {
    let how = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(dir, "", how).map_err(failed("copy a mount"))?;
    sys::restrict_mount(tree.as_fd(), MountFlags(flags), None)
        .map_err(failed("restrict a mount"))?;
    Ok(tree)
}

/// The flags of the root's mount.
pub(crate) const ROOT_FLAGS: u64 = mount_flags::NO_SUID | mount_flags::NO_EXEC;

/// A copy of the mount that `file` is on, from `file` on and without what is mounted below, on which
/// its owner is the jail's user. `None` where the file system has no such mounts.
fn take_owned(
    file: BorrowedFd<'_>,
    owner: (u32, u32),
    flags: u64,
    owners: &mut Owners<'_>,
) -> Result<Option<OwnedFd>, JailError> {
    let how = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(file, "", how).map_err(failed("copy a mount"))?;
    let map = owners.map(owner)?.map(OwnedFd::as_fd);
    match sys::restrict_mount(tree.as_fd(), MountFlags(flags), map) {
        Ok(()) => Ok(Some(tree)),
        // Said of it in mount_setattr(2): a file system without them, or one that is mapped already.
        Err(err) if matches!(err.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => Ok(None),
        Err(err) => Err(failed("restrict a mount")(err)),
    }
}

/// A file or directory of the host, on its way into the jail.
pub(crate) struct Taken {
    tree: OwnedFd,
    directory: bool,
    target: PathBuf,
}

/// A copy of the mount of what `bind` names, and whether that is a directory.
pub(crate) fn take_tree(
    bind: &Bind,
    owners: &mut Owners<'_>,
) -> Result<(OwnedFd, bool), JailError> {
    let source = paths::open(&bind.source, OFlags::PATH)?;
    let stat = fstat(&source).map_err(failed(format!("look at {}", bind.source.display())))?;
    let directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
    let mut flags = ROOT_FLAGS;
    if !bind.writable {
        flags |= mount_flags::READ_ONLY;
    }
    if !bind.owned {
        return Ok((take(source.as_fd(), flags)?, directory));
    }
    let owner = (stat.st_uid, stat.st_gid);
    match take_owned(source.as_fd(), owner, flags, owners)? {
        Some(tree) => Ok((tree, directory)),
        None => Err(paths::refuse(
            &bind.source,
            "cannot be shown as the machine's own: its file system has no ID-mapped mounts; put it \
             on another one, or start the machine without a jail",
        )),
    }
}

/// Takes what `bind` names, and makes something to mount it over. Appends what was made.
pub(crate) fn take_bind(
    root: BorrowedFd<'_>,
    bind: &Bind,
    owners: &mut Owners<'_>,
    made: &mut Vec<PathBuf>,
) -> Result<Taken, JailError> {
    let (tree, directory) = take_tree(bind, owners)?;
    let target = bind.target.strip_prefix("/").unwrap_or(&bind.target);
    let (point, new) = paths::mount_point(root, target, directory)?;
    drop(point);
    made.extend(new);
    Ok(Taken {
        tree,
        directory,
        target: target.into(),
    })
}

/// Enters the root by way of an empty mount namespace, whose root becomes `/dev`.
pub(crate) fn enter_over_devices(tree: BorrowedFd<'_>, binds: &[Taken]) -> Result<(), JailError> {
    namespace::enter_new_root(tree)?;
    attach_binds(tree, binds)?;
    pivot_root(".", DEV).map_err(failed("change the root"))
}

/// Enters the root by way of a copy of the host's mount namespace, and takes that down.
pub(crate) fn enter_and_leave_host(
    tree: BorrowedFd<'_>,
    binds: &[Taken],
    nodes: bool,
) -> Result<(), JailError> {
    let devices = namespace::device_tree(nodes)?;
    let sources = match nodes {
        true => Vec::new(),
        false => take_nodes()?,
    };
    namespace::enter_new_root(tree)?;
    namespace::attach(devices.as_fd(), tree, DEV)?;
    for (path, node) in sources {
        namespace::attach(node.as_fd(), devices.as_fd(), path)?;
    }
    let flags = mount_flags::READ_ONLY | mount_flags::NO_SUID | mount_flags::NO_EXEC;
    sys::restrict_mount(devices.as_fd(), MountFlags(flags), None)
        .map_err(failed("restrict /dev"))?;
    attach_binds(tree, binds)?;
    namespace::leave_old_root()
}

/// The host's own nodes, for those who may not make any.
fn take_nodes() -> Result<Vec<(&'static str, OwnedFd)>, JailError> {
    let mut taken = Vec::new();
    for node in NODES {
        let path = Path::new("/dev").join(node.path);
        // What the host lacks, or this user may not even see, is an empty file in the jail.
        let Ok(fd) = rustix::fs::openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        else {
            continue;
        };
        taken.push((node.path, take(fd.as_fd(), ROOT_FLAGS)?));
    }
    Ok(taken)
}

fn attach_binds(root: BorrowedFd<'_>, binds: &[Taken]) -> Result<(), JailError> {
    for bind in binds {
        let (point, _) = paths::mount_point(root, &bind.target, bind.directory)?;
        namespace::attach(bind.tree.as_fd(), point.as_fd(), "")?;
    }
    Ok(())
}
