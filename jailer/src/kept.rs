//! Two namespaces that are made once and kept: a mount namespace with next to nothing in it, and a
//! network namespace with nothing in it.
//!
//! Entering a new mount namespace copies every mount of the old one, and leaving the host's behind
//! takes them all apart again, so on a host with hundreds of mounts each jail would pay for all of
//! them, under a lock that all jails share. A jail that begins in the kept one copies two.
//!
//! The mount namespace's root is a read-only file system with the device nodes of a machine:
//! `pivot_root` makes it the jail's `/dev`, so that there is nothing to make and nothing to take
//! down. Both namespaces are kept by mounts in `/run/tine-jailer`, which only root can look into.
//! Removing them harms no jail: the next one makes new ones.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, statat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CpuSet, UnshareFlags, sched_getaffinity, sched_setaffinity};

use crate::error::{JailError, failed};
use crate::namespace::{device_tree, enter_new_root, leave_old_root, unshare_mounts};
use crate::sys::{self, MountFlags, mount_flags};
use crate::{files, paths};

/// Where both are kept.
pub const KEPT: &str = "/run/tine-jailer";
/// The mount namespace. Another content would get another name.
const MOUNTS: &str = "mounts-1";
/// The network namespace.
const NETWORK: &str = "network-1";

/// The kept namespaces.
pub(crate) struct Kept {
    pub mounts: OwnedFd,
    pub network: OwnedFd,
}

impl Kept {
    /// Opens them, and makes them first if they are not there.
    pub fn open() -> Result<Self, JailError> {
        if let Some(kept) = Self::find() {
            return Ok(kept);
        }
        Self::make()?;
        Self::find().ok_or_else(|| {
            paths::refuse(
                Path::new(KEPT),
                "what was put there a moment ago is gone: try again",
            )
        })
    }

    fn find() -> Option<Self> {
        let dir = paths::open_dir(Path::new(KEPT)).ok()?;
        paths::check_private(dir.as_fd(), Path::new(KEPT), 0).ok()?;
        // Never the one that the caller is in, whatever has been put there.
        let open = |name, own, kind| {
            let file = files::open_at(&dir, name, OFlags::RDONLY, Mode::empty());
            let fd = OwnedFd::from(file.ok()?);
            let other = statat(CWD, own, AtFlags::empty()).ok()?.st_ino != fstat(&fd).ok()?.st_ino;
            (other && sys::is_namespace(fd.as_fd(), kind)).then_some(fd)
        };
        Some(Self {
            mounts: open(MOUNTS, "/proc/self/ns/mnt", libc::CLONE_NEWNS)?,
            network: open(NETWORK, "/proc/self/ns/net", libc::CLONE_NEWNET)?,
        })
    }

    fn make() -> Result<(), JailError> {
        match mkdirat(CWD, KEPT, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(err) => return Err(failed(format!("make the directory {KEPT}"))(err)),
        }
        let dir = paths::open_dir(Path::new(KEPT))?;
        paths::check_private(dir.as_fd(), Path::new(KEPT), 0)?;
        flock(&dir, FlockOperation::LockExclusive).map_err(failed(format!("lock {KEPT}")))?;
        if Self::find().is_some() {
            return Ok(());
        }
        clear();
        make_files()?;
        keep()
    }
}

/// Lets a process that only lives for it make both namespaces, and keeps them.
///
/// A mount namespace can only be mounted into an older one, and some kernels (6.18) compare numbers
/// that every processor draws from a supply of its own. On the processor that drew the caller's
/// number, the next one is greater, so each is tried.
fn keep() -> Result<(), JailError> {
    let mut result = keep_here();
    let before = sched_getaffinity(None).map_err(failed("ask for the processors"))?;
    for number in 0..CpuSet::MAX_CPU {
        match &result {
            Err(JailError::Os { source, .. }) if is_invalid(source) => {}
            _ => break,
        }
        let mut only = CpuSet::new();
        only.set(number);
        // There is no such processor, or not for this process.
        if sched_setaffinity(None, &only).is_ok() {
            clear();
            make_files()?;
            result = keep_here();
        }
    }
    sched_setaffinity(None, &before).map_err(failed("have the processors again"))?;
    result
}

fn is_invalid(err: &std::io::Error) -> bool {
    err.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

fn make_files() -> Result<(), JailError> {
    for name in [MOUNTS, NETWORK] {
        let path = format!("{KEPT}/{name}");
        let made = files::open_at(CWD, &path, OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
        made.map_err(failed(format!("make the file {path}")))?;
    }
    Ok(())
}

/// Makes them on whatever processor this is.
fn keep_here() -> Result<(), JailError> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (made, tell) = pipe().map_err(failed("make a pipe"))?;
    let (go_on, done) = pipe().map_err(failed("make a pipe"))?;
    let Some(maker) = sys::fork(sys::fork_flags::NONE, None).map_err(failed("start a process"))?
    else {
        drop((made, done));
        // Its number as /proc has it, which need not be the one that the parent knows.
        let number = std::fs::read_link("/proc/self").unwrap_or_default();
        let said = match build() {
            Ok(()) => format!("={}", number.display()),
            Err(err) => err.to_string(),
        };
        // Nobody to tell and nobody to wait for, when the parent is gone.
        let _ = File::from(tell).write_all(said.as_bytes());
        let _ = File::from(go_on).read(&mut [0]);
        sys::leave(0);
    };
    drop((tell, go_on));
    let mut said = String::new();
    let heard = File::from(made).read_to_string(&mut said);
    let result = match (heard, said.strip_prefix('=')) {
        (Ok(_), Some(number)) => bind(number),
        (Ok(_), None) if !said.is_empty() => Err(JailError::Inside(said)),
        _ => Err(JailError::Inside(
            "the process that makes namespaces died".to_owned(),
        )),
    };
    drop(done);
    let _ = waitpid(Pid::from_raw(maker as i32), WaitOptions::empty());
    result
}

fn bind(maker: &str) -> Result<(), JailError> {
    for (kind, name) in [("net", NETWORK), ("mnt", MOUNTS)] {
        let source = format!("/proc/{maker}/ns/{kind}");
        let target = format!("{KEPT}/{name}");
        let doing = format!("keep a namespace at {target}");
        let (Ok(source), Ok(target)) = (CString::new(source), CString::new(target)) else {
            continue;
        };
        sys::bind(&source, &target).map_err(failed(doing))?;
    }
    Ok(())
}

/// Makes both namespaces around the calling process.
fn build() -> Result<(), JailError> {
    let dev = device_tree(true)?;
    sys::restrict_mount(
        dev.as_fd(),
        MountFlags(mount_flags::READ_ONLY | mount_flags::NO_SUID | mount_flags::NO_EXEC),
        None,
    )
    .map_err(failed("make the device nodes read-only"))?;
    unshare_mounts()?;
    enter_new_root(dev.as_fd())?;
    leave_old_root()?;
    sys::unshare(UnshareFlags::NEWNET).map_err(failed("make a network namespace"))
}

/// Lets go of both namespaces. Whoever is in them stays there.
pub(crate) fn clear() {
    for name in [MOUNTS, NETWORK] {
        // Whatever is not there need not be removed.
        while unmount(format!("{KEPT}/{name}"), UnmountFlags::DETACH).is_ok() {}
        let _ = std::fs::remove_file(format!("{KEPT}/{name}"));
    }
}

/// Removes both namespaces and their directory, if they are there.
pub(crate) fn forget() {
    clear();
    let _ = std::fs::remove_dir(KEPT);
}
