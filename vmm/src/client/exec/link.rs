//! One connection to a command, and how another one takes its place.

use std::time::Duration;

use tine_guest_agent::STREAM_UPGRADE;
use tine_guest_agent::exec::{AttachRequest, ExecRequest};
use tine_guest_agent::frame::Decoder;
use tokio::net::UnixStream;

use crate::client::error::Error;
use crate::client::http::{Body, Http, Upgraded};

/// Between attempts to get a connection back; after the last one it is given up.
const PAUSES_MS: [u64; 14] = [
    0, 10, 20, 50, 100, 200, 400, 800, 1000, 1000, 1500, 1500, 2000, 2000,
];

/// A connection in the agent's frames.
pub struct Link {
    pub stream: UnixStream,
    pub decoder: Decoder,
}

impl From<Upgraded> for Link {
    fn from(upgraded: Upgraded) -> Self {
        let mut decoder = Decoder::new();
        decoder.push(&upgraded.early);
        Self {
            stream: upgraded.stream,
            decoder,
        }
    }
}

/// How often the connection has been lost since it was last of use.
#[derive(Debug, Default)]
pub struct Patience(usize);

impl Patience {
    /// It was of use.
    pub fn renew(&mut self) {
        self.0 = 0;
    }

    /// Waits before the next attempt; `false` when there should be none.
    pub async fn pause(&mut self) -> bool {
        let Some(pause) = PAUSES_MS.get(self.0) else {
            return false;
        };
        self.0 += 1;
        if *pause > 0 {
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        }
        true
    }
}

/// Sends the request. Where it is not known whether it arrived, it is sent again: the machine
/// accepts it once.
pub async fn submit(http: &Http, request: &ExecRequest) -> Result<Link, Error> {
    let mut patience = Patience::default();
    loop {
        let body = Body::json(request);
        match http.upgrade("/v1/exec", STREAM_UPGRADE, body).await {
            Ok(upgraded) => return Ok(upgraded.into()),
            Err(err @ Error::Broken(_)) => {
                if !patience.pause().await {
                    return Err(err);
                }
            }
            Err(err) => return Err(err),
        }
    }
}

/// Attaches to a request that has been accepted before.
pub async fn attach(http: &Http, id: &str, from: AttachRequest) -> Result<Link, Error> {
    let target = format!("/v1/exec/{id}/attach");
    let upgraded = http
        .upgrade(&target, STREAM_UPGRADE, Body::json(&from))
        .await?;
    Ok(upgraded.into())
}

/// Attaches again after the connection broke, and keeps trying for some seconds.
pub async fn attach_again(
    http: &Http,
    id: &str,
    from: AttachRequest,
    patience: &mut Patience,
    broken: Error,
) -> Result<Link, Error> {
    let mut last = broken;
    while patience.pause().await {
        match attach(http, id, from).await {
            Ok(link) => return Ok(link),
            Err(err) if err.is_passing() => last = err,
            Err(err) => return Err(err),
        }
    }
    Err(last)
}
