//! A mount namespace of the benchmark's own, with more mounts than most hosts have, that goes with
//! the benchmark. The only place with `unsafe` for it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The namespace. What was mounted here is taken down when it is dropped.
pub struct Private {
    dir: PathBuf,
}

impl Private {
    /// Leaves the host's mount namespace for a copy, with an empty `/run`, and a place for more
    /// mounts below `dir`.
    pub fn enter(dir: &Path) -> anyhow::Result<Self> {
        // SAFETY: no descriptors are concerned, and the benchmark has one thread.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.context("cannot make a mount namespace")?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).context("cannot cut the mounts off")?;
        let dir = dir.join("mounts");
        std::fs::create_dir(&dir).context("cannot make a directory for mounts")?;
        tmpfs(Path::new("/run"))?;
        tmpfs(&dir)?;
        Ok(Self { dir })
    }

    /// A file system in memory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Mounts `count` small file systems.
    pub fn add(&self, count: usize) -> anyhow::Result<()> {
        for number in 0..count {
            let place = self.dir.join(format!("mount-{number}"));
            std::fs::create_dir(&place).context("cannot make a directory for a mount")?;
            tmpfs(&place)?;
        }
        Ok(())
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // The namespace ends with the process in any case.
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        let _ = unmount("/run", UnmountFlags::DETACH);
    }
}

fn tmpfs(place: &Path) -> anyhow::Result<()> {
    let name = CString::new(place.as_os_str().as_bytes())?;
    let result = mount(c"tmpfs", &name, c"tmpfs", MountFlags::empty(), None);
    result.with_context(|| format!("cannot mount at {}", place.display()))
}
