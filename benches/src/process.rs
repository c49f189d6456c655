//! One run of a monitor: started, watched for the guest's sign and for its end, and never left
//! behind.
//!
//! Nothing but the start itself happens between the first instant taken and the process: the
//! pipe, the files and the command are ready before it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::guest::SIGN;

/// How long a monitor may take for anything that is waited for here.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command line, ready to be started many times.
pub struct Launch {
    /// Whose it is, for messages.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where its standard error goes.
    pub stderr: PathBuf,
}

/// A monitor that runs. Dropping it kills it.
pub struct Running<'a> {
    launch: &'a Launch,
    /// When it was about to be started.
    pub started: Instant,
    pid: Pid,
    process: OwnedFd,
    stdout: Option<PipeReader>,
    reaped: bool,
}

/// How a monitor ended.
pub struct Ended {
    /// When it was gone.
    pub at: Instant,
    /// User and system time of all its threads.
    pub cpu: Duration,
}

impl Launch {
    /// Starts the monitor.
    pub fn start(&self) -> anyhow::Result<Running<'_>> {
        let (stdout, theirs) = pipe().context("cannot make a pipe")?;
        let stderr = File::create(&self.stderr)
            .with_context(|| format!("cannot write {}", self.stderr.display()))?;
        let null = File::open("/dev/null").context("cannot open /dev/null")?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
            .stdin(null)
            .stdout(theirs)
            .stderr(Stdio::from(stderr));
        let started = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        // The command holds the pipe's other end, and with it the end of file.
        drop(command);
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a process")?;
        Ok(Running {
            launch: self,
            started,
            pid,
            process,
            stdout: Some(stdout),
            reaped: false,
        })
    }
}

impl Running<'_> {
    /// The process's number.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits for the guest's sign; returns when it was there.
    pub fn wait_for_sign(&mut self) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = [0; 4096];
        while let Some(stdout) = &mut self.stdout {
            if !readable(stdout, deadline)? {
                bail!(self.complaint("its guest has written nothing"));
            }
            let len = stdout
                .read(&mut bytes)
                .context("cannot read from a monitor")?;
            let now = Instant::now();
            if bytes[..len].contains(&SIGN) {
                return Ok(now);
            }
            if len == 0 {
                self.stdout = None;
            }
        }
        bail!(self.complaint("it ended before its guest wrote anything"))
    }

    /// Waits for a good end of the process.
    pub fn wait_for_end(mut self) -> anyhow::Result<Ended> {
        let deadline = Instant::now() + PATIENCE;
        self.drain(deadline)?;
        if !readable(&self.process, deadline)? {
            bail!(self.complaint("it does not end"));
        }
        let (status, cpu) = self.reap()?;
        let at = Instant::now();
        if !status.success() {
            bail!(self.complaint(&format!("it ended with {status}")));
        }
        Ok(Ended { at, cpu })
    }

    /// Reads on, so that the monitor never waits for this side, until nobody writes any more.
    fn drain(&mut self, deadline: Instant) -> anyhow::Result<()> {
        let mut bytes = [0; 4096];
        while let Some(stdout) = &mut self.stdout {
            if !readable(stdout, deadline)? {
                bail!(self.complaint("it does not end"));
            }
            if stdout
                .read(&mut bytes)
                .context("cannot read from a monitor")?
                == 0
            {
                self.stdout = None;
            }
        }
        Ok(())
    }

    /// Takes the ended process's status and the processor time that it used.
    fn reap(&mut self) -> anyhow::Result<(ExitStatus, Duration)> {
        let mut status = 0;
        // SAFETY: all-zeroes is a value of this struct of integers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to values that live through the call.
        let result = unsafe { libc::wait4(self.id(), &mut status, 0, &mut usage) };
        if result < 0 {
            return Err(std::io::Error::last_os_error()).context("cannot wait for a monitor");
        }
        self.reaped = true;
        let time = |t: libc::timeval| {
            Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
        };
        let cpu = time(usage.ru_utime) + time(usage.ru_stime);
        Ok((ExitStatus::from_raw(status), cpu))
    }

    /// What went wrong, with what the monitor has to say to it.
    fn complaint(&self, what: &str) -> anyhow::Error {
        let said = fs::read(&self.launch.stderr).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let name = &self.launch.name;
        match last {
            Some(line) => anyhow!("{name}: {what}; it said: {line}"),
            None => anyhow!("{name}: {what}"),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.reaped {
            // Fails only for a process that has ended, and then there is nothing to kill.
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
            let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
        }
    }
}

/// Waits for the signs of all, which come in any order; returns when each was there.
pub fn wait_for_signs(running: &mut [Running<'_>]) -> anyhow::Result<Vec<Instant>> {
    let deadline = Instant::now() + PATIENCE;
    let mut signs = vec![None; running.len()];
    while let Some(first) = signs.iter().position(Option::is_none) {
        let left: Vec<usize> = (first..running.len())
            .filter(|n| signs[*n].is_none())
            .collect();
        let outputs = left
            .iter()
            .filter_map(|number| running[*number].stdout.as_ref());
        let mut polled: Vec<_> = outputs.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        if polled.len() < left.len() {
            bail!(running[first].complaint("its output has ended"));
        }
        let time = timespec(deadline.saturating_duration_since(Instant::now()));
        match poll(&mut polled, Some(&time)) {
            Ok(0) => bail!(running[first].complaint("its program has written nothing")),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err).context("cannot wait for many processes"),
        }
        let now = Instant::now();
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (number, _) in left.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            let mut bytes = [0; 4096];
            let output = running[number].stdout.as_mut();
            let len = output.map_or(Ok(0), |output| output.read(&mut bytes));
            match len.context("cannot read from a process")? {
                0 => bail!(running[number].complaint("it has ended without a sign")),
                len if bytes[..len].contains(&SIGN) => signs[number] = Some(now),
                _ => {}
            }
        }
    }
    Ok(signs.into_iter().flatten().collect())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Waits until `fd` is readable or at its end; false when time is up.
fn readable(fd: &impl std::os::fd::AsFd, deadline: Instant) -> anyhow::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = timespec(left);
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err).context("cannot wait for a monitor"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(dir: &tempfile::TempDir, script: &str) -> Launch {
        Launch {
            name: "shell".to_owned(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            stderr: dir.path().join("stderr"),
        }
    }

    #[test]
    fn the_sign_is_found_among_other_bytes_and_the_end_comes_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let launch = shell(
            &dir,
            r"echo starting; printf 'a\026b'; head -c 100000 /dev/zero",
        );
        let mut running = launch.start().unwrap();
        let sign = running.wait_for_sign().unwrap();
        let started = running.started;
        let ended = running.wait_for_end().unwrap();
        assert!(started < sign && sign < ended.at);
    }

    #[test]
    fn a_monitor_that_fails_is_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let launch = shell(&dir, "echo no such kernel >&2; exit 3");
        let err = launch.start().unwrap().wait_for_sign().unwrap_err();
        assert!(err.to_string().contains("no such kernel"), "{err}");
        let err = launch.start().unwrap().wait_for_end().err().unwrap();
        assert!(err.to_string().contains("exit status: 3"), "{err}");
    }

    #[test]
    fn nothing_is_left_running() {
        let dir = tempfile::tempdir().unwrap();
        let launch = shell(&dir, "exec sleep 1000");
        let running = launch.start().unwrap();
        let proc = format!("/proc/{}", running.id());
        drop(running);
        assert!(!std::path::Path::new(&proc).exists());
    }
}
