//! HTTP/1.1 on accepted connections: bodies with limits, answers, upgrades.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use super::conn::Conn;
use super::fault::Fault;
use super::{Agent, race, routes};

/// An answer or the error that becomes one.
pub type Reply = Result<Response<OutBody>, Fault>;

/// The body of an answer.
pub enum OutBody {
    /// Known whole.
    Whole(Bytes),
    /// Pieces as they are made; the sender waits for a slow reader. An error cuts the connection.
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for OutBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Pieces(receiver) => receiver
                .poll_recv(cx)
                .map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// Serves one connection until it ends or is upgraded.
pub async fn serve(agent: Rc<Agent>, conn: Conn) {
    let service = service_fn(|request: Request<Incoming>| {
        let agent = agent.clone();
        async move {
            let reply = routes::answer(agent, request).await;
            Ok::<_, Infallible>(reply.unwrap_or_else(|fault| {
                let status = fault.status;
                raw_json(status, fault.json())
            }))
        }
    });
    // A client that has shut down its writing half still gets its answer.
    let connection = http1::Builder::new()
        .half_close(true)
        .auto_date_header(false)
        .max_headers(64)
        .max_buf_size(64 * 1024)
        .serve_connection(conn, service)
        .with_upgrades();
    // Whatever breaks a connection concerns that connection alone.
    let _ = connection.await;
}

/// An answer with a JSON body.
pub fn json(status: u16, value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value).map_err(|error| Fault::new(500, "internal", error))?;
    Ok(raw_json(status, body))
}

fn raw_json(status: u16, body: Vec<u8>) -> Response<OutBody> {
    let mut response = Response::new(OutBody::Whole(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer without a body.
pub fn empty(status: u16) -> Response<OutBody> {
    let mut response = Response::new(OutBody::Whole(Bytes::new()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::NO_CONTENT);
    response
}

/// An answer whose bytes come as they are made.
pub fn pieces(
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    kind: &'static str,
) -> Response<OutBody> {
    let mut response = Response::new(OutBody::Pieces(receiver));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Most bytes read and dropped of a body that is too large, so that its sender gets to see the answer.
const MAX_DROPPED: usize = 16 << 20;

/// Reads a whole body of at most `limit` bytes.
pub async fn collect(mut body: Incoming, limit: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let mut seen = 0;
    while let Some(piece) = next_piece(&mut body).await? {
        seen += piece.len();
        if seen <= limit {
            bytes.extend_from_slice(&piece);
        } else if seen > MAX_DROPPED {
            break;
        }
    }
    if seen > limit {
        return Err(Fault::new(
            413,
            "too_large",
            format_args!("the body is above {limit} bytes"),
        ));
    }
    Ok(bytes)
}

/// The next piece of a body; `None` at its end.
pub async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Fault> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) => return Err(Fault::bad_request(format_args!("body: {error}"))),
        }
    }
}

/// Whether the request asks for this upgrade; asking for another one is an error.
pub fn wants_upgrade(request: &Request<Incoming>, token: &str) -> Result<bool, Fault> {
    match request.headers().get(UPGRADE) {
        None => Ok(false),
        Some(value) if value.as_bytes().eq_ignore_ascii_case(token.as_bytes()) => Ok(true),
        Some(_) => Err(Fault::bad_request(format_args!(
            "the only upgrade here is {token}"
        ))),
    }
}

/// Switches protocols: answers 101 and hands the connection to `act` with the bytes that came early.
pub fn upgrade<F>(
    pending: hyper::upgrade::OnUpgrade,
    token: &'static str,
    act: impl FnOnce(Conn, Bytes) -> F + 'static,
) -> Response<OutBody>
where
    F: Future<Output = ()> + 'static,
{
    tokio::task::spawn_local(async move {
        let Ok(upgraded) = pending.await else { return };
        if let Ok(parts) = upgraded.downcast::<Conn>() {
            let broken = parts.io.broken();
            race(act(parts.io, parts.read_buf), broken).await;
        }
    });
    let mut response = empty(101);
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
        .headers_mut()
        .insert(UPGRADE, HeaderValue::from_static(token));
    response
}
