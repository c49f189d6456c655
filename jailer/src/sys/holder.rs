//! A process that is there for the user namespace that it is in. A leaf with `unsafe` in it.
//!
//! It uses the memory of the one that makes it, since a copy of that would cost the most of it all.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::c_int;
use rustix::pipe::{PipeFlags, pipe_with};

use super::check;

/// Bytes of stack: for two calls.
const STACK: usize = 8 << 10;

/// A user namespace, for as long as this is there: its process ends when this is dropped, and has then
/// to be waited for.
pub struct Held {
    /// The process, as its parent knows it.
    pub pid: u32,
    /// The same, by a descriptor.
    pub process: OwnedFd,
    _until_closed: OwnedFd,
}

/// Makes one, without maps.
pub fn hold_user_namespace() -> io::Result<Held> {
    let (wait, until_closed) = pipe_with(PipeFlags::CLOEXEC)?;
    // Both outlive the process, of which nobody knows here when it is gone: for good. It is little, and
    // this process about to become another program, or to end.
    let pipe: &'static [RawFd; 2] =
        Box::leak(Box::new([wait.as_raw_fd(), until_closed.as_raw_fd()]));
    let stack = Box::leak(vec![0u128; STACK / size_of::<u128>()].into_boxed_slice());
    let mut process: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_NEWUSER | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the stack is the new process's alone, and its end is aligned as calls need it. What the
    // function is given and the stack are never freed. The function touches nothing else of the memory
    // that both use: its two calls cannot fail, so that not even the C library's error number is
    // written. The last argument is where CLONE_PIDFD writes before the call returns.
    let pid = check(
        unsafe {
            libc::clone(
                hold,
                stack.as_mut_ptr_range().end.cast(),
                flags,
                (&raw const *pipe).cast_mut().cast::<c_void>(),
                &raw mut process,
            )
        }
        .into(),
    )?;
    Ok(Held {
        pid: pid as u32,
        // SAFETY: it was made by the call, for this process alone.
        process: unsafe { OwnedFd::from_raw_fd(process) },
        _until_closed: until_closed,
    })
}

/// Waits until the parent's end of the pipe is closed, or the parent is gone.
extern "C" fn hold(pipe: *mut c_void) -> c_int {
    let mut byte = 0u8;
    // SAFETY: the argument is the array above, and the byte lives through the call. Descriptors are the
    // process's own: it has a copy of the parent's, and closes the end that would keep it waiting for
    // itself.
    unsafe {
        let [wait, until_closed] = *pipe.cast::<[RawFd; 2]>();
        libc::close(until_closed);
        libc::read(wait, (&raw mut byte).cast(), 1);
        libc::_exit(0)
    }
}
