//! Going on in a new process, and telling the old one how that went.

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Write};
use std::mem;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};

use super::{Forked, Jail, out_of_order};
use crate::cgroup::Group;
use crate::error::{JailError, failed};
use crate::plan::Step;
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
    pub fn send(&mut self, err: &JailError) -> ! {
        // In one piece, since others may write there too. Nobody to tell when the other one is gone.
        let mut words = err.to_string().replace('\0', " ");
        words.truncate(words.floor_char_boundary(libc::PIPE_BUF));
        let _ = self.0.write_all(words.as_bytes());
        sys::leave(1)
    }
}

/// How the plan goes on in a new process, see [`Step::Fork`].
pub(super) struct How<'a> {
    pub new_pid_ns: bool,
    pub group: Option<&'a Group>,
    pub daemonize: bool,
    pub traced: bool,
    pub sibling: Option<RawFd>,
}

impl Jail<'_> {
    /// Has a new process carry out the `rest` of the plan. Returns in the old one, which is done as soon
    /// as the program runs or there is a reason why it does not; with a `sibling` it is others who hear of
    /// that.
    pub(super) fn fork(&mut self, how: &How<'_>, rest: &[Step]) -> Result<Forked, JailError> {
        let mut flags = fork_flags::NONE;
        if how.new_pid_ns {
            flags |= fork_flags::NEW_PID_NS;
        }
        if how.sibling.is_some() {
            flags |= fork_flags::SIBLING;
        }
        let null = match how.daemonize {
            true => Some(open_null()?),
            false => None,
        };
        let group = how
            .group
            .filter(|group| !self.missing.contains(&group.dir()));
        let cgroup = group
            .map(|group| crate::paths::open_dir(&group.dir()))
            .transpose()?;
        let cgroup = cgroup.as_ref().map(AsFd::as_fd);
        let (ours, theirs) = match how.sibling {
            Some(tell) => (None, sys::duplicate(tell).map_err(failed("keep a pipe"))?),
            None => {
                let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
                (Some(pipe.0), pipe.1)
            }
        };
        // It stays where it is while the new process has it, so that it can be closed here.
        self.report = Some(Report(File::from(theirs)));
        // A session's leader takes the session's processes along when it ends, by SIGHUP.
        let session = how.daemonize || sys::leads_session();
        // They are this process's to wait for.
        let holders = mem::take(&mut self.holders);
        let mut work = || -> Infallible { self.inside(session, null.as_ref(), rest) };
        #[expect(unreachable_code, reason = "`work` does not come back")]
        let started = match how.traced {
            // Who notes down what another one calls cannot stand still.
            true => match sys::fork(flags, cgroup) {
                Ok(Some(pid)) => Ok(pid),
                Ok(None) => match work() {},
                Err(err) => Err(err),
            },
            false => sys::run_beside(flags, cgroup, &mut work),
        };
        self.forget_what_the_other_has();
        drop(holders);
        let pid = started.map_err(failed("start a process"))?;
        match ours {
            Some(ours) => hear(File::from(ours), pid, how.traced),
            None => Ok(Forked::Runs { pid }),
        }
    }

    /// All that the new process does.
    fn inside(&mut self, session: bool, null: Option<&OwnedFd>, rest: &[Step]) -> ! {
        let begin = || {
            if session {
                setsid().map_err(failed("begin a session"))?;
            }
            for number in 0..3 {
                if let Some(null) = null {
                    sys::replace(null.as_fd(), number).map_err(failed("open /dev/null"))?;
                }
            }
            Ok(())
        };
        let went = begin().and_then(|()| self.go_on(rest));
        // What was made so far is removed by the waiting process: it still sees the host.
        let err = went.err().unwrap_or_else(out_of_order);
        match &mut self.report {
            Some(report) => report.send(&err),
            None => sys::leave(1),
        }
    }

    /// Forgets descriptors that the new process, which used this memory, has opened and closed: their
    /// numbers are others' here. What was open before it began stays open until this process ends.
    fn forget_what_the_other_has(&mut self) {
        self.report = None;
        mem::forget((
            self.program.take(),
            self.root.take(),
            self.kept.take(),
            self.parent.take(),
            mem::take(&mut self.binds),
        ));
    }
}

/// Waits until the program of the new process runs; if it is `traced`, until it has ended.
fn hear(mut from: File, pid: u32, traced: bool) -> Result<Forked, JailError> {
    let trace = match traced {
        true => supervise(&mut from, pid),
        false => None,
    };
    let mut said = String::new();
    let heard = from.read_to_string(&mut said);
    if said.is_empty() && heard.is_ok() && trace.is_none() {
        return Ok(Forked::Runs { pid });
    }
    let ended = waitpid(Pid::from_raw(pid as i32), WaitOptions::empty());
    match trace {
        Some(trace) if said.is_empty() => Ok(Forked::Ended {
            status: ended
                .ok()
                .flatten()
                .map_or(0, |(_, status)| status.as_raw()),
            trace: trace?,
        }),
        _ => Err(JailError::Inside(said)),
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
