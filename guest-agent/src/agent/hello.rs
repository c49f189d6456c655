//! Telling the host that the agent is there, and again whenever the connection has dropped: a monitor resets vsock
//! connections when it restores a machine, and the new one learns in this way that the agent is up.

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
use super::{Agent, clock, sys};

/// Between attempts to reach a host that does not listen. There is no event for its starting to.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Says hello for as long as the agent runs.
pub async fn keep(agent: Rc<Agent>, started_ns: u64) {
    let Some(endpoint) = &agent.config.hello else {
        return;
    };
    let system = rustix::system::uname();
    let mut hello = Hello {
        protocol: PROTOCOL_VERSION,
        agent: env!("CARGO_PKG_VERSION").into(),
        kernel: system.release().to_string_lossy().into(),
        boot_id: super::init::read_small("/proc/sys/kernel/random/boot_id")
            .trim_end()
            .into(),
        generation: 1,
        agent_started_ns: started_ns,
        monotonic_ns: 0,
    };
    let mut pause = FIRST_PAUSE;
    loop {
        if say(endpoint, &mut hello).await.is_ok() {
            hello.generation += 1;
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Connects, says it, and returns when the connection has ended. An error means that it was not said.
async fn say(endpoint: &Endpoint, hello: &mut Hello) -> io::Result<()> {
    let conn = Conn::new(connect(endpoint)?)?;
    conn.connected().await?;
    hello.monotonic_ns = clock::monotonic_ns();
    let mut line = serde_json::to_vec(hello)?;
    line.push(b'\n');
    conn.write_all(&line).await?;
    let mut buffer = [0; 64];
    // The host says nothing on this connection; whatever it does, only the end matters.
    while conn.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
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
