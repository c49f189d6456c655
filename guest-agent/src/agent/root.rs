//! The root drive: waits for it, mounts it, and makes it the root. Nothing of ours has to be in it.

use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_move};

use super::config::BootWords;
use super::init::{read_small, wish};

/// Where the drive is mounted at first.
const NEW_ROOT: &str = "/newroot";

/// Seconds to wait for the device when nothing is said.
const DEFAULT_WAIT: u32 = 10;

/// Makes the file system on `device` the root. Returns whether it is read-only.
pub fn switch(device: &str, boot: &BootWords) -> Result<bool, String> {
    let failed = |what: &str, error: Errno| format!("root drive {device}: {what}: {error}");
    wait_for(device, boot.root_wait.unwrap_or(DEFAULT_WAIT))?;
    match rustix::fs::mkdir(NEW_ROOT, rustix::fs::Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("mkdir", error)),
    }
    let read_only = mount_drive(device, boot)?;
    for name in ["/proc", "/dev"] {
        let target = format!("{NEW_ROOT}{name}");
        let moved = match mount_move(name, &*target) {
            Err(Errno::NOENT) => {
                rustix::fs::mkdir(&*target, rustix::fs::Mode::from_raw_mode(0o755))
                    .and_then(|()| mount_move(name, &*target))
            }
            result => result,
        };
        wish(moved, name);
    }
    // As switch_root does: the drive over the initramfs, which as the kernel's first file system cannot be left.
    rustix::process::chdir(NEW_ROOT)
        .and_then(|()| mount_move(".", "/"))
        .and_then(|()| rustix::process::chroot("."))
        .and_then(|()| rustix::process::chdir("/"))
        .map_err(|error| failed("switching root", error))?;
    Ok(read_only)
}

/// Waits until the device's node is there, woken by changes of its directory.
fn wait_for(device: &str, seconds: u32) -> Result<(), String> {
    let there = || rustix::fs::stat(device).is_ok();
    if there() {
        return Ok(());
    }
    let deadline = Instant::now() + std::time::Duration::from_secs(seconds.into());
    let watch = || -> rustix::io::Result<_> {
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&events, "/dev", inotify::WatchFlags::CREATE)?;
        Ok(events)
    };
    let events = watch().map_err(|error| format!("root drive {device}: cannot wait: {error}"))?;
    let mut buffer = [0; 4096];
    // Looked at again after the watch stands, as it may have come in between.
    while !there() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("root drive {device}: not there after {seconds} s"));
        }
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let _ = poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&left));
        let _ = rustix::io::read(&events, &mut buffer);
    }
    Ok(())
}

/// Mounts the drive with the type asked for, or with each that the kernel has.
fn mount_drive(device: &str, boot: &BootWords) -> Result<bool, String> {
    let mut kinds = vec!["ext4".to_owned()];
    let listed;
    if let Some(kind) = &boot.root_type {
        kinds = vec![kind.clone()];
    } else {
        listed = read_small("/proc/filesystems");
        let others = listed.lines().filter(|line| !line.starts_with("nodev"));
        kinds.extend(
            others
                .map(|line| line.trim().to_owned())
                .filter(|kind| kind != "ext4"),
        );
    }
    let mut last = Errno::NODEV;
    for kind in &kinds {
        let with = |flags| mount(device, NEW_ROOT, kind.as_str(), flags, None);
        if !boot.root_read_only {
            match with(MountFlags::empty()) {
                Ok(()) => return Ok(false),
                // The drive itself cannot be written.
                Err(Errno::ACCESS | Errno::ROFS) => {}
                Err(error) => {
                    last = error;
                    continue;
                }
            }
        }
        match with(MountFlags::RDONLY) {
            Ok(()) => {
                if !boot.root_read_only {
                    eprintln!("tine-agent: root drive {device} is read-only");
                }
                return Ok(true);
            }
            Err(error) => last = error,
        }
    }
    Err(format!(
        "root drive {device}: no file system on it can be mounted ({}): {last}",
        kinds.join(", ")
    ))
}
