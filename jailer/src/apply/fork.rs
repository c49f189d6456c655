//! Going on in a new process, and telling the old one how that went.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};

use super::{Forked, Jail};
use crate::cgroup::Group;
use crate::error::{JailError, failed};
use crate::seccomp::{self, Trace};
use crate::sys::{self, fork_flags};

/// The way to the process that waits outside. It closes by itself when the program is executed.
pub(super) struct Report(File);

impl Report {
    /// Tells the number of the descriptor that calls are asked about through.
    pub fn tell(&mut self, number: i32) -> std::io::Result<()> {
        self.0.write_all(&number.to_ne_bytes())
    }

    /// Tells the failure, and ends the process, which is nobody's but the waiting one's.
    pub fn send(mut self, err: &JailError) -> ! {
        // In one piece, since others may write there too. Nobody to tell when the other one is gone.
        let mut words = err.to_string().replace('\0', " ");
        words.truncate(words.floor_char_boundary(libc::PIPE_BUF));
        let _ = self.0.write_all(words.as_bytes());
        sys::leave(1)
    }
}

impl Jail<'_> {
    /// Returns in both processes: the new one goes on with the plan, the old one is done as soon as
    /// the program runs or there is a reason why it does not; at once, if the new one is a `sibling`.
    pub(super) fn fork(
        &mut self,
        new_pid_ns: bool,
        group: Option<&Group>,
        daemonize: bool,
        traced: bool,
        sibling: Option<RawFd>,
    ) -> Result<Option<Forked>, JailError> {
        let mut flags = fork_flags::NONE;
        if new_pid_ns {
            flags |= fork_flags::NEW_PID_NS;
        }
        if sibling.is_some() {
            flags |= fork_flags::SIBLING;
        }
        let null = match daemonize {
            true => Some(open_null()?),
            false => None,
        };
        let group = group.filter(|group| !self.missing.contains(&group.dir()));
        let cgroup = group
            .map(|group| crate::paths::open_dir(&group.dir()))
            .transpose()?;
        let (ours, theirs) = match sibling {
            Some(tell) => (None, sys::duplicate(tell).map_err(failed("keep a pipe"))?),
            None => {
                let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
                (Some(pipe.0), pipe.1)
            }
        };
        // A session's leader takes the session's processes along when it ends, by SIGHUP.
        let leads = sys::leads_session();
        let child = sys::fork(flags, cgroup.as_ref().map(AsFd::as_fd))
            .map_err(failed("start a process"))?;
        let Some(pid) = child else {
            drop(ours);
            self.report = Some(Report(File::from(theirs)));
            if daemonize || leads {
                setsid().map_err(failed("begin a session"))?;
            }
            if let Some(null) = null {
                for number in 0..3 {
                    sys::replace(null.as_fd(), number).map_err(failed("open /dev/null"))?;
                }
            }
            return Ok(None);
        };
        drop(theirs);
        let Some(ours) = ours else {
            return Ok(Some(Forked::Runs { pid }));
        };
        let mut ours = File::from(ours);
        let trace = match traced {
            true => supervise(&mut ours, pid),
            false => None,
        };
        let mut said = String::new();
        let heard = ours.read_to_string(&mut said);
        if said.is_empty() && heard.is_ok() && trace.is_none() {
            return Ok(Some(Forked::Runs { pid }));
        }
        let ended = waitpid(Pid::from_raw(pid as i32), WaitOptions::empty());
        match trace {
            Some(trace) if said.is_empty() => Ok(Some(Forked::Ended {
                status: ended
                    .ok()
                    .flatten()
                    .map_or(0, |(_, status)| status.as_raw()),
                trace: trace?,
            })),
            _ => Err(JailError::Inside(said)),
        }
    }
}

/// Watches over the new process until its end, if it gets so far as to be watched.
fn supervise(report: &mut File, pid: u32) -> Option<Result<Trace, JailError>> {
    let mut number = [0; 4];
    // A failure before that is text, and longer.
    report.read_exact(&mut number).ok()?;
    let number = i32::from_ne_bytes(number);
    match number {
        0..=MAX_DESCRIPTOR => Some(seccomp::supervise(pid, number)),
        _ => None,
    }
}

/// More than a jailer opens, and less than any four letters are as a number.
const MAX_DESCRIPTOR: i32 = 1 << 16;

fn open_null() -> Result<OwnedFd, JailError> {
    openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(failed("open /dev/null"))
}
