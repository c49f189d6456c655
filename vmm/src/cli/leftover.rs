//! What a process that was killed has left: a directory that it made, and held the lock of, and a
//! process that it had just started in there.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tine::launch::Pidfd;
use tine::replace::is_named;
use tine_jailer::files;

/// How long a process that was killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lock of a directory whose maker is gone, to remove it under; `None` while there is one.
pub fn own(dir: &Path) -> Option<File> {
    let lock = files::open_dir(dir).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_named(dir, &lock).then_some(lock)
}

/// Kills the process that works in a directory, found by its arguments: it has no socket yet, or no
/// more. Waits for its end, within [`PATIENCE`].
pub fn kill_process_of(dir: &Path) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        if !works_in(pid, dir) {
            continue;
        }
        // Another process may have got its number before it was opened.
        if let Some(process) = Pidfd::open(pid).filter(|_| works_in(pid, dir)) {
            process.kill();
            process.has_ended(PATIENCE);
        }
    }
}

fn works_in(pid: i32, dir: &Path) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    let dir = dir.as_os_str().as_bytes();
    words
        .windows(2)
        .any(|pair| pair == [&b"--run-dir"[..], dir])
}
