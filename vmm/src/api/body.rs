//! Bodies: of answers, of requests to the agent, and reading a request's whole within limits.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

use super::connections::Busy;
use super::fault::Fault;

/// How long a client may take for the body of a request that is read as a whole.
const BODY_TIME: Duration = Duration::from_secs(30);
/// How much, and for how long, is read of a body that is too long.
const MAX_DRAIN: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// A body.
pub struct Body {
    kind: Kind,
    /// The request is being answered for as long as its answer's body lives.
    _busy: Option<Busy>,
}

enum Kind {
    Whole(Bytes),
    /// Passed on as it comes: whoever reads slowly slows the writer down.
    Incoming(Incoming),
    /// Made piece by piece.
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body {
    /// Known whole.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let kind = Kind::Whole(bytes.into());
        Self { kind, _busy: None }
    }

    /// No bytes.
    pub fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// Passed on.
    pub fn incoming(incoming: Incoming) -> Self {
        let kind = Kind::Incoming(incoming);
        Self { kind, _busy: None }
    }

    /// Made piece by piece, until the sender is dropped.
    pub fn pieces(receiver: mpsc::Receiver<Bytes>) -> Self {
        let kind = Kind::Pieces(receiver);
        Self { kind, _busy: None }
    }

    /// Marks the request as being answered while this body is not over.
    pub fn hold(mut self, busy: Busy) -> Self {
        self._busy = Some(busy);
        self
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        Poll::Ready(match &mut this.kind {
            Kind::Whole(bytes) if bytes.is_empty() => None,
            Kind::Whole(bytes) => Some(Ok(Frame::data(std::mem::take(bytes)))),
            Kind::Incoming(incoming) => ready!(Pin::new(incoming).poll_frame(cx)),
            Kind::Pieces(pieces) => ready!(pieces.poll_recv(cx)).map(|p| Ok(Frame::data(p))),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_empty(),
            Kind::Incoming(incoming) => incoming.is_end_stream(),
            Kind::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Incoming(incoming) => incoming.size_hint(),
            Kind::Pieces(_) => SizeHint::default(),
        }
    }
}

/// Reads a whole body of `most` bytes at most.
pub async fn collect(body: Incoming, most: usize) -> Result<Bytes, Fault> {
    match tokio::time::timeout(BODY_TIME, read(body, most)).await {
        Ok(result) => result,
        Err(_) => Err(Fault::new(
            408,
            "timeout",
            format_args!("the request's body did not come within {BODY_TIME:?}"),
        )),
    }
}

async fn read(mut body: Incoming, most: usize) -> Result<Bytes, Fault> {
    let mut pieces: Vec<Bytes> = Vec::new();
    let mut len = 0;
    while let Some(piece) = next(&mut body).await? {
        len += piece.len();
        if len > most || body.size_hint().lower() > (most - len) as u64 {
            // A client that still sends would see its connection break and not the answer.
            let _ = tokio::time::timeout(DRAIN_TIME, drain(body)).await;
            return Err(Fault::too_large(most));
        }
        pieces.push(piece);
    }
    Ok(match pieces.len() {
        0 => Bytes::new(),
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    })
}

/// The next piece of an answer of the agent's; `None` at its end.
pub async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, String> {
    next(body)
        .await
        .map_err(|_| "the agent's answer broke off".to_owned())
}

/// Reads and forgets, up to a point.
async fn drain(mut body: Incoming) {
    let mut len = 0;
    while let Ok(Some(piece)) = next(&mut body).await {
        len += piece.len();
        if len > MAX_DRAIN {
            return;
        }
    }
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Fault> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|_| Fault::bad_request("the request's body broke off"))?;
        // What is no data are trailers, which mean nothing here.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}
