//! Connections that go on as something else: bytes both ways, each as fast as the other side
//! takes them, until both ends have said all.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use hyper::upgrade::{OnUpgrade, Parts};

use crate::api::fault::Fault;
use crate::api::io::Io;
use crate::api::serve::race;

/// Most tunnels at a time.
const MAX_TUNNELS: usize = 256;
/// Bytes moved at once.
const CHUNK: usize = 32 << 10;

/// How many tunnels there are.
#[derive(Default)]
pub struct Tunnels(Rc<Cell<usize>>);

impl Tunnels {
    /// A place for another one.
    pub fn enter(&self) -> Result<Place, Fault> {
        if self.0.get() >= MAX_TUNNELS {
            return Err(Fault::new(
                503,
                "busy",
                format_args!("{MAX_TUNNELS} streams are open already: try again later"),
            ));
        }
        self.0.set(self.0.get() + 1);
        Ok(Place(self.0.clone()))
    }
}

/// A place, until it is dropped.
pub struct Place(Rc<Cell<usize>>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Joins both connections once they have become what was asked for.
pub async fn join(client: OnUpgrade, agent: OnUpgrade, place: Place) {
    let (Ok(client), Ok(agent)) = (client.await, agent.await) else {
        return;
    };
    let (Ok(client), Ok(agent)) = (client.downcast::<Io>(), agent.downcast::<Io>()) else {
        return;
    };
    let (client, to_agent) = open(client);
    let (agent, to_client) = open(agent);
    let gone = Cell::new(false);
    let up = async {
        if copy(&client, &agent, &to_agent).await.is_err() || client.is_gone().await {
            gone.set(true);
        }
    };
    let down = copy(&agent, &client, &to_client);
    // A client that only has no more to say still hears what the agent says; one that has gone
    // away hears nothing.
    race(
        async {
            up.await;
            if !gone.get() {
                std::future::pending::<()>().await;
            }
        },
        down,
    )
    .await;
    drop(place);
}

fn open(parts: Parts<Io>) -> (Io, hyper::body::Bytes) {
    (parts.io, parts.read_buf)
}

/// Copies `early` and then everything, and passes the end on.
async fn copy(from: &Io, to: &Io, early: &[u8]) -> io::Result<()> {
    to.write_all(early).await?;
    let mut bytes = vec![0; CHUNK];
    loop {
        match from.read(&mut bytes).await? {
            0 => return to.end(),
            count => to.write_all(&bytes[..count]).await?,
        }
    }
}
