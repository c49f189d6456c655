//! Connections to the agent, kept for the next request: making one costs the guest a dozen system
//! calls.

use std::cell::RefCell;
use std::io;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{Request, Response};
use tokio::task::spawn_local;

use crate::api::body::Body;
use crate::api::fault::Fault;
use crate::api::io::Io;

/// Connections kept.
const KEPT: usize = 8;
/// Most bytes of the head of an answer, and of its body held at a time.
const MAX_BUFFER: usize = 64 << 10;
/// Most header lines of an answer.
const MAX_HEADERS: usize = 32;

/// Connections that no request uses.
#[derive(Default)]
pub struct Pool(RefCell<Vec<SendRequest<Body>>>);

impl Pool {
    /// Sends a request and returns the answer, its body still to come.
    pub async fn send(
        self: &Rc<Self>,
        dial: impl Fn() -> io::Result<UnixStream>,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, Fault> {
        loop {
            let (mut connection, fresh) = match self.take() {
                Some(connection) => (connection, false),
                None => (connect(dial()).await?, true),
            };
            match connection.try_send_request(request).await {
                Ok(answer) => {
                    self.keep(connection);
                    return Ok(answer);
                }
                // A kept connection may have ended meanwhile. Only what was never sent is sent
                // again.
                Err(mut err) => match err.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(broken(&err.into_error())),
                },
            }
        }
    }

    fn take(&self) -> Option<SendRequest<Body>> {
        let mut kept = self.0.borrow_mut();
        kept.retain(|connection| !connection.is_closed());
        let at = kept.iter().rposition(SendRequest::is_ready)?;
        Some(kept.remove(at))
    }

    /// Keeps a connection once its answer is through. One that became something else never is.
    fn keep(self: &Rc<Self>, mut connection: SendRequest<Body>) {
        let pool = self.clone();
        spawn_local(async move {
            if connection.ready().await.is_ok() && pool.0.borrow().len() < KEPT {
                pool.0.borrow_mut().push(connection);
            }
        });
    }
}

async fn connect(dialled: io::Result<UnixStream>) -> Result<SendRequest<Body>, Fault> {
    let unreachable = |err: io::Error| {
        Fault::new(
            502,
            "agent_unreachable",
            format_args!("cannot reach the guest's agent: {err}"),
        )
    };
    let stream = dialled.map_err(unreachable)?;
    stream.set_nonblocking(true).map_err(unreachable)?;
    let io = Io::to_agent(stream).map_err(unreachable)?;
    let (sender, connection) = Builder::new()
        .max_buf_size(MAX_BUFFER)
        .max_headers(MAX_HEADERS)
        .handshake(io)
        .await
        .map_err(|err| broken(&err))?;
    // Whatever ends it, the request under way is told.
    spawn_local(async move { drop(connection.with_upgrades().await) });
    Ok(sender)
}

fn broken(err: &hyper::Error) -> Fault {
    let source = std::error::Error::source(err);
    let detail = source.map_or_else(String::new, |source| format!(": {source}"));
    Fault::new(
        502,
        "agent_broken",
        format_args!("the connection to the guest's agent broke: {err}{detail}"),
    )
}
