//! The process of a machine, held by a descriptor: its number may be another process's later, this may not.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::UnixStream;

/// A process.
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// The process that serves a socket; `None` when there is none any more.
    pub async fn serving(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).await.ok()?;
        let pid = Pid::from_raw(stream.peer_cred().ok()?.pid()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // It still serves, so the number is still its own.
        UnixStream::connect(socket).await.ok()?;
        Some(Self(process))
    }

    /// Waits for its end; false if that does not come in time.
    pub fn has_ended(&self, limit: Duration) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: 0,
        };
        poll(&mut polled, Some(&limit)).is_ok_and(|count| count > 0)
    }

    /// Ends it at once; one that has ended stays ended.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}
