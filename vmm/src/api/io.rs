//! A Unix stream as hyper wants it, with a look at what comes in.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::connections::Slot;

/// Bytes read at once.
const CHUNK: usize = 32 << 10;

/// One connection.
pub struct Io {
    /// The socket.
    pub stream: UnixStream,
    /// Told of what a client sends.
    slot: Option<Arc<Slot>>,
}

impl Io {
    /// A client's connection.
    pub fn of_client(stream: UnixStream, slot: Arc<Slot>) -> Self {
        let slot = Some(slot);
        Self { stream, slot }
    }

    /// A connection to the agent.
    pub fn to_agent(stream: UnixStream) -> Self {
        Self { stream, slot: None }
    }
}

impl hyper::rt::Read for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // By way of the stack: hyper's buffer may be uninitialized, and this costs a copy only.
        let mut bytes = [0; CHUNK];
        let room = cursor.remaining().min(CHUNK);
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buffer))?;
        let filled = buffer.filled();
        if let (Some(slot), false) = (&this.slot, filled.is_empty()) {
            slot.received();
        }
        cursor.put_slice(filled);
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
