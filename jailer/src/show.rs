//! Showing something of the host in the jail of a machine that runs already: a snapshot's directory,
//! for as long as it is written.
//!
//! The caller goes into the machine's mounts with a thread of its own, which ends there. Of what is in
//! the jail it follows nothing: no component of a path there may be a link.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::config::Bind;
use crate::error::{JailError, failed};
use crate::namespace::attach;
use crate::owners::Owners;
use crate::proc_fs::{Life, Proc};
use crate::state::{Claim, FILE, ROOT, Taken};
use crate::{paths, root, sys};

/// The jail of a machine that runs.
pub struct Inhabited {
    dir: PathBuf,
    mounts: OwnedFd,
    owner: (u32, u32),
}

impl Inhabited {
    /// The jail of the machine `id` of `program` below `base`; `None` where there is none, or nobody
    /// in it. As root only.
    ///
    /// # Errors
    ///
    /// When it is being made or removed, or cannot be looked into.
    pub fn find(base: &Path, program: &str, id: &str) -> Result<Option<Self>, JailError> {
        let above_path = base.join(program);
        let dir_path = above_path.join(id);
        let (Ok(above), Ok(dir)) = (paths::open_dir(&above_path), paths::open_dir(&dir_path))
        else {
            return Ok(None);
        };
        paths::check_private(dir.as_fd(), &dir_path, 0)?;
        let proc = Proc::open()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let doing = || failed(format!("look at {}", dir_path.join(ROOT).display()));
        let root = openat(&dir, ROOT, flags, Mode::empty()).map_err(doing())?;
        let owner = fstat(&root).map_err(doing())?;
        let process = match Claim::take(&proc, above, id, dir, false)? {
            Taken::Living(process) => process,
            Taken::Locked => return Err(JailError::Busy(id.to_owned())),
            _ => return Ok(None),
        };
        let mounts = proc.open_file(&format!("{}/ns/mnt", process.pid));
        let mounts = mounts.map_err(failed("open a jail's mounts"))?;
        // The number may have become another process's meanwhile.
        match proc.life(&process) {
            Life::Alive => Ok(Some(Self {
                dir: dir_path,
                mounts,
                owner: (owner.st_uid, owner.st_gid),
            })),
            _ => Ok(None),
        }
    }

    /// Shows what `bind` names.
    ///
    /// # Errors
    ///
    /// When it cannot be had, or its place in the jail is taken by something else.
    pub fn show(&self, bind: &Bind) -> Result<(), JailError> {
        let proc = Proc::open()?;
        let mut owners = Owners::new(&proc, self.owner);
        let (tree, directory) = root::take_tree(bind, &mut owners)?;
        let target = relative(&bind.target);
        let made = self.inside(|root| {
            let (point, made) = paths::mount_point(root.as_fd(), target, directory)?;
            attach(tree.as_fd(), point.as_fd(), "")?;
            Ok(made)
        })?;
        // For who removes the jail one day.
        let file = self.dir.join(FILE);
        let lines: String = made
            .iter()
            .map(|path| format!("made {}\n", path.display()))
            .collect();
        let mut noted = OpenOptions::new().append(true).open(&file);
        let noted = noted
            .as_mut()
            .map_err(|err| std::io::Error::from(err.kind()))
            .and_then(|file| file.write_all(lines.as_bytes()));
        noted.map_err(failed(format!("write {}", file.display())))
    }

    /// Shows it no longer.
    ///
    /// # Errors
    ///
    /// When it is not shown.
    pub fn hide(&self, target: &Path) -> Result<(), JailError> {
        let target = relative(target);
        self.inside(|root| {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let doing = || failed(format!("hide {} in a jail", target.display()));
            let shown = openat2(&root, target, flags, Mode::empty(), resolve).map_err(doing())?;
            // By way of the directory itself, which cannot be replaced by a link meanwhile.
            rustix::process::fchdir(&shown).map_err(doing())?;
            unmount(".", UnmountFlags::DETACH).map_err(doing())
        })
    }

    /// Does `work` in the machine's mounts, with the jail's root.
    fn inside<T: Send>(
        &self,
        work: impl FnOnce(OwnedFd) -> Result<T, JailError> + Send,
    ) -> Result<T, JailError> {
        let enter = || {
            // A root and a directory of this thread's own.
            sys::unshare(UnshareFlags::FS).map_err(failed("have a root of its own"))?;
            move_into_link_name_space(self.mounts.as_fd(), Some(LinkNameSpaceType::Mount))
                .map_err(failed("enter a jail's mounts"))?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = openat(CWD, "/", flags, Mode::empty());
            work(root.map_err(failed("open a jail's root"))?)
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, enter);
            let thread = thread.map_err(failed("start a thread"))?;
            thread.join().unwrap_or_else(|_| {
                Err(failed("work in a jail's mounts")(std::io::Error::other(
                    "its thread panicked",
                )))
            })
        })
    }
}

fn relative(target: &Path) -> &Path {
    target.strip_prefix("/").unwrap_or(target)
}
