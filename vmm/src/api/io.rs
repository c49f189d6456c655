//! A Unix stream as hyper and the tunnels want it, with a look at what comes in.
//!
//! The loop looks for something to read. Writing is simply tried: only when there was no room for
//! the first time is the socket watched for room too, by a second descriptor. Watched from the
//! start, it would wake this thread each time that the other side has read what it was sent, and
//! make the other side pay for that: twice in every exchange, for nothing.
//!
//! Clients of the known API exist that say HTTP/1.0 and send their next request on the same
//! connection all the same, as the server they were written for keeps it. hyper goes by RFC 9112
//! (section 9.3) and closes it. So their requests are passed on as HTTP/1.1, whose answers are the
//! same bytes: those of the known API all have a length, or none.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::ReadBufCursor;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Sleep, sleep};

use super::connections::Slot;

/// Bytes read at once.
const CHUNK: usize = 32 << 10;

/// How long a client may go on sending what nobody waits for any more, after its answer.
const LINGER: Duration = Duration::from_secs(2);

/// Puts a non-blocking socket into the loop.
pub fn watch<T: AsRawFd>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: what owns the descriptor is moved into the value that takes it out of the loop when
    // it is dropped, and nothing here takes it out again before: it stays the same open socket.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

/// One connection, which must not block.
pub struct Io {
    reader: Arc<AsyncFd<UnixStream>>,
    writer: OnceLock<AsyncFd<UnixStream>>,
    /// Told of what a client sends.
    slot: Option<Arc<Slot>>,
    /// The other end has said that nothing more comes, or is not there any more.
    ended: AtomicBool,
    /// Until when a client's last bytes are read, once this side has said all.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Io {
    /// A client's connection.
    pub fn of_client(stream: UnixStream, slot: Arc<Slot>) -> io::Result<Self> {
        Self::new(stream, Some(slot))
    }

    /// A connection to the agent.
    pub fn to_agent(stream: UnixStream) -> io::Result<Self> {
        Self::new(stream, None)
    }

    fn new(stream: UnixStream, slot: Option<Arc<Slot>>) -> io::Result<Self> {
        Ok(Self {
            reader: Arc::new(watch(stream, Interest::READABLE)?),
            writer: OnceLock::new(),
            slot,
            ended: AtomicBool::new(false),
            linger: None,
        })
    }

