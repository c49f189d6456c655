//! Mounts and roots: leaving a mount namespace, attaching what is attached nowhere, changing the
//! root, and the device nodes of a machine.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, makedev, mkdirat, mknodat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use rustix::process::{fchdir, pivot_root};
use rustix::thread::UnshareFlags;

use crate::error::{JailError, failed};
use crate::sys;

/// A device node: its path below `/dev` and its numbers (the kernel's
/// Documentation/admin-guide/devices.txt). Everyone may open it, since a jail has one user only;
/// Landlock says what a machine needs.
pub(crate) struct Node {
    pub path: &'static str,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
}

/// What a machine can need. Nothing of ours reads `urandom`; what the known monitor calls its
/// metadata tokens are made from it.
pub(crate) const NODES: [Node; 3] = [
    Node {
        path: "kvm",
        major: 10,
        minor: 232,
        mode: 0o666,
    },
    Node {
        path: "net/tun",
        major: 10,
        minor: 200,
        mode: 0o666,
    },
    Node {
        path: "urandom",
        major: 1,
        minor: 9,
        mode: 0o444,
    },
];

/// A copy of the host's mount namespace around the calling process, cut off from it.
pub(crate) fn unshare_mounts() -> Result<(), JailError> {
    sys::unshare(UnshareFlags::NEWNS).map_err(failed("make a mount namespace"))?;
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .map_err(failed("cut the mounts off from the host's"))
}

/// Puts `tree`, which is attached nowhere, over the root, and goes there.
pub(crate) fn enter_new_root(tree: BorrowedFd<'_>) -> Result<(), JailError> {
    attach(tree, CWD, "/")?;
    fchdir(tree).map_err(failed("go to the new root"))
}

/// Makes the current directory the root, and takes down what was there.
pub(crate) fn leave_old_root() -> Result<(), JailError> {
    // The old root is put over the new one, and taken away from there.
    pivot_root(".", ".").map_err(failed("change the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(failed("take the old root down"))
}

/// Puts `tree`, which is attached nowhere, over `path` in `dir`.
pub(crate) fn attach(
    tree: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    path: &str,
) -> Result<(), JailError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", dir, path, flags).map_err(failed(format!("mount over {path}")))
}

/// A file system in memory with the device nodes; without `nodes`, with empty files in their
/// place, for those who may not make nodes.
pub(crate) fn device_tree(nodes: bool) -> Result<OwnedFd, JailError> {
    let make = || -> Result<OwnedFd, Errno> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(context.as_fd(), "mode", "0755")?;
        fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        mkdirat(&tree, "net", Mode::from_raw_mode(0o755))?;
        for node in NODES {
            let (kind, device, mode) = match nodes {
                true => (
                    FileType::CharacterDevice,
                    makedev(node.major, node.minor),
                    node.mode,
                ),
                false => (FileType::RegularFile, 0, 0),
            };
            mknodat(&tree, node.path, kind, Mode::from_raw_mode(mode), device)?;
            if nodes {
                // Whatever the file creation mask is.
                rustix::fs::chmodat(
                    &tree,
                    node.path,
                    Mode::from_raw_mode(mode),
                    rustix::fs::AtFlags::empty(),
                )?;
            }
        }
        Ok(tree)
    };
    make().map_err(failed("make the device nodes"))
}
