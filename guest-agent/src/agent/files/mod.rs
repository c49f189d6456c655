//! `/v1/files`: which request does what. Work that waits for a disk runs on the blocking threads, a piece at a time, so
//! that a slow client holds no thread and a large file no memory.

mod content;
pub mod params;
mod tar_format;
mod tar_pack;
mod tar_times;
mod tar_unpack;
mod tree;
mod watch;

use std::io;

use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use tine_guest_agent::files::{Chmod, Mkdir, Remove, Rename, Symlink};
use tokio::sync::mpsc;

use self::params::Params;
use super::fault::Fault;
use super::http::{self, OutBody, Reply};
use super::routes::{body, only, unknown, wrong_method};

/// Bytes moved between disk and connection at once.
const PIECE: usize = 128 * 1024;

/// Answers what is below `/v1/files`.
pub async fn answer(request: Request<Incoming>, rest: &str) -> Reply {
    let params = Params::of(request.uri());
    match (rest, request.method().clone()) {
        ("content", Method::GET) => content::read(&request, &params?).await,
        ("content", Method::PUT) => content::write(&params?, request.into_body()).await,
        ("tar", Method::GET) => {
            let path = params?.path;
            let pack = blocking(move || tar_pack::Pack::new(&path)).await?;
            Ok(http::pieces(stream(pack), "application/x-tar"))
        }
        ("tar", Method::PUT) => {
            let params = params?;
            let unpack = blocking(move || tar_unpack::Unpack::new(&params)).await?;
            http::json(200, &receive(unpack, request.into_body()).await?)
        }
        ("stat", Method::GET) => {
            let params = params?;
            http::json(
                200,
                &blocking(move || tree::stat(&params.path, params.follow)).await?,
            )
        }
        ("list", Method::GET) => {
            let path = params?.path;
            let list = blocking(move || tree::List::new(&path)).await?;
            Ok(http::pieces(stream(list), "application/json"))
        }
        ("watch", Method::GET) => watch::watch(&params?),
        ("mkdir" | "rename" | "remove" | "symlink" | "chmod", _) => {
            only(&request, &Method::POST)?;
            let bytes = body(request).await?;
            match rest {
                "mkdir" => change(Mkdir::from_json(&bytes)?, tree::mkdir).await,
                "rename" => change(Rename::from_json(&bytes)?, tree::rename).await,
                "remove" => change(Remove::from_json(&bytes)?, tree::remove).await,
                "symlink" => change(Symlink::from_json(&bytes)?, tree::symlink).await,
                _ => change(Chmod::from_json(&bytes)?, tree::chmod).await,
            }
        }
        ("content" | "tar" | "stat" | "list" | "watch", _) => Err(wrong_method(&request)),
        _ => Err(unknown(request.uri().path())),
    }
}

async fn change<T: Send + 'static>(wanted: T, act: fn(&T) -> Result<(), Fault>) -> Reply {
    blocking(move || act(&wanted)).await?;
    Ok(http::empty(204))
}

/// Runs something that waits for a disk on a thread for that.
pub async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result,
        Err(_) => Err(Fault::new(500, "internal", "the agent's worker failed")),
    }
}

/// Something that makes a stream of bytes piece by piece.
trait Source: Send + Sized + 'static {
    /// The next piece; empty at the end.
    fn next(&mut self) -> Result<Vec<u8>, Fault>;
}

/// Something that takes a stream of bytes piece by piece.
trait Sink: Send + Sized + 'static {
    /// What is told at the end.
    type Outcome: Send + 'static;
    /// Takes some bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Fault>;
    /// There are no more.
    fn finish(self) -> Result<Self::Outcome, Fault>;
}

/// Streams a source as an answer's body. An error cuts the connection, as the status has been sent long ago.
fn stream<S: Source>(mut source: S) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::task::spawn_local(async move {
        loop {
            let step = move || {
                let piece = source.next();
                Ok((source, piece))
            };
            let piece = match blocking(step).await {
                Ok((back, piece)) => {
                    source = back;
                    piece
                }
                Err(_) => return,
            };
            let piece = match piece {
                Ok(piece) if piece.is_empty() => return,
                Ok(piece) => Ok(Bytes::from(piece)),
                Err(fault) => Err(io::Error::other(fault.info.message)),
            };
            let broken = piece.is_err();
            if sender.send(piece).await.is_err() || broken {
                return;
            }
        }
    });
    receiver
}

/// Feeds a request's body to a sink. Small pieces are gathered, as each hand-over to a thread costs system calls.
async fn receive<S: Sink>(mut sink: S, mut incoming: Incoming) -> Result<S::Outcome, Fault> {
    let mut gathered = Vec::new();
    loop {
        let piece = http::next_piece(&mut incoming).await?;
        let last = piece.is_none();
        gathered.extend_from_slice(&piece.unwrap_or_default());
        if last || gathered.len() >= PIECE / 2 {
            let bytes = std::mem::take(&mut gathered);
            (sink, gathered) = blocking(move || {
                sink.take(&bytes)?;
                Ok((sink, bytes))
            })
            .await?;
            gathered.clear();
        }
        if last {
            return blocking(move || sink.finish()).await;
        }
    }
}

/// A stream of `length` bytes as an answer.
fn sized(status: u16, length: u64, source: impl Source) -> Response<OutBody> {
    let mut response = http::pieces(stream(source), "application/octet-stream");
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_LENGTH, length.into());
    response
}
