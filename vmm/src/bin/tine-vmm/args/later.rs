//! Options that come later, by a descriptor: the process is started and gets ready before it is known
//! what its machine is to be.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;

use lexopt::Parser;
use tine::ready;
use tine_jailer::seccomp::Mode;

use super::{Args, Given};

/// Most bytes of such options. Who starts the process is trusted; what it was connected to by mistake
/// is not read for ever.
const MOST: u64 = 1 << 20;

/// A machine to be, of which more is going to be said.
pub struct Later {
    given: Given,
    words: File,
    /// What is done about system calls.
    pub seccomp: Mode,
    /// Whom to tell that it waits, and later that there is a socket.
    pub ready_fd: Option<RawFd>,
}

impl Later {
    pub(super) fn new(given: Given, fd: RawFd) -> Result<Self, String> {
        if given.no_api.is_some() {
            return Err("--no-api and --args-fd: give one of the two".to_owned());
        }
        let failed = |err: io::Error| format!("--args-fd {fd}: {err}");
        let words = ready::duplicate(fd).map_err(failed)?;
        Ok(Self {
            seccomp: given.mode()?,
            ready_fd: given.ready_fd,
            words: File::from(words),
            given,
        })
    }

    /// Waits for the words; none when who would have said them is gone.
    ///
    /// # Errors
    ///
    /// In words, when they cannot be read or make no sense.
    pub fn wait(mut self) -> Result<Option<Args>, String> {
        let mut bytes = Vec::new();
        let read = (&self.words).take(MOST + 1).read_to_end(&mut bytes);
        read.map_err(|err| format!("--args-fd: cannot read: {err}"))?;
        drop(self.words);
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.pop() != Some(0) || bytes.len() as u64 >= MOST {
            return Err(format!(
                "--args-fd: words end with a zero byte each, and have {MOST} bytes at most"
            ));
        }
        let words = bytes.split(|byte| *byte == 0);
        let words = words.map(|word| OsString::from_vec(word.to_vec()));
        if let Some(other) = self.given.read(Parser::from_args(words))? {
            return Err(format!("--args-fd: {other:?} is no machine"));
        }
        let (seccomp, ready_fd) = (self.seccomp, self.ready_fd);
        let args = self.given.machine()?;
        // What has been done already cannot be done otherwise any more.
        let late = [
            ("seccomp", args.seccomp != seccomp),
            ("ready-fd", args.ready_fd != ready_fd),
            ("no-api", args.no_api),
        ];
        match late.iter().find(|(_, is_late)| *is_late) {
            Some((name, _)) => Err(format!("--{name}: it has to be among the first arguments")),
            None => Ok(Some(args)),
        }
    }
}

impl std::fmt::Debug for Later {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Later").finish_non_exhaustive()
    }
}
