//! Where the C library hands over. A leaf with `unsafe` in it.
//!
//! The start of Rust's own runtime is left out: for a message about a full stack it reads the
//! process's memory map and makes a second stack. A stack that is full ends the process still, at its
//! guard page, by SIGSEGV. What else that start does is done here.

use std::ffi::{c_char, c_int};
use std::io::Write;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::stdio::{stderr, stdin, stdout};

/// The C library's entry point. The standard library finds the arguments by itself.
// The name is the one that the C library calls, and the signature is C's of `main`.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _words: *const *const c_char) -> c_int {
    begin();
    let status = crate::start();
    // The standard library's own buffer, which nobody else writes out.
    match std::io::stdout().flush() {
        Ok(()) => status.into(),
        Err(_) => status.max(1).into(),
    }
}

/// Numbers 0 to 2 are taken, so that no file of a jail gets one and is written to as standard output,
/// and who writes to a closed pipe is told so instead of being ended by a signal.
fn begin() {
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
