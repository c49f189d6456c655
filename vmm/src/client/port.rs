//! A byte stream to a TCP port of the guest.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::http::Upgraded;

/// A connection to a port. Shutting down the writing half tells the guest's program that no more
/// comes; what it still says can be read.
#[derive(Debug)]
pub struct Port {
    stream: UnixStream,
    early: Bytes,
}

impl From<Upgraded> for Port {
    fn from(upgraded: Upgraded) -> Self {
        Self {
            stream: upgraded.stream,
            early: upgraded.early,
        }
    }
}

impl AsyncRead for Port {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let count = this.early.len().min(buffer.remaining());
        buffer.put_slice(&this.early[..count]);
        this.early.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
