//! A Unix stream as hyper wants it, with a look at what comes in.
//!
//! Clients of the known API exist that say HTTP/1.0 and send their next request on the same
//! connection all the same, as the server they were written for keeps it. hyper goes by RFC 9112
//! (section 9.3) and closes it. So their requests are passed on as HTTP/1.1, whose answers are the
//! same bytes: those of the known API all have a length, or none.

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
        let filled = buffer.filled_mut();
        if let (Some(slot), false) = (&this.slot, filled.is_empty()) {
            if slot.received() {
                keep_alive(filled);
            }
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
