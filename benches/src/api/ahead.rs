//! Processes that are started before it is known what for, as far as their monitors can be: Firecracker's
//! has answered at its socket, Tine's waits for the rest of its arguments, where its socket is among them.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{Api, PATIENCE, Process, Program};

/// A process that waits.
pub struct Ahead {
    process: Process,
    /// Where it is told its arguments, and its socket among them.
    line: Option<(UnixStream, PathBuf)>,
}

impl Program {
    /// Starts a process with its guest's console on `stdout`, whose socket is going to be in `dir`.
    pub fn start_ahead(&self, dir: &Path, stdout: impl Into<Stdio>) -> anyhow::Result<Ahead> {
        if self.api == Api::Firecracker {
            let mut process = self.start(dir, stdout)?;
            process.ask("GET", "/version", &Value::Null)?;
            return Ok(Ahead {
                process,
                line: None,
            });
        }
        let (line, theirs) = UnixStream::pair().context("cannot make a pair of sockets")?;
        line.set_read_timeout(Some(PATIENCE))?;
        let log = dir.join("stderr");
        let stderr = std::fs::File::create(&log).context("cannot write a file")?;
        let mut command = Command::new(&self.path);
        command.args(["--args-fd", "0", "--ready-fd", "0", "--no-seccomp"]);
        command.stdin(OwnedFd::from(theirs));
        let child = command.stdout(stdout).stderr(stderr).spawn();
        let child = child.with_context(|| format!("cannot start {}", self.path.display()))?;
        let now = Instant::now();
        let process = Process {
            api: self.api,
            started: now,
            connected: now,
            child,
            under_another: false,
            stream: None,
            stderr: log,
        };
        // Its end of the line with it.
        drop(command);
        let line = Some((line, dir.join("api.sock")));
        let mut ahead = Ahead { process, line };
        ahead.hear()?;
        Ok(ahead)
    }
}

impl Ahead {
    /// Has it become a process with a socket; `started` is when it was told to.
    pub fn up(mut self) -> anyhow::Result<Process> {
        self.process.started = Instant::now();
        if let Some((line, socket)) = &mut self.line {
            let mut words = b"--api-sock\0".to_vec();
            words.extend_from_slice(socket.as_os_str().as_encoded_bytes());
            words.push(0);
            line.write_all(&words)
                .context("cannot tell a process what to be")?;
            line.shutdown(Shutdown::Write)?;
        }
        self.hear()?;
        if let Some((_, socket)) = &self.line {
            let stream = UnixStream::connect(socket).context("cannot connect to a socket")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            self.process.connected = Instant::now();
            self.process.stream = Some(stream);
        }
        Ok(self.process)
    }

    fn hear(&mut self) -> anyhow::Result<()> {
        let Some((line, _)) = &mut self.line else {
            return Ok(());
        };
        let mut byte = [0];
        let heard = line.read(&mut byte).unwrap_or(0);
        ensure!(heard == 1, self.process.complaint("it does not wait"));
        Ok(())
    }
}
