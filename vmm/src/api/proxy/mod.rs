//! Requests for the agent, passed on to it over vsock.
//!
//! The agent alone knows what an exec means; here it is checked that there is an agent, and the
//! bytes go through in both directions as fast as the slower side takes them. The guest is
//! hostile: its heads are bounded, only known headers pass, it has a time to answer in, and a
//! machine that ends ends all that waits for it.

mod headers;
mod pool;
mod tunnel;

use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use tine_guest_agent::AGENT_PORT;

use self::pool::Pool;
use super::body::Body;
use super::fault::{Fault, Reply};
use super::io::Gone;
use crate::control::{Handle, State, Status};

/// How long the agent may take for the head of an answer, where it does not wait for a command.
const HEAD_TIME: Duration = Duration::from_secs(30);

/// How long a broken connection is taken for the first sign of the machine's end.
const AFTERMATH: Duration = Duration::from_millis(50);

/// A request whose client has gone has this time to come to the agent: who starts something and
/// leaves at once means it.
const LAST_WISH: Duration = Duration::from_millis(100);

/// Makes a connection to the agent.
pub type Dial = Box<dyn Fn(&Status) -> io::Result<UnixStream> + Send>;

/// Over the machine's vsock, inside this process.
pub fn over_vsock() -> Dial {
    Box::new(|status| match &status.access {
        Some(access) => access.vsock.connect(AGENT_PORT),
        None => Err(io::ErrorKind::NotConnected.into()),
    })
}

/// The way to the agent.
pub struct Proxy {
    handle: Handle,
    dial: Dial,
    pool: Rc<Pool>,
    tunnels: tunnel::Tunnels,
}

impl Proxy {
    /// A way to the agent of a machine, which need not be there yet.
    pub fn new(handle: Handle, dial: Dial) -> Self {
        Self {
            handle,
            dial,
            pool: Rc::default(),
            tunnels: tunnel::Tunnels::default(),
        }
    }

    /// Passes a request on, and the answer back.
    pub async fn pass(&self, mut request: Request<Incoming>, route: &str) -> Reply {
        self.handle.look(|status| match status.state {
            State::Running | State::Snapshotting => Ok(()),
            _ => Err(not_running(status)),
        })?;
        self.handle.counters().proxied.fetch_add(1, Relaxed);
        let upgrade = headers::upgrade(&request)?;
        let place = match upgrade {
            Some(_) => Some(self.tunnels.enter()?),
            None => None,
        };
        let client = upgrade.map(|_| hyper::upgrade::on(&mut request));
        let gone = request.extensions_mut().remove::<Gone>();
        let waits = may_wait(route, request.uri().query());
        let request = headers::to_agent(request, upgrade);
        let answered = async {
            match waits {
                true => self.send(request).await,
                false => self.ask(request).await,
            }
        };
        let answered = self.while_it_lives(answered);
        let mut answer = while_wanted(gone, answered).await?;
        let response = headers::from_agent(&answer, upgrade)?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let body = answer.into_body();
            return Ok(response.map(|()| Body::incoming(body)));
        }
        let agent = hyper::upgrade::on(&mut answer);
        if let (Some(client), Some(place)) = (client, place) {
            tokio::task::spawn_local(tunnel::join(client, agent, place));
        }
        Ok(response.map(|()| Body::empty()))
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Fault> {
        let dial = || self.handle.look(&self.dial);
        self.pool.send(dial, request).await
    }

    /// Asks the agent something that it answers without waiting for a command.
    pub async fn ask(&self, request: Request<Body>) -> Result<Response<Incoming>, Fault> {
        match tokio::time::timeout(HEAD_TIME, self.send(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::new(
                504,
                "agent_timeout",
                format_args!("the guest's agent did not answer within {HEAD_TIME:?}"),
            )),
        }
    }

    /// Waits for an answer, but not longer than the machine lives.
    async fn while_it_lives(
        &self,
        answered: impl Future<Output = Result<Response<Incoming>, Fault>>,
    ) -> Result<Response<Incoming>, Fault> {
        let mut watch = self.handle.watch();
        let mut over = pin!(async {
            match watch.wait_for(|status| status.state.is_over()).await {
                Ok(status) => ended(&status),
                Err(_) => Fault::new(503, "ending", "the machine's process is ending"),
            }
        });
        let mut answered = pin!(answered);
        let first = poll_fn(|cx| match over.as_mut().poll(cx) {
            Poll::Ready(fault) => Poll::Ready(Err(fault)),
            Poll::Pending => answered.as_mut().poll(cx).map(Ok),
        });
        match first.await {
            Err(over) => Err(over),
            Ok(Ok(answer)) => Ok(answer),
            // A connection that breaks is how the guest's end is seen first; how it ended says
            // more.
            Ok(Err(fault)) => match tokio::time::timeout(AFTERMATH, over).await {
                Ok(over) => Err(over),
                Err(_) => Err(fault),
            },
        }
    }
}

/// Waits for an answer, but not longer than there is somebody to give it to: clients that have given
/// up would keep their places for as long as their commands run. The commands go on.
async fn while_wanted(
    gone: Option<Gone>,
    answered: impl Future<Output = Result<Response<Incoming>, Fault>>,
) -> Result<Response<Incoming>, Fault> {
    let Some(gone) = gone else {
        return answered.await;
    };
    tokio::select! {
        biased;
        answer = answered => answer,
        () = async {
            gone.wait().await;
            tokio::time::sleep(LAST_WISH).await;
        } => Err(Fault::new(400, "client_gone", "the client has closed the connection")),
    }
}

/// Whether the answer may come only when a command has ended.
fn may_wait(route: &str, query: Option<&str>) -> bool {
    let waits = query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("wait")));
    route == "/v1/exec"
        || route == "/v1/exec/{request_id}" && waits
        || route.ends_with("/content")
        || route.ends_with("/tar")
}

fn not_running(status: &Status) -> Fault {
    if status.state.is_over() {
        return ended(status);
    }
    let state = status.state;
    Fault::state(
        state,
        format_args!("the machine is {state}: this needs one that is running"),
    )
}

fn ended(status: &Status) -> Fault {
    let (state, reason) = (status.state, status.reason.as_deref());
    let because = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    Fault::state(state, format_args!("the machine is {state}{because}"))
}
