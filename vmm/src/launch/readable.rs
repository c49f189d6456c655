//! Descriptors that are waited for until there is something to read.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the event loop watch a descriptor.
///
/// # Errors
///
/// When it is of a kind that cannot be watched, is watched already, or there is no event loop.
pub fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: it is owned by what is returned, which closes it after it has been taken off the event
    // loop, and gives it to nobody before.
    let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(watched?)
}