    /// Reads what is there, at least one byte; 0 at the end.
    pub async fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (count, begins) = std::future::poll_fn(|cx| {
            self.poll_recv(cx, bytes.len(), |stream| {
                Ok(recv(stream, &mut *bytes, RecvFlags::empty())?.0)
            })
        })
        .await?;
        if begins {
            keep_alive(&mut bytes[..count]);
        }
        Ok(count)
    }

    /// Writes everything.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = std::future::poll_fn(|cx| {
                self.poll_sent(cx, |stream| Ok(send(stream, bytes, SendFlags::NOSIGNAL)?))
            });
            bytes = &bytes[sent.await?..];
        }
        Ok(())
    }

    /// Tells the other end that nothing more will come.
    pub fn end(&self) -> io::Result<()> {
        self.reader.get_ref().shutdown(Shutdown::Write)
    }

    /// Tells when the other end is closed altogether, even while nothing is read or written.
    pub fn gone(&self) -> Gone {
        Gone(self.reader.clone())
    }

    /// Whether the other end is closed altogether. Waits until something can be told of it.
    pub async fn is_gone(&self) -> bool {
        let Ok(writer) = self.writer() else {
            return true;
        };
        match writer.ready(Interest::WRITABLE).await {
            Ok(guard) => guard.ready().is_write_closed(),
            Err(_) => true,
        }
    }

    /// Fills a part of `room` bytes by `recv`: how many, and whether a client's request begins there.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        room: usize,
        mut recv: impl FnMut(&UnixStream) -> Result<usize, Errno>,
    ) -> Poll<io::Result<(usize, bool)>> {
        loop {
            let mut guard = ready!(self.reader.poll_read_ready(cx))?;
            match recv(self.reader.get_ref()) {
                Ok(count) => {
                    // An answer of the agent that is all there: to ask for more would only delay it. (Of what
                    // clients send, descriptors that they pass along can end a read early.)
                    if self.slot.is_none() && count > 0 && count < room {
                        guard.clear_ready();
                    }
                    self.ended.fetch_or(count == 0, Relaxed);
                    let begins = |slot: &Arc<Slot>| count > 0 && slot.received();
                    return Poll::Ready(Ok((count, self.slot.as_ref().is_some_and(begins))));
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.ended.store(true, Relaxed);
                    return Poll::Ready(Err(errno.into()));
                }
            }
        }
    }

    fn writer(&self) -> io::Result<&AsyncFd<UnixStream>> {
        if self.writer.get().is_none() {
            let twin = self.reader.get_ref().try_clone()?;
            let _ = self.writer.set(watch(twin, Interest::WRITABLE)?);
        }
        self.writer.get().ok_or_else(|| io::ErrorKind::Other.into())
    }

    fn poll_sent(
        &self,
        cx: &mut Context<'_>,
        send: impl Fn(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let guard = match self.writer.get() {
                Some(writer) => Some(ready!(writer.poll_write_ready(cx))?),
                None => None,
            };
            match send(self.reader.get_ref()) {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => match guard {
                    Some(mut guard) => guard.clear_ready(),
                    None => drop(self.writer()?),
                },
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

/// Waits for the end of a client's connection.
#[derive(Clone)]
pub struct Gone(Arc<AsyncFd<UnixStream>>);

impl Gone {
    /// Returns when the client has closed it. One that has shut down its writing half alone still
    /// wants its answer.
    pub async fn wait(&self) {
        // Room is not watched for here, so it is the hang-up that is told as such.
        drop(self.0.ready(Interest::WRITABLE).await);
    }
}

impl hyper::rt::Read for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // By way of a buffer of our own: hyper's may be uninitialized, and this costs a copy only.
        let room = cursor.remaining().min(CHUNK);
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut bytes = Vec::with_capacity(room);
        let (_, begins) = ready!(self.poll_recv(cx, room, |stream| {
            Ok(recv(stream, spare_capacity(&mut bytes), RecvFlags::empty())?.0)
        }))?;
        if begins {
            keep_alive(&mut bytes);
        }
        cursor.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_sent(cx, |stream| Ok(send(stream, bytes, SendFlags::NOSIGNAL)?))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // Rust's start has SIGPIPE ignored.
        self.poll_sent(cx, |stream| Ok(rustix::io::writev(stream.as_fd(), parts)?))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A client that is answered before its request has come whole is still sending, and would be cut off
    /// with the answer unread (RFC 9112, section 9.6): so the rest is taken in.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            self.end()?;
            if self.slot.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
        let mut dropped = [0; 4096];
        while !self.ended.load(Relaxed) {
            // What comes is no request, so the client's place does not hear of it.
            let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            let over = linger.as_mut().poll(cx).is_ready();
            let mut guard = match self.reader.poll_read_ready(cx)? {
                Poll::Ready(guard) => guard,
                Poll::Pending if over => break,
                Poll::Pending => return Poll::Pending,
            };
            match recv(self.reader.get_ref(), &mut dropped, RecvFlags::empty()) {
                Ok((0, _)) => break,
                Ok(_) if over => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Makes HTTP/1.1 of the request line that `bytes` begin with, if it is of the known API.
fn keep_alive(bytes: &mut [u8]) {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return;
    };
    let line = &mut bytes[..end];
    let mut words = line.split(|byte| *byte == b' ');
    let (_method, target) = (words.next(), words.next());
    let known =
        target.is_some_and(|target| target.starts_with(b"/") && !target.starts_with(b"/v1"));
    if let (true, Some(last)) = (known && line.ends_with(b" HTTP/1.0"), line.last_mut()) {
        *last = b'1';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines_of_the_known_api_are_kept_alive_and_nothing_else_is_touched() {
        let same = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            keep_alive(&mut bytes);
            String::from_utf8(bytes).unwrap() == text
        };
        let mut bytes = *b"GET / HTTP/1.0\r\nA: b HTTP/1.0\r\n\r\n";
        keep_alive(&mut bytes);
        assert_eq!(&bytes, b"GET / HTTP/1.1\r\nA: b HTTP/1.0\r\n\r\n");
        assert!(same("GET / HTTP/1.1\r\n\r\n"));
        assert!(same("GET /v1/events HTTP/1.0\r\n\r\n"));
        assert!(same("GET none HTTP/1.0\r\n\r\n"));
        assert!(same("GET / HTTP/1.0"));
        assert!(same("HTTP/1.0\r\n"));
        assert!(same(" HTTP/1.0\r\n"));
        assert!(same("\r\n"));
        assert!(same(""));
    }
}
