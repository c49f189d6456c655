//! Taking a jail's directory, noting down who lives there, and giving it up again.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

use super::{Forked, Jail, out_of_order, own_ids};
use crate::error::{JailError, failed};
use crate::paths;
use crate::plan::Step;
use crate::state::{Claim, ROOT, Taken, file_of};

/// How often a directory is made again that a clean-up took away meanwhile.
const ATTEMPTS: usize = 8;

impl Jail<'_> {
    /// Takes `BASE/PROGRAM/ID`, removes what a dead machine left there, and notes down what is
    /// about to be made.
    pub(super) fn take_directory(&mut self, dir: &Path) -> Result<(), JailError> {
        let mut attempt = 0;
        let mut claim = loop {
            let above = self.directory_above(dir)?;
            let id = &self.plan.id;
            let opened = match paths::subdir(above.as_fd(), id, Mode::from_raw_mode(0o755)) {
                Ok((opened, _)) => opened,
                // The directory above was empty a moment ago, and removed.
                Err(JailError::Os { source, .. })
                    if source.kind() == ErrorKind::NotFound && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                    continue;
                }
                Err(err) => return Err(err),
            };
            match Claim::take(&self.proc, above, id, opened, true)? {
                Taken::Ours(claim) => break claim,
                Taken::Living(process) => {
                    return Err(JailError::InUse {
                        id: id.clone(),
                        pid: process.pid,
                    });
                }
                Taken::Locked => return Err(JailError::Busy(id.clone())),
                Taken::Unknown => return Err(JailError::Foreign(file_of(dir))),
                Taken::Gone if attempt < ATTEMPTS => attempt += 1,
                Taken::Gone => return Err(JailError::Busy(id.clone())),
            }
        };
        if let Some(group) = crate::gc::clean(&claim) {
            // A process of somebody else's, which was moved there: the notes stay, for the clean-up.
            let living = std::fs::read_to_string(group.join("cgroup.procs"));
            if let Some(process) = living.unwrap_or_default().lines().next() {
                let process = process.to_owned();
                return Err(JailError::GroupInUse { group, process });
            }
        }
        claim.record = Default::default();
        claim.record.process = Some(self.proc.identify(self.namespace)?);
        for step in &self.plan.steps {
            match step {
                Step::MakeGroup(group) if !group.existing => {
                    let above = match group.own_parent {
                        true => group.path.components().count().saturating_sub(1).min(1),
                        false => 0,
                    };
                    claim.record.groups.push((group.dir(), above));
                }
                Step::Record(name) => claim.record.pid_file = Some(name.clone()),
                _ => {}
            }
        }
        claim.write()?;
        self.claim = Some(claim);
        Ok(())
    }

    /// `BASE/PROGRAM`. The base has to be there, and to be nobody else's.
    fn directory_above(&self, dir: &Path) -> Result<OwnedFd, JailError> {
        let (Some(above), Some(name)) = (dir.parent(), dir.parent().and_then(Path::file_name))
        else {
            return Err(out_of_order());
        };
        let base = above.parent().unwrap_or(Path::new("/"));
        let opened = paths::open_dir(base)?;
        paths::check_private(opened.as_fd(), base, own_ids().0)?;
        let name = name.to_str().unwrap_or_default();
        let (opened, _) = paths::subdir(opened.as_fd(), name, Mode::from_raw_mode(0o755))?;
        paths::check_private(opened.as_fd(), above, own_ids().0)?;
        Ok(opened)
    }

    /// Notes down that this group and those after it have not been made.
    pub(super) fn forget_groups_from(&mut self, dir: &Path) -> Result<(), JailError> {
        let claim = self.claim.as_mut().ok_or_else(out_of_order)?;
        let groups = &mut claim.record.groups;
        let first = groups.iter().position(|(group, _)| group == dir);
        groups.truncate(first.unwrap_or(groups.len()));
        claim.write()
    }

    /// Notes down this process as the one in the jail, for the clean-up and for the launcher.
    pub(super) fn record(&mut self, pid_file: &str) -> Result<(), JailError> {
        let process = self.proc.identify(self.namespace)?;
        let number = process.pid;
        let claim = self.claim.as_mut().ok_or_else(out_of_order)?;
        claim.record.process = Some(process);
        claim.write()?;
        let doing = || format!("write {ROOT}/{pid_file}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(&claim.dir, ROOT, flags, Mode::empty()).map_err(failed(doing()))?;
        // One that an earlier machine of another jailer left.
        let _ = unlinkat(&root, pid_file, AtFlags::empty());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&root, pid_file, flags, Mode::from_raw_mode(0o644));
        let mut file = File::from(file.map_err(failed(doing()))?);
        file.write_all(number.to_string().as_bytes())
            .map_err(failed(doing()))
    }

    /// Removes what was made before `err`, as far as that can be done from here, and tells it.
    pub(super) fn give_up(self, err: JailError) -> Result<Forked, JailError> {
        if let Some(claim) = self.claim {
            // What this very process is still in is removed by the next clean-up.
            crate::gc::remove(&claim);
        }
        Err(err)
    }
}
