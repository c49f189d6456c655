//! Makes groups, writes their limits and reads them back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::verify::holds;
use super::{Group, Version};
use crate::error::{JailError, failed};
use crate::paths;

/// How often a directory is made again that a neighbour's clean-up took away meanwhile.
const ATTEMPTS: usize = 8;

/// Makes the group and sets its limits. `false`: it was to be there already, and is not.
pub(crate) fn make(group: &Group) -> Result<bool, JailError> {
    let dir = group.dir();
    if group.existing {
        return Ok(dir.is_dir());
    }
    make_dirs(group)?;
    let living = read(&dir.join("cgroup.procs"))?;
    if let Some(process) = living.lines().next() {
        let process = process.to_owned();
        return Err(JailError::GroupInUse {
            group: dir,
            process,
        });
    }
    for setting in &group.settings {
        let file = dir.join(&setting.file);
        write(&file, &setting.value)?;
        let found = read(&file)?;
        if !holds(&setting.value, &found) {
            return Err(JailError::NotTaken {
                file,
                wanted: setting.value.clone(),
                found: found.trim().to_owned(),
            });
        }
    }
    Ok(true)
}

/// Moves the calling process, which has a single thread, into the group.
pub(crate) fn enter(group: &Group) -> Result<(), JailError> {
    // In version 1 a thread that moves itself alone spares the kernel a lock over all processes.
    let file = match group.version {
        Version::V1 => "tasks",
        Version::V2 => "cgroup.procs",
    };
    write(&group.dir().join(file), "0")
}

/// Removes a group that no process is in any more, and the `above` groups over it that have become
/// empty. Says whether it is gone.
pub(crate) fn remove(dir: &Path, above: usize) -> bool {
    match fs::remove_dir(dir) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return false,
        _ => {}
    }
    for parent in dir.ancestors().skip(1).take(above) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
    true
}

fn make_dirs(group: &Group) -> Result<(), JailError> {
    let mut attempt = 0;
    loop {
        match descend(group) {
            Err(JailError::Os { source, .. })
                if source.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            other => return other,
        }
    }
}

fn descend(group: &Group) -> Result<(), JailError> {
    let mut dir: PathBuf = group.root.clone();
    let cpuset = group.controllers.iter().any(|name| name == "cpuset");
    for name in group.path.components() {
        if group.version == Version::V2 {
            // Some would be handed on all the same, to a group that no process can be in then.
            let hands_on = !group.controllers.is_empty() && dir != group.root;
            if hands_on && !read(&dir.join("cgroup.procs"))?.is_empty() {
                return Err(inhabited(&dir));
            }
            switch_on(&dir, &group.controllers)?;
        }
        let above = dir.clone();
        dir.push(name);
        match fs::create_dir(&dir) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(format!("make the cgroup {}", dir.display()))(err));
            }
            _ => {}
        }
        if group.version == Version::V1 && cpuset {
            // A group of version 1 takes no process before it has processors and memory nodes.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if read(&dir.join(file))?.trim().is_empty() {
                    write(&dir.join(file), read(&above.join(file))?.trim())?;
                }
            }
        }
    }
    Ok(())
}

fn switch_on(dir: &Path, controllers: &[String]) -> Result<(), JailError> {
    let file = dir.join("cgroup.subtree_control");
    let on = read(&file)?;
    for name in controllers {
        if on.split_whitespace().any(|other| other == name) {
            continue;
        }
        match write(&file, &format!("+{name}")) {
            Err(JailError::Os { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => {
                return Err(inhabited(dir));
            }
            other => other?,
        }
    }
    Ok(())
}

/// Refuses a group of version 2 to make others in.
fn inhabited(dir: &Path) -> JailError {
    let reason = "processes are in it, and such a cgroup of version 2 hands no controller on to those in \
        it: choose another one (--parent-cgroup), or move them";
    paths::refuse(dir, reason)
}

fn write(file: &Path, value: &str) -> Result<(), JailError> {
    fs::write(file, value).map_err(failed(format!("write {value:?} to {}", file.display())))
}

fn read(file: &Path) -> Result<String, JailError> {
    fs::read_to_string(file).map_err(failed(format!("read {}", file.display())))
}
