//! The process of a machine, held by a descriptor: its number may be another process's later, this may not.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tine_jailer::files::Socket;
use tokio::net::UnixStream;

use super::readable::watched;

/// A process.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// The process that serves a socket; `None` when there is none any more, and where a link leads to
    /// somebody else's.
    pub async fn serving(socket: &Path) -> Option<Self> {
        let socket = Socket::at(socket).ok()?;
        let stream = UnixStream::connect(socket.path()).await.ok()?;
        let pid = Pid::from_raw(stream.peer_cred().ok()?.pid()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // It still serves, so the number is still its own.
        UnixStream::connect(socket.path()).await.ok()?;
        Some(Self(process))
    }

    /// The process of a number, if there is one.
    pub fn open(pid: i32) -> Option<Self> {
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty());
        process.ok().map(Self)
    }

    /// Its number, while it is there.
    pub fn pid(&self) -> Option<i32> {
        let info = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let info = std::fs::read_to_string(info).ok()?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        pid.trim().parse().ok().filter(|pid| *pid > 0)
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// When it cannot be waited for: this process has too many files open, or no event loop.
    pub async fn ended(self) -> io::Result<()> {
        watched(self.0)?.readable().await.map(drop)
    }

    /// Asks it to end.
    pub fn ask_to_end(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::TERM);
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
