//! Showing something of the host in the jail of a machine that runs already: a snapshot's directory,
//! for as long as it is written.
//!
//! A copy of the calling process goes into the machine's mounts, and ends there. Of what is in the jail
//! it follows nothing: no component of a path there may be a link.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::mount::{UnmountFlags, unmount};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, geteuid, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::config::Bind;
use crate::error::{JailError, failed};
use crate::namespace::attach;
use crate::owners::Owners;
use crate::proc_fs::{Life, Proc};
use crate::state::{Claim, FILE, ROOT, Taken};
use crate::{files, paths, root, sys};

/// The jail of a machine that runs.
pub struct Inhabited {
    dir: PathBuf,
    mounts: OwnedFd,
    /// Where an ordinary user has rights over them; root has them anyway.
    users: Option<OwnedFd>,
    owner: (u32, u32),
}

impl Inhabited {
    /// The jail of the caller's machine `id` of `program` below `base`; `None` where there is none, or
    /// nobody in it.
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
        let user = geteuid();
        paths::check_private(dir.as_fd(), &dir_path, user.as_raw())?;
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
        let open = |kind: &str| {
            let file = proc.open_file(&format!("{}/ns/{kind}", process.pid));
            file.map_err(failed("open a jail's namespaces"))
        };
        let mounts = open("mnt")?;
        let users = match user.is_root() {
            true => None,
            false => Some(open("user")?),
        };
        // The number may have become another process's meanwhile.
        match proc.life(&process) {
            Life::Alive => Ok(Some(Self {
                dir: dir_path,
                mounts,
                users,
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
        let target = relative(&bind.target);
        let made = in_a_copy(|| {
            if let Some(users) = &self.users {
                self.have_rights(users)?;
                // Nobody but root takes mounts out of the host's own namespace: out of a copy of it.
                sys::unshare(UnshareFlags::NEWNS).map_err(failed("copy the host's mounts"))?;
            }
            let mut owners = Owners::new(&proc, self.owner);
            let (tree, directory) = root::take_tree(bind, &mut owners)?;
            let root = self.enter()?;
            let (point, made) = paths::mount_point(root.as_fd(), target, directory)?;
            attach(tree.as_fd(), point.as_fd(), "")?;
            // For who removes the jail one day.
            let notes = made.iter().map(|path| format!("made {}\n", path.display()));
            Ok(notes.collect())
        })?;
        let file = self.dir.join(FILE);
        let flags = OFlags::WRONLY | OFlags::APPEND;
        let noted = files::open_at(CWD, &file, flags, Mode::empty());
        let noted = noted.and_then(|mut file| file.write_all(made.as_bytes()));
        noted.map_err(failed(format!("write {}", file.display())))
    }

    /// Shows it no longer.
    ///
    /// # Errors
    ///
    /// When it is not shown.
    pub fn hide(&self, target: &Path) -> Result<(), JailError> {
        let target = relative(target);
        in_a_copy(|| {
            if let Some(users) = &self.users {
                self.have_rights(users)?;
            }
            let root = self.enter()?;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let doing = || failed(format!("hide {} in a jail", target.display()));
            let shown = openat2(&root, target, flags, Mode::empty(), resolve).map_err(doing())?;
            // By way of the directory itself, which cannot be replaced by a link meanwhile.
            rustix::process::fchdir(&shown).map_err(doing())?;
            unmount(".", UnmountFlags::DETACH).map_err(doing())?;
            Ok(String::new())
        })
        .map(drop)
    }

    /// Enters the user namespace that the mounts belong to.
    fn have_rights(&self, users: &OwnedFd) -> Result<(), JailError> {
        move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User))
            .map_err(failed("enter a jail's user namespace"))
    }

    /// Enters the machine's mounts, and gives the jail's root.
    fn enter(&self) -> Result<OwnedFd, JailError> {
        move_into_link_name_space(self.mounts.as_fd(), Some(LinkNameSpaceType::Mount))
            .map_err(failed("enter a jail's mounts"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, "/", flags, Mode::empty()).map_err(failed("open a jail's root"))
    }
}

/// Does `work` in a copy of this process, which has one thread, and gives the text that it makes.
fn in_a_copy(work: impl FnOnce() -> Result<String, JailError>) -> Result<String, JailError> {
    let (hear, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
    let Some(pid) = sys::copy().map_err(failed("start a process"))? else {
        drop(hear);
        let said = match work() {
            Ok(text) => format!("={text}"),
            Err(err) => err.to_string(),
        };
        // Nobody to tell when the other one is gone.
        let _ = File::from(tell).write_all(said.as_bytes());
        sys::leave(0);
    };
    drop(tell);
    let mut said = String::new();
    let heard = File::from(hear).read_to_string(&mut said);
    let _ = waitpid(Pid::from_raw(pid as i32), WaitOptions::empty());
    match (heard, said.strip_prefix('=')) {
        (Ok(_), Some(text)) => Ok(text.to_owned()),
        (Ok(_), None) if !said.is_empty() => Err(JailError::Inside(said)),
        _ => Err(JailError::Inside(
            "the process that works in a jail's mounts died".to_owned(),
        )),
    }
}

fn relative(target: &Path) -> &Path {
    target.strip_prefix("/").unwrap_or(target)
}
