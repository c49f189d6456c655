//! The loop: listens, takes signals, and keeps the host told that the agent is there.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::sync::{Notify, Semaphore};

use super::cgroup::Cgroups;
use super::config::{Config, Endpoint};
use super::conn::Conn;
use super::events::Events;
use super::exec::run::open_null;
use super::exec::store::Store;
use super::freeze::Freezer;
use super::reap::Reaper;
use super::sys::Watched;
use super::{Agent, hello, http, race, shutdown, sys};

/// Connections served at the same time; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 256;

/// Threads that files and program starts may keep busy.
const MAX_THREADS: usize = 16;

/// Reading a chunk of a file needs a buffer on the heap and little stack.
const THREAD_STACK: usize = 128 * 1024;

/// Threads are kept for the next request: making one costs a dozen system calls.
const THREAD_KEPT: Duration = Duration::from_secs(600);

/// How long accepting pauses when the system refuses a connection for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The host's address on vsock.
pub const HOST_CID: u32 = 2;

/// Runs until the machine is to end.
pub fn run(config: Config, started_ns: u64) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(MAX_THREADS)
        .thread_stack_size(THREAD_STACK)
        .thread_keep_alive(THREAD_KEPT)
        .build()?;
    let listener = listen(&config.listen)?;
    if !config.init {
        // What PID 1 is given by the kernel.
        sys::become_subreaper()?;
        sys::close_on_exec_from(3)?;
        rustix::process::chdir("/")?;
    }
    let agent = Rc::new(Agent {
        store: Rc::new(Store::new(config.limits)),
        reaper: Reaper::default(),
        cgroups: Cgroups::new(&config.cgroup),
        null: open_null()?,
        shutdown: Cell::new(None),
        ending: Notify::new(),
        run_ended: Notify::new(),
        hello: RefCell::new(hello::introduction(started_ns)),
        refreshed: Notify::new(),
        env: RefCell::default(),
        freezer: Freezer::default(),
        events: Events::default(),
        config,
    });
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let listener = sys::watch(listener, Interest::READABLE)?;
        let signals = sys::watch(sys::signal_fd()?, Interest::READABLE)?;
        tokio::task::spawn_local(take_signals(agent.clone(), signals));
        // From here on an exec is accepted (it waits in the listener's queue for this task), so the host may be told.
        tokio::task::spawn_local(accept(agent.clone(), listener));
        tokio::task::spawn_local(hello::keep(agent.clone()));
        shutdown::wait(&agent).await
    })
}

fn listen(endpoint: &Endpoint) -> io::Result<OwnedFd> {
    match endpoint {
        Endpoint::Vsock(port) => sys::vsock_listen(*port)
            .map_err(|error| io::Error::other(format!("vsock port {port}: {error}"))),
        Endpoint::Unix(path) => {
            let _ = std::fs::remove_file(path);
            let socket = unix_socket()?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(path.as_str())?)?;
            rustix::net::listen(&socket, 128)?;
            Ok(socket)
        }
    }
}

/// A non-blocking Unix stream socket.
pub fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

async fn accept(agent: Rc<Agent>, listener: Watched) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok(mut guard) = listener.readable().await else {
            return;
        };
        match sys::accept(listener.as_fd()) {
            // On vsock only the host may give orders: the guest's own programs can reach this port too.
            Ok((_, Some(cid))) if cid != HOST_CID => {}
            Ok((socket, _)) => {
                if let Ok(conn) = Conn::new(socket) {
                    let agent = agent.clone();
                    tokio::task::spawn_local(async move {
                        let gone = conn.gone();
                        race(http::serve(agent, conn), gone).await;
                        drop(place);
                    });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn take_signals(agent: Rc<Agent>, signals: Watched) {
    let mut entries = [0; sys::SIGNAL_ENTRY * 8];
    loop {
        let Ok(mut guard) = signals.readable().await else {
            return;
        };
        let count = match rustix::io::read(signals.as_fd(), &mut entries) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN) => {
                guard.clear_ready();
                continue;
            }
            Err(_) => continue,
        };
        if count < entries.len() {
            guard.clear_ready();
        }
        for entry in entries[..count].chunks_exact(sys::SIGNAL_ENTRY) {
            let Some(word) = entry.first_chunk() else {
                continue;
            };
            match i32::from_ne_bytes(*word) {
                libc::SIGCHLD => agent.reaper.collect(),
                signal => shutdown::by_signal(&agent, signal),
            }
        }
    }
}
