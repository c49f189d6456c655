//! Host sockets, and the bytes between them and guest memory. Nothing here waits, and nothing
//! raises SIGPIPE. The two calls that move guest memory are this device's only unsafe code.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use vm_memory::VolatileSlice;

use super::packet::MAX_PARTS;

/// Connects without waiting: where nobody listens, or too many wait already, it fails.
pub fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// Sends bytes of our own and returns how many the socket took.
pub fn send_bytes(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(send(
        stream,
        bytes,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?)
}

/// Looks at what can be received, without taking it.
pub fn peek_bytes(stream: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
    Ok(recv(stream, into, RecvFlags::PEEK | RecvFlags::DONTWAIT)?.0)
}

/// Receives into memory of our own.
pub fn receive_bytes(stream: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
    Ok(recv(stream, into, RecvFlags::DONTWAIT)?.0)
}

/// Sends bytes out of guest memory and returns how many the socket took.
pub fn send_parts(stream: &UnixStream, parts: &[VolatileSlice]) -> io::Result<usize> {
    let mut vectors = [const { MaybeUninit::uninit() }; MAX_PARTS];
    let message = message(parts, &mut vectors);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `message` is valid and points to initialized vectors, each of which lies in guest
    // memory that stays mapped while `parts` borrows it. The kernel only reads it, and the guest
    // changing it meanwhile changes what is sent, nothing else.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes into guest memory, and returns how many; none means that the other side sends no
/// more. Also whether that is all there was: a read that did not fill what it was given, unless a
/// client has passed descriptors along, which end a read early.
pub fn receive_parts(stream: &UnixStream, parts: &[VolatileSlice]) -> io::Result<(usize, bool)> {
    let mut vectors = [const { MaybeUninit::uninit() }; MAX_PARTS];
    let mut message = message(parts, &mut vectors);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` is valid and points to initialized vectors, each of which lies in guest
    // memory that stays mapped while `parts` borrows it, and that Rust holds no reference to. No
    // dirty bitmap has to learn of the write: guest memory has none (`crate::GuestMemory`).
    let received = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, flags) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let room: usize = parts.iter().take(MAX_PARTS).map(|part| part.len()).sum();
    let whole = message.msg_flags & libc::MSG_CTRUNC == 0;
    Ok((received, received < room && whole))
}

/// A message of the first `MAX_PARTS` of `parts`, described in `vectors`. It has no room for
/// ancillary data, so that descriptors which a client passes are closed by the kernel.
fn message(
    parts: &[VolatileSlice],
    vectors: &mut [MaybeUninit<libc::iovec>; MAX_PARTS],
) -> libc::msghdr {
    let used = parts.len().min(MAX_PARTS);
    for (vector, part) in vectors.iter_mut().zip(parts) {
        vector.write(libc::iovec {
            iov_base: part.ptr_guard_mut().as_ptr().cast(),
            iov_len: part.len(),
        });
    }
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: vectors.as_mut_ptr().cast(),
        msg_iovlen: used,
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}
