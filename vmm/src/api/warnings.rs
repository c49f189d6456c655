//! Warnings to those who follow the events: room on disks, and the host's memory. Nothing is
//! looked at, and no timer runs, while nobody follows: idle machines stand by the thousand.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::guest_events::Followers;
use super::serve::App;
use crate::control::{Event, Handle};

/// How often is looked.
const INTERVAL: Duration = Duration::from_secs(10);
/// Less than this share of a file system, or of memory, is little.
const LITTLE: f64 = 0.05;

/// Looks for as long as the server runs.
pub async fn watch(app: Rc<App>) {
    let (handle, followers) = (&app.handle, &app.followers);
    // What has been told of; it is told again only after it was better.
    let mut told = HashSet::new();
    loop {
        if !followers.any() {
            told.clear();
            followers.until(Followers::any).await;
        }
        tokio::time::sleep(INTERVAL).await;
        // Files are looked at by the thread that does so for this one.
        let dirs = written_dirs(handle);
        let Ok(now) = handle.look_at_files(move || look(dirs)).await else {
            return;
        };
        for (name, kind, words) in &now {
            if !told.contains(&(name.clone(), *kind)) {
                handle.publish(&Event::warning(kind, words.clone()));
            }
        }
        told = now
            .into_iter()
            .map(|(name, kind, _)| (name, kind))
            .collect();
    }
}

/// A place, a kind, and the words of a warning.
type Warning = (String, &'static str, String);

fn look(dirs: HashSet<PathBuf>) -> HashSet<Warning> {
    let mut now = HashSet::new();
    for dir in dirs {
        if let Some(left) = disk_left(&dir).filter(|left| *left < LITTLE) {
            let name = dir.display().to_string();
            let words = format!("{:.1}% of the disk at {name} is free", left * 100.0);
            now.insert((name, "disk", words));
        }
    }
    if let Some(left) = memory_left().filter(|left| *left < LITTLE) {
        let words = format!("{:.1}% of the host's memory is available", left * 100.0);
        now.insert((String::new(), "memory", words));
    }
    now
}

/// Directories that the machine's writable files are in.
fn written_dirs(handle: &Handle) -> HashSet<PathBuf> {
    let settings = handle.status().settings;
    let images = settings.drives.iter().filter(|drive| !drive.is_read_only);
    let images = images.filter_map(|drive| drive.path_on_host.parent());
    let dirs = images.chain(handle.run_dir());
    dirs.filter(|dir| !dir.as_os_str().is_empty())
        .map(Path::to_owned)
        .collect()
}

fn disk_left(dir: &Path) -> Option<f64> {
    let figures = rustix::fs::statvfs(dir).ok()?;
    let all = figures.f_blocks.max(1) as f64;
    Some(figures.f_bavail as f64 / all)
}

fn memory_left() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    Some(kib("MemAvailable:")? / kib("MemTotal:")?)
}
