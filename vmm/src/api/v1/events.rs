//! `/v1/events`: what happens, one JSON object a line, from the request on. Empty lines are signs
//! of life, by which a client that has gone away is found out too.

use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::api::body::Body;
use crate::api::fault::{Reply, stream};
use crate::api::guest_events::can_be_heard;
use crate::api::routes::Call;
use crate::control::{Event, EventStream};

/// The longest silence.
const SILENCE: Duration = Duration::from_secs(15);

/// `GET`. The first line is the state that the machine is in; the stream ends with the machine.
pub async fn follow(call: Call) -> Reply {
    call.only_query(&[])?;
    let handle = &call.app.handle;
    let follower = call.app.followers.enter();
    let events = handle.events();
    if handle.look(|status| can_be_heard(status.state)) {
        follower.hears().await;
    }
    let (state, reason) = handle.look(|status| (status.state, status.reason.clone()));
    let first = Event::state(state, reason);
    // A slow reader makes this task wait, and misses events when it is too slow.
    let (pieces, body) = mpsc::channel(1);
    spawn_local(async move {
        copy(first, events, pieces).await;
        drop(follower);
    });
    stream(Body::pieces(body), "application/x-ndjson")
}

async fn copy(first: Event, mut events: EventStream, pieces: mpsc::Sender<Bytes>) {
    let mut last = first.is_last();
    let mut line = Bytes::from(first.line());
    loop {
        if pieces.send(line).await.is_err() || last {
            return;
        }
        (line, last) = match tokio::time::timeout(SILENCE, events.next()).await {
            Ok(Some(event)) => (Bytes::from_owner(event.line), event.last),
            Ok(None) => return,
            Err(_) => (Bytes::from_static(b"\n"), false),
        };
    }
}
