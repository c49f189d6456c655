//! A Unix stream as hyper wants it.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Bytes read at once.
const CHUNK: usize = 32 << 10;

/// One connection.
pub struct Io {
    stream: UnixStream,
    /// The other side has stopped listening.
    deaf: bool,
}

impl Io {
    /// Of a connection.
    pub fn new(stream: UnixStream) -> Self {
        let deaf = false;
        Self { stream, deaf }
    }

    /// The connection.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

impl hyper::rt::Read for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // By way of the stack: hyper's buffer may be uninitialized, and this costs a copy only.
        let mut bytes = [0; CHUNK];
        let room = cursor.remaining().min(CHUNK);
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.get_mut().stream).poll_read(cx, &mut buffer))?;
        cursor.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Io {
    /// Who stops listening in the middle of a request has mostly answered it, and why stands in the
    /// answer: what is left of the request goes nowhere, and the answer, or the connection's end, is
    /// what the reading half gets.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Ready(Ok(bytes.len()));
        }
        match ready!(Pin::new(&mut self.stream).poll_write(cx, bytes)) {
            Err(err)
                if matches!(
                    err.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                self.deaf = true;
                Poll::Ready(Ok(bytes.len()))
            }
            written => Poll::Ready(written),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper::rt::{Read as _, ReadBuf, Write as _};
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn read(io: &mut Io) -> io::Result<Vec<u8>> {
        let mut bytes = [0; 16];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| Pin::new(&mut *io).poll_read(cx, buffer.unfilled())).await?;
        Ok(buffer.filled().to_vec())
    }

    #[tokio::test]
    async fn an_answer_is_read_though_the_request_finds_nobody() {
        let (mut server, stream) = UnixStream::pair().unwrap();
        server.write_all(b"no").await.unwrap();
        drop(server);
        let mut io = Io::new(stream);
        for _ in 0..3 {
            let written = poll_fn(|cx| Pin::new(&mut io).poll_write(cx, &[0; 100])).await;
            assert_eq!(written.unwrap(), 100);
        }
        assert_eq!(read(&mut io).await.unwrap(), b"no");
        assert_eq!(read(&mut io).await.unwrap(), b"");
    }
}
