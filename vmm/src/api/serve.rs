//! The server's loop: accepts, reads requests, answers them.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::UPGRADE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use super::body::Body;
use super::connections::{Connections, Slot};
use super::fault::{Fault, Shape};
use super::guest_events::{self, Followers};
use super::io::{Io, watch};
use super::proxy::Proxy;
use super::{MAX_HEAD, MAX_HEADERS, Work, routes, warnings};
use crate::control::Handle;
use crate::logger::{self, Level};

/// How long accepting pauses when the host has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long answers under way may take when the process ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// For a client that comes when all places are taken.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\
    Content-Type: application/json\r\nContent-Length: 58\r\n\r\n\
    {\"fault_message\":\"too many connections: try again later\"}\r\n";

/// What all requests share.
pub struct App {
    /// The machine.
    pub handle: Handle,
    /// The way to the agent.
    pub proxy: Proxy,
    /// Who follows the events.
    pub followers: Rc<Followers>,
    /// Most bytes of a JSON body.
    pub max_body: usize,
}

/// Serves until told to stop.
pub fn run(runtime: &Runtime, work: Work, stopped: oneshot::Receiver<()>) {
    let Work {
        listener,
        handle,
        dial,
        max_body,
    } = work;
    let connections = Connections::new(handle.clone());
    let app = Rc::new(App {
        proxy: Proxy::new(handle.clone(), dial),
        followers: Rc::default(),
        handle,
        max_body,
    });
    LocalSet::new().block_on(runtime, async {
        let listener = match watch(listener, Interest::READABLE) {
            Ok(listener) => listener,
            Err(err) => return logger::log(Level::Error, format_args!("cannot serve: {err}")),
        };
        spawn_local(warnings::watch(app.clone()));
        spawn_local(guest_events::relay(app.clone()));
        race(accept(listener, app, connections.clone()), stopped).await;
        let answered = async {
            while connections.any_busy() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            // What has been answered has still to be written.
            tokio::task::yield_now().await;
        };
        let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
    });
}

async fn accept(listener: AsyncFd<UnixListener>, app: Rc<App>, connections: Rc<Connections>) {
    loop {
        let Ok(mut guard) = listener.readable().await else {
            return;
        };
        match rustix::net::accept_with(
            listener.get_ref(),
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        ) {
            Ok(stream) => match connections.admit() {
                Some((slot, admitted)) => {
                    let app = app.clone();
                    spawn_local(async move {
                        serve(app, stream.into(), slot).await;
                        drop(admitted);
                    });
                }
                None => drop(rustix::net::send(&stream, NO_ROOM, SendFlags::NOSIGNAL)),
            },
            Err(Errno::AGAIN) => guard.clear_ready(),
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            Err(err) => {
                logger::log(Level::Error, format_args!("cannot accept: {err}"));
                connections.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection until it ends, stalls, has to make room, or becomes something else.
async fn serve(app: Rc<App>, stream: UnixStream, slot: Arc<Slot>) {
    let Ok(io) = Io::of_client(stream, slot.clone()) else {
        return;
    };
    let counters = app.handle.clone();
    let service = {
        let (slot, gone) = (slot.clone(), io.gone());
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(gone.clone());
            let upgrade = request.headers().contains_key(UPGRADE);
            let (app, busy) = (app.clone(), slot.begin(upgrade));
            async move {
                let response = answer(app, request).await;
                Ok::<_, Infallible>(response.map(|body| body.hold(busy)))
            }
        })
    };
    // A client that has shut down its writing half still gets its answer.
    let connection = http1::Builder::new()
        .half_close(true)
        .auto_date_header(false)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(io, service)
        .with_upgrades();
    let stalled = async {
        slot.stalled().await;
        counters.counters().closed.fetch_add(1, Relaxed);
    };
    // Whatever breaks a connection concerns that connection alone.
    race(connection, race(stalled, slot.end.notified())).await;
}

async fn answer(app: Rc<App>, request: Request<Incoming>) -> Response<Body> {
    let shape = Shape::of(request.uri().path());
    if logger::is_on(Level::Debug) {
        let (method, path) = (request.method(), request.uri().path());
        logger::log(Level::Debug, format_args!("request: {method} {path}"));
    }
    let handle = app.handle.clone();
    let reply = match request.uri().authority() {
        // `GET none HTTP/1.1`: a host, not a path.
        Some(_) => Err(Fault::bad_request("the request's target is not a path")),
        None => routes::answer(app, request).await,
    };
    let response = reply.unwrap_or_else(|fault| fault.into_response(shape));
    let counters = handle.counters();
    let counter = match response.status().as_u16() {
        400..=499 => &counters.refused,
        500.. => &counters.failed,
        _ => &counters.answered,
    };
    counter.fetch_add(1, Relaxed);
    response
}

/// Waits for whichever ends first.
pub async fn race(one: impl Future, other: impl Future) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| {
        let ended = one.as_mut().poll(cx).is_ready() || other.as_mut().poll(cx).is_ready();
        if ended {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
