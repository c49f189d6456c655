//! How a new `tine-vmm` tells the one who started it that its socket can be connected to: it writes a
//! newline to a descriptor that it was given by number (`--ready-fd`), as s6 and its like have it. One
//! that ends before it gets so far closes the descriptor without a word. And how it is told, where it was
//! started before its machine was known, the rest of its arguments (`--args-fd`).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use rustix::io::fcntl_dupfd_cloexec;
use tokio::io::AsyncReadExt;

/// What is written.
pub const READY: u8 = b'\n';

/// The end of the one who is started.
#[derive(Debug)]
pub struct Ready(File);

impl Ready {
    /// Takes over the descriptor of this number, which nobody else in this process uses. Standard input,
    /// output and error stay open besides.
    ///
    /// # Errors
    ///
    /// When it is not open.
    pub fn take(number: RawFd) -> io::Result<Self> {
        let own = duplicate(number)?;
        if number > 2 {
            // SAFETY: it is open, as has been seen, and handed over to here by who started this program.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        Ok(Self(File::from(own)))
    }

    /// Tells it.
    ///
    /// # Errors
    ///
    /// When it cannot be written. That nobody listens any more is none.
    pub fn tell(self) -> io::Result<()> {
        self.tell_of_waiting()
    }

    /// Tells, by the same byte, that more has to be said before there can be a socket (`--args-fd`).
    ///
    /// # Errors
    ///
    /// As for [`Self::tell`].
    pub fn tell_of_waiting(&self) -> io::Result<()> {
        match (&self.0).write_all(&[READY]) {
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

/// Another descriptor, of this process's own, for what a descriptor that it was given by number is open to.
///
/// # Errors
///
/// When the number is not open.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from(rustix::io::Errno::BADF));
    }
    // SAFETY: a number that is not open is an error of the call, in which alone this is used.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(fcntl_dupfd_cloexec(given, 3)?)
}

/// The end of the one who starts it.
#[derive(Debug)]
pub struct Readiness(UnixStream);

impl Readiness {
    /// What is waited at, and what the new process gets: this process has to close it then.
    ///
    /// # Errors
    ///
    /// When there can be no pair of sockets.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (hear, tell) = UnixStream::pair()?;
        hear.set_nonblocking(true)?;
        Ok((Self(hear), tell.into()))
    }

    /// Waits until the process is ready, which is true, or has ended or will never be. In a runtime of
    /// tokio's, each time in any.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub async fn heard(&self) -> io::Result<bool> {
        let mut hear = tokio::net::UnixStream::from_std(self.0.try_clone()?)?;
        let mut byte = [0];
        Ok(hear.read(&mut byte).await? == 1 && byte == [READY])
    }

    /// Says what the process waits for, the rest of its arguments (`--args-fd`).
    ///
    /// # Errors
    ///
    /// When it has ended, or a word has a zero byte.
    pub fn say(&self, words: &[&OsStr]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for word in words {
            if word.as_bytes().contains(&0) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            bytes.extend_from_slice(word.as_bytes());
            bytes.push(0);
        }
        // They fit into the socket's buffer: what does not is an error, and the process is not told anything.
        (&self.0).write_all(&bytes)?;
        self.0.shutdown(Shutdown::Write)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    /// What is heard when `with` has had the other end.
    fn heard(with: impl FnOnce(OwnedFd)) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        runtime.unwrap().block_on(async {
            let (readiness, tell) = Readiness::new().unwrap();
            with(tell);
            readiness.heard().await.unwrap()
        })
    }

    #[test]
    fn it_is_heard_and_the_number_is_closed() {
        let mut number = 0;
        assert!(heard(|tell| {
            number = tell.into_raw_fd();
            let ready = Ready::take(number).unwrap();
            ready.tell().unwrap();
        }));
        // Another test's file may have that number by now; what was told is closed all the same.
        assert!(!heard(|tell| drop(
            Ready::take(tell.into_raw_fd()).unwrap()
        )));
    }

    #[test]
    fn whoever_ends_before_is_not_waited_for() {
        assert!(!heard(drop));
    }

    #[test]
    fn what_is_not_open_is_refused_and_who_has_gone_is_not_missed() {
        assert!(Ready::take(-1).is_err());
        assert!(Ready::take(RawFd::MAX).is_err());
        let (read, write) = io::pipe().unwrap();
        let ready = Ready::take(OwnedFd::from(write).into_raw_fd()).unwrap();
        drop(read);
        ready.tell().unwrap();
    }
}
