//! A connection, on vsock or on a Unix or TCP socket: non-blocking, in the agent's loop, usable by hyper.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::ReadBufCursor;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tokio::io::Interest;
use tokio::time::{Sleep, sleep};

use super::sys::{self, Watched};

/// Bytes read at once for hyper: what an ordinary request needs, and what a file's upload comes in.
const SMALL_READ: usize = 8 * 1024;
const LARGE_READ: usize = 64 * 1024;

/// How long a client may go on sending what nobody waits for any more, after its answer.
const LINGER: Duration = Duration::from_secs(2);

/// One connection.
///
/// The loop looks for something to read. Writing is simply tried: only when there is no room for the first time is the
/// socket watched for that too, by a second descriptor. Being woken after each answer because there is room again would
/// cost more than the answer's own system call.
pub struct Conn {
    reader: Arc<Watched>,
    writer: OnceLock<Watched>,
    /// The peer has said that nothing more comes, or is not there any more.
    ended: Cell<bool>,
    /// Until when the last bytes are read, once this side has said all.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Conn {
    /// Takes over a non-blocking socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let reader = sys::watch(socket, Interest::READABLE)?;
        Ok(Self {
            reader: Arc::new(reader),
            writer: OnceLock::new(),
            ended: Cell::new(false),
            linger: None,
        })
    }

    /// Reads what is there, at least one byte; 0 at the end.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_recv(cx, buffer)).await
    }

    /// Writes everything.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = poll_fn(|cx| self.poll_send(cx, bytes)).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Tells the peer that nothing more will come.
    pub fn shut_write(&self) {
        let _ = rustix::net::shutdown(self.reader.as_fd(), Shutdown::Write);
    }

    /// Waits until the connection has failed, whatever else is waited for. When a monitor resets vsock, the kernel
    /// reports an error and nothing to read, of which a waiting read does not learn.
    pub fn broken(&self) -> impl Future<Output = ()> + 'static {
        self.told(Interest::ERROR)
    }

    /// Waits until the connection has failed or the peer has closed it altogether: what a peer that has gone still asks
    /// for would keep its place. Only for connections whose own half is never shut down alone, as two halves that were
    /// shut in good order look the same, with bytes still to be read.
    pub fn gone(&self) -> impl Future<Output = ()> + 'static {
        // Room is not watched for here, so it is the hang-up that is told as such.
        self.told(Interest::ERROR | Interest::WRITABLE)
    }

    fn told(&self, what: Interest) -> impl Future<Output = ()> + 'static {
        let reader = self.reader.clone();
        async move {
            drop(reader.ready(what).await);
        }
    }

    /// Waits until a connection under way is there, or says why it failed.
    pub async fn connected(&self) -> io::Result<()> {
        drop(self.writer()?.writable().await?);
        match rustix::net::sockopt::socket_error(self.reader.as_fd())? {
            Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn writer(&self) -> io::Result<&Watched> {
        if self.writer.get().is_none() {
            let twin = rustix::io::fcntl_dupfd_cloexec(self.reader.as_fd(), 3)?;
            let _ = self.writer.set(sys::watch(twin, Interest::WRITABLE)?);
        }
        self.writer.get().ok_or_else(|| io::ErrorKind::Other.into())
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.reader.poll_read_ready(cx))?;
            match rustix::net::recv(self.reader.as_fd(), &mut *buffer, RecvFlags::empty()) {
                Ok((count, _)) => {
                    // Less than was asked for: nothing is left, so the next call need not try.
                    if count > 0 && count < buffer.len() {
                        guard.clear_ready();
                    }
                    self.ended.set(count == 0);
                    return Poll::Ready(Ok(count));
                }
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    self.ended.set(true);
                    return Poll::Ready(Err(errno.into()));
                }
            }
        }
    }

    /// By way of the stack: a copy costs less than the system calls that a smaller buffer would add.
    fn recv_into<const MOST: usize>(
        &self,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffer = [0; MOST];
        let room = cursor.remaining().min(MOST);
        let count = ready!(self.poll_recv(cx, &mut buffer[..room]))?;
        cursor.put_slice(&buffer[..count]);
        Poll::Ready(Ok(()))
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let guard = match self.writer.get() {
                Some(writer) => Some(ready!(writer.poll_write_ready(cx))?),
                None => None,
            };
            match rustix::net::send(self.reader.as_fd(), bytes, SendFlags::NOSIGNAL) {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(rustix::io::Errno::AGAIN) => match guard {
                    Some(mut guard) => guard.clear_ready(),
                    None => drop(self.writer()?),
                },
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
    }
}

impl hyper::rt::Read for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Hyper asks for more at once when much is coming. Pages of the stack that small requests do not need are not
        // touched for them.
        if cursor.remaining() <= SMALL_READ {
            self.recv_into::<SMALL_READ>(cx, cursor)
        } else {
            self.recv_into::<LARGE_READ>(cx, cursor)
        }
    }
}

impl hyper::rt::Write for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The connection is dropped next, which tells the peer all. But who is answered before its request has come whole
    /// is still sending, and would be cut off with the answer unread (RFC 9112, section 9.6): so the rest is taken in.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut dropped = [0; SMALL_READ];
        while !self.ended.get() {
            if self.linger.is_none() {
                self.shut_write();
            }
            let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            let over = linger.as_mut().poll(cx).is_ready();
            match self.poll_recv(cx, &mut dropped) {
                _ if over => break,
                Poll::Ready(read) => drop(read?),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}
