//! The process of a machine, a child of this one.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A child. Its number is its own until its end has been taken note of here.
#[derive(Debug)]
pub struct Monitor {
    pid: Pid,
    ended: Option<ExitStatus>,
}

impl Monitor {
    /// The child of this number, which nobody else waits for.
    pub fn of(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, ended: None })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, if it has.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.look(WaitOptions::NOHANG)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        self.look(WaitOptions::empty())
    }

    /// Ends it at once, and waits for that.
    pub fn kill(&mut self) {
        if self.has_ended().is_none() {
            let _ = kill_process(self.pid, Signal::KILL);
            self.wait();
        }
    }

    fn look(&mut self, options: WaitOptions) -> Option<ExitStatus> {
        while self.ended.is_none() {
            match waitpid(Some(self.pid), options) {
                Ok(None) => return None,
                Ok(Some((_, status))) => {
                    self.ended = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Err(Errno::INTR) => {}
                // It is no child any more: it has ended, and nobody knows how.
                Err(_) => self.ended = Some(ExitStatus::from_raw(0)),
            }
        }
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for by number")]
    fn the_end_of_a_child_is_told_once_and_for_all() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let mut monitor = Monitor::of(child.id()).unwrap();
        assert_eq!(monitor.wait().unwrap().code(), Some(3));
        assert_eq!(monitor.has_ended().unwrap().code(), Some(3));
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut monitor = Monitor::of(child.id()).unwrap();
        assert_eq!(monitor.has_ended(), None);
        monitor.kill();
        assert_eq!(monitor.has_ended().unwrap().signal(), Some(9));
    }
}
