//! The lock of an image: many may read it, or one may write it.

use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

use super::sys::pause;

/// How long a file that another machine has is looked at again.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long until the next look.
const PAUSE: Duration = Duration::from_millis(5);

/// Locks an open file, to be written by this machine alone or to be read. The lock is the open file's,
/// so it ends with the process however that ends.
///
/// It ends a moment later, though: what a killed process's io_uring holds is closed by a thread of the
/// kernel's, after the process has been waited for. No event tells of it that would leave this thread
/// free, so a locked file is looked at again for a while.
pub fn try_lock(file: &File, writable: bool) -> Result<(), TryLockError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let locked = match writable {
            true => file.try_lock(),
            false => file.try_lock_shared(),
        };
        match locked {
            Err(TryLockError::WouldBlock) if Instant::now() < until => pause(PAUSE),
            locked => return locked,
        }
    }
}
