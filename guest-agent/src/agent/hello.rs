//! Telling the host that the agent is there, and again whenever the connection has ended: a monitor resets vsock
//! connections when it restores a machine.
//!
//! A host that restores a machine need not wait for it: it sends a refresh, which is the quicker way. So after a broken
//! connection there is a pause first, and after a refresh a longer one, as the host knows already. The connection is
//! still made: it is how the agent and a host that cares notice each other's end.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::net::SocketAddrUnix;
use tine_guest_agent::PROTOCOL_VERSION;
use tine_guest_agent::hello::Hello;

use super::config::Endpoint;
use super::conn::Conn;
use super::serve::{HOST_CID, unix_socket};
use super::{Agent, race, sys};

/// Between attempts to reach a host that does not listen. There is no event for its starting to.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// After a connection has ended: a host that has restored the machine comes with a refresh first.
const ENDED_PAUSE: Duration = Duration::from_millis(250);

/// After a refresh: what the host wanted the machine for comes first.
const REFRESHED_PAUSE: Duration = Duration::from_millis(500);

/// What the agent says of itself; `monotonic_ns` is filled in when it is said.
pub fn introduction(started_ns: u64) -> Hello {
    let system = rustix::system::uname();
    Hello {
        protocol: PROTOCOL_VERSION,
        agent: env!("CARGO_PKG_VERSION").into(),
        kernel: system.release().to_string_lossy().into(),
        boot_id: super::init::read_small("/proc/sys/kernel/random/boot_id")
            .trim_end()
            .into(),
        generation: 0,
        hellos: 1,
        agent_started_ns: started_ns,
        monotonic_ns: 0,
    }
}

/// Says hello for as long as the agent runs.
pub async fn keep(agent: Rc<Agent>) {
    let Some(endpoint) = &agent.config.hello else {
        return;
    };
    let mut pause = FIRST_PAUSE;
    loop {
        if say(&agent, endpoint).await.is_ok() {
            agent.hello.borrow_mut().hellos += 1;
            pause = ENDED_PAUSE;
        }
        let refreshed = agent.refreshed.notified();
        if let super::Either::Left(()) = race(refreshed, tokio::time::sleep(pause)).await {
            tokio::time::sleep(REFRESHED_PAUSE).await;
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Connects, says it, and returns when the connection has ended. An error means that it was not said.
async fn say(agent: &Agent, endpoint: &Endpoint) -> io::Result<()> {
    let conn = Conn::new(connect(endpoint)?)?;
    conn.connected().await?;
    let mut line = serde_json::to_vec(&agent.hello_now())?;
    line.push(b'\n');
    conn.write_all(&line).await?;
    let ended = async {
        let mut buffer = [0; 64];
        // The host says nothing on this connection; whatever it does, only the end matters.
        while conn.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    };
    race(ended, conn.broken()).await;
    Ok(())
}

fn connect(endpoint: &Endpoint) -> io::Result<OwnedFd> {
    match endpoint {
        Endpoint::Vsock(port) => sys::vsock_connect(HOST_CID, *port),
        Endpoint::Unix(path) => {
            let socket = unix_socket()?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_str())?)?;
            Ok(socket)
        }
    }
}
