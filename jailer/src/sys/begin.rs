//! The start of a program that leaves Rust's own out. A leaf with `unsafe` in it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::stdio::{stderr, stdin, stdout};

/// What a program without Rust's own start has to do before all else: numbers 0 to 2 are taken, so
/// that no file of a machine or a jail gets one and is written to as standard output, and who writes to a
/// closed pipe is told so instead of being ended by a signal.
pub fn begin() {
    let standard = [stdin(), stdout(), stderr()];
    let mut polled = standard.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::empty()));
    // No file is waited for, so that a failure here tells nothing about them.
    let _ = poll(&mut polled, Some(&Timespec::default()));
    for fd in &polled {
        if fd.revents().contains(PollFlags::NVAL) {
            // The lowest number that is free, which is this one.
            match open("/dev/null", OFlags::RDWR, Mode::empty()) {
                Ok(null) => std::mem::forget(null),
                Err(_) => std::process::abort(),
            }
        }
    }
    // SAFETY: ignoring a signal runs no code of ours in a handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
