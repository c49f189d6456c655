//! System calls of mounts that no library wraps. A leaf with `unsafe` in it.
//!
//! What makes it sound: each call gets integers, or pointers to values that outlive it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// Flags of a mount, see mount_setattr(2).
pub struct MountFlags(pub u64);

/// Flags that a mount may have in a jail.
pub mod mount_flags {
    /// Cannot be written to.
    pub const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
    /// Nothing on it gives rights to who executes it.
    pub const NO_SUID: u64 = libc::MOUNT_ATTR_NOSUID;
    /// Nothing on it can be executed.
    pub const NO_EXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
}

/// Sets `flags` on the mount `tree` and all below it, and cuts it off from other namespaces. With
/// `users`, a user namespace, files' owners are seen through its maps: `tree` is attached nowhere yet.
pub fn restrict_mount(
    tree: BorrowedFd<'_>,
    flags: MountFlags,
    users: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr = libc::mount_attr {
        attr_set: flags.0,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    if let Some(users) = users {
        attr.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = users.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is a C string, and `attr` is of the size given; both outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Mounts `source` over `target`, without following links at its end.
pub fn bind(source: &CStr, target: &CStr) -> io::Result<()> {
    let none = std::ptr::null();
    // SAFETY: both are C strings that outlive the call, and MS_BIND looks at nothing else.
    check(
        unsafe {
            libc::mount(
                source.as_ptr(),
                target.as_ptr(),
                none,
                libc::MS_BIND,
                none.cast(),
            )
        }
        .into(),
    )
    .map(drop)
}
