//! One request on a connection of its own, and its answer within bounds.
//!
//! What comes from a machine may come from its guest, which is hostile: heads are bounded, bodies
//! that are kept are bounded, the others are handed on as they come.

use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tine_jailer::files::Socket;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::error::{Error, refused};
use super::io::Io;

/// Most bytes of an answer's head.
const MAX_HEAD: usize = 64 << 10;
/// Most header lines of an answer.
const MAX_HEADERS: usize = 64;
/// Most bytes of a JSON answer: two outputs of 4 MiB, each byte spelt with six.
const MAX_JSON: usize = 64 << 20;
/// Most bytes of an answer that is an error.
const MAX_ERROR: usize = 64 << 10;

/// What is sent with a request.
pub enum Body {
    /// All of it.
    Whole(Bytes),
    /// Pieces as they are made; an error cuts the connection.
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body {
    /// Nothing.
    pub fn empty() -> Self {
        Body::Whole(Bytes::new())
    }

    /// A value as JSON.
    pub fn json(value: &impl Serialize) -> Self {
        // Plain data always serialises.
        Body::Whole(serde_json::to_vec(value).unwrap_or_default().into())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Body::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Pieces(pieces) => pieces
                .poll_recv(cx)
                .map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Pieces(_) => SizeHint::default(),
        }
    }
}

/// The way to a machine: its socket.
#[derive(Debug, Clone)]
pub struct Http {
    path: Arc<PathBuf>,
}

/// A connection that goes on as something else.
pub struct Upgraded {
    /// The connection.
    pub stream: UnixStream,
    /// What came in the same read as the answer's head.
    pub early: Bytes,
}

impl Http {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = Arc::new(path.into());
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects, and says nothing yet. A link at the end of the path is not followed: the machine may
    /// have put it there, to another machine's socket.
    pub async fn connect(&self) -> Result<UnixStream, Error> {
        let connect = async || {
            let socket = Socket::at(&self.path)?;
            UnixStream::connect(socket.path()).await
        };
        connect().await.map_err(|source| Error::Connect {
            path: self.path.to_path_buf(),
            source,
        })
    }

    /// Sends a request and waits for the head of an answer that is no error.
    pub async fn send(
        &self,
        method: Method,
        target: &str,
        upgrade: Option<&'static str>,
        body: Body,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = target
            .parse()
            .map_err(|err| Error::protocol(format!("{target:?} cannot be asked for: {err}")))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("tine"));
        if matches!(request.body(), Body::Whole(bytes) if !bytes.is_empty()) {
            let headers = request.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(protocol) = upgrade {
            let headers = request.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
        }
        let stream = self.connect().await?;
        let peer = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(Io::new(stream))
            .await?;
        // Whatever ends it, the one who waits for the answer is told.
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        let mut answer = sender.send_request(request).await?;
        answer.extensions_mut().insert(Peer(peer));
        match answer.status() {
            StatusCode::SWITCHING_PROTOCOLS if upgrade.is_some() => Ok(answer),
            status if status.is_success() => Ok(answer),
            status => {
                let body = collect(answer.into_body(), MAX_ERROR).await?;
                Err(refused(status.as_u16(), &body))
            }
        }
    }

    /// Sends a request and reads its JSON answer.
    pub async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Body,
    ) -> Result<T, Error> {
        let answer = self.send(method, target, None, body).await?;
        read_json(answer, target).await
    }

    /// Sends a request whose answer says nothing but that it was carried out.
    pub async fn done(&self, method: Method, target: &str, body: Body) -> Result<(), Error> {
        let answer = self.send(method, target, None, body).await?;
        collect(answer.into_body(), MAX_ERROR).await.map(drop)
    }

    /// Sends a request after which the connection goes on as `protocol`.
    pub async fn upgrade(
        &self,
        target: &str,
        protocol: &'static str,
        body: Body,
    ) -> Result<Upgraded, Error> {
        let mut answer = self
            .send(Method::POST, target, Some(protocol), body)
            .await?;
        let agreed = answer.headers().get(UPGRADE);
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS
            || !agreed.is_some_and(|is| is.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()))
        {
            return Err(Error::protocol(format!("it does not go on as {protocol}")));
        }
        let upgraded = hyper::upgrade::on(&mut answer).await?;
        match upgraded.downcast::<Io>() {
            Ok(parts) => Ok(Upgraded {
                stream: parts.io.into_stream(),
                early: parts.read_buf,
            }),
            Err(_) => Err(Error::protocol("the connection is not its own any more")),
        }
    }
}

/// The process that an answer came from.
#[derive(Clone, Copy)]
struct Peer(Option<i32>);

/// The number, here, of the process that an answer came from.
pub fn peer(answer: &Response<Incoming>) -> Option<u32> {
    let Peer(pid) = answer.extensions().get::<Peer>()?;
    u32::try_from((*pid)?).ok().filter(|pid| *pid > 0)
}

/// Reads a JSON answer to `target`.
pub async fn read_json<T: DeserializeOwned>(
    answer: Response<Incoming>,
    target: &str,
) -> Result<T, Error> {
    let bytes = collect(answer.into_body(), MAX_JSON).await?;
    serde_json::from_slice(&bytes)
        .map_err(|err| Error::protocol(format!("its answer to {target}: {err}")))
}

/// The next piece of a body; `None` at its end.
pub async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Error> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(frame) => {
                if let Ok(bytes) = frame?.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// Reads a whole body of `most` bytes at most.
pub async fn collect(mut body: Incoming, most: usize) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    while let Some(piece) = next_piece(&mut body).await? {
        if all.len() + piece.len() > most {
            return Err(Error::protocol(format!("an answer of over {most} bytes")));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// Bytes as the value of a query's parameter.
pub fn percent_encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                text.push(*byte as char);
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::percent_encode;

    #[test]
    fn paths_become_queries() {
        assert_eq!(percent_encode(b"/a b/\xff&=%"), "/a%20b/%FF%26%3D%25");
    }
}
