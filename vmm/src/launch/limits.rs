//! Whether the host has room for many machines, before the first is begun: a batch that cannot be
//! whole is refused with the limit that is in its way.

use std::fs;
use std::path::Path;

use super::LaunchError;

/// Bytes that an idle machine of a shared image takes at least: its monitor's own pages (0.4 MiB),
/// tables of pages, and what its guest writes when it learns who it is.
const MEMORY: u64 = 1 << 20;
/// Threads of a monitor with one vCPU.
const THREADS: u64 = 8;
/// Files that a monitor has open.
const FILES: u64 = 48;
/// Bytes in the run directory: layers of disks, logs and records, all of them almost empty.
const DISK: u64 = 256 << 10;

/// What the host has left. `None` where it does not say.
#[derive(Debug, Default)]
struct Host {
    memory: Option<u64>,
    threads: Option<u64>,
    files: Option<u64>,
    disk: Option<u64>,
}

impl Host {
    fn look(run_dir: &Path) -> Self {
        let disk = rustix::fs::statvfs(run_dir).ok();
        Self {
            memory: text("/proc/meminfo").and_then(|text| available(&text)),
            threads: threads(),
            files: text("/proc/sys/fs/file-nr").and_then(|text| files(&text)),
            disk: disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
        }
    }

    /// What is too little for `count` machines, in words.
    fn too_little(&self, count: u64) -> Option<String> {
        let limits = [
            (
                "MiB of memory",
                self.memory,
                MEMORY,
                1 << 20,
                "MemAvailable in /proc/meminfo",
            ),
            (
                "threads",
                self.threads,
                THREADS,
                1,
                "kernel.threads-max and kernel.pid_max",
            ),
            ("open files", self.files, FILES, 1, "fs.file-max"),
            (
                "MiB of disk",
                self.disk,
                DISK,
                1 << 20,
                "the run directory's file system",
            ),
        ];
        limits.into_iter().find_map(|(what, left, each, unit, limit)| {
            let (left, needed) = (left?, each.saturating_mul(count));
            (left < needed).then(|| {
                let (needed, left) = (needed.div_ceil(unit), left / unit);
                format!("{count} machines need at least {needed} {what}, and {left} are left ({limit})")
            })
        })
    }
}

/// Whether the host has room for `count` more machines whose directories are in `dir`.
///
/// # Errors
///
/// [`LaunchError::NoRoom`] with the limit that is in the way, before any machine was begun.
pub fn check_room(count: u32, dir: &Path) -> Result<(), LaunchError> {
    match Host::look(dir).too_little(count.into()) {
        None => Ok(()),
        Some(words) => Err(LaunchError::NoRoom(words)),
    }
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Bytes that can be had without swapping (proc_meminfo(5)).
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Of all files that the system can have open, those that are not (proc_sys_fs(5)).
fn files(file_nr: &str) -> Option<u64> {
    let mut numbers = file_nr.split_whitespace().map(str::parse::<u64>);
    let (open, _, most) = (numbers.next()?.ok()?, numbers.next(), numbers.next()?.ok()?);
    Some(most.saturating_sub(open))
}

/// Threads that the system can still have (proc_sys_kernel(5); the total is in proc_loadavg(5)).
fn threads() -> Option<u64> {
    let number = |path| text(path)?.trim().parse::<u64>().ok();
    let most = number("/proc/sys/kernel/threads-max")?.min(number("/proc/sys/kernel/pid_max")?);
    let loads = text("/proc/loadavg")?;
    let total = loads
        .split_whitespace()
        .nth(3)?
        .split_once('/')?
        .1
        .parse()
        .ok()?;
    Some(most.saturating_sub(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_is_named() {
        let host = Host {
            memory: Some(100 << 20),
            threads: Some(10_000),
            files: Some(1 << 20),
            disk: Some(1 << 30),
        };
        assert_eq!(host.too_little(100), None);
        let words = host.too_little(101).unwrap();
        assert!(words.contains("101 MiB of memory, and 100 are"), "{words}");
        let roomy = Host {
            memory: None,
            ..host
        };
        let words = roomy.too_little(2000).unwrap();
        assert!(words.contains("16000 threads, and 10000"), "{words}");
        let host = Host {
            disk: Some(0),
            ..Host::default()
        };
        assert!(host.too_little(1).unwrap().contains("run directory"));
        assert_eq!(Host::default().too_little(10_000), None);
    }

    #[test]
    fn this_host_says_all_of_it() {
        let host = Host::look(Path::new("/"));
        assert!(host.memory > Some(0) && host.threads > Some(0), "{host:?}");
        assert!(host.files > Some(0) && host.disk.is_some(), "{host:?}");
        assert_eq!(
            available("MemTotal: 1 kB\nMemAvailable:  2 kB\n"),
            Some(2048)
        );
        assert_eq!(available("MemAvailable: many"), None);
        assert_eq!(files("10\t0\t30\n"), Some(20));
        assert_eq!(files("10"), None);
    }
}
