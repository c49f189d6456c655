//! The few system calls that the standard library has no safe form of. A leaf with `unsafe` in it.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use super::Buffers;

/// Reads into the buffers at `offset`; what one call gives.
pub(super) fn read_vectored(file: &File, buffers: &Buffers, offset: u64) -> io::Result<usize> {
    let iovecs = buffers.iovecs();
    // SAFETY: the list is valid for the call, and each entry is mapped guest memory that `buffers`
    // keeps mapped and that no Rust reference covers.
    let count = unsafe {
        libc::preadv(
            file.as_raw_fd(),
            iovecs.as_ptr(),
            iovecs.len() as libc::c_int,
            offset as libc::off_t,
        )
    };
    length(count)
}

/// Writes from the buffers at `offset`; what one call takes.
pub(super) fn write_vectored(
    file: &File,
    buffers: &Buffers,
    offset: u64,
    durable: bool,
) -> io::Result<usize> {
    let iovecs = buffers.iovecs();
    // SAFETY: as for reading; the kernel only reads what the entries point to.
    let count = unsafe {
        libc::pwritev2(
            file.as_raw_fd(),
            iovecs.as_ptr(),
            iovecs.len() as libc::c_int,
            offset as libc::off_t,
            write_flags(durable),
        )
    };
    length(count)
}

/// RWF_* for a write.
pub(super) fn write_flags(durable: bool) -> libc::c_int {
    if durable { libc::RWF_DSYNC } else { 0 }
}

/// `fallocate(2)`.
pub(super) fn fallocate(file: &File, mode: libc::c_int, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let result = unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            mode,
            offset as libc::off_t,
            len as libc::off_t,
        )
    };
    length(result as isize).map(drop)
}

/// The event's descriptor, for as long as the event is borrowed.
pub(super) fn borrow(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: an eventfd closes its descriptor when it is dropped, and it is borrowed until then.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

/// Waits until the event was written.
pub(super) fn wait(event: &EventFd) {
    let mut poll = libc::pollfd {
        fd: event.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `poll` is one valid pollfd for the length of the call. Its result does not matter:
    // the caller looks for itself, also after a signal.
    unsafe { libc::poll(&mut poll, 1, -1) };
}

/// Waits for a while, by the call that [`wait`] makes: one call less for a filter to allow.
pub(super) fn pause(time: Duration) {
    let millis = time.as_millis().try_into().unwrap_or(c_int::MAX);
    // SAFETY: of no descriptors none is read. A signal ends it early, after which the caller looks for itself.
    unsafe { libc::poll(std::ptr::null_mut(), 0, millis) };
}

fn length(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
