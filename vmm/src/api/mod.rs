//! The API: HTTP/1.1 on a Unix socket, on a thread of its own.
//!
//! Two parts share it. The known API (`known`) keeps the paths, fields, codes and the
//! error shape that existing clients speak; `/v1` is what it has no words for. `openapi.yaml`
//! beside this crate's manifest describes both, and a test holds the table of routes to it.
//!
//! A client can slow down or break its own connection and no other: heads, bodies, connections
//! and the time for a request are limited, and nothing here waits for the controller on this
//! thread.

mod body;
mod connections;
mod fault;
mod guest_events;
mod io;
mod known;
mod known_devices;
mod known_refused;
mod known_snapshot;
mod proxy;
mod routes;
mod serve;
mod v1;
mod warnings;

use std::io as std_io;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use tine_jailer::seccomp::{self, Role};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub use crate::listen::{ListenError, Socket};
pub use proxy::Dial;
pub use routes::{Owner, Route, table};
pub use v1::saved as saved_config;

use crate::control::Handle;

/// The version of the known API that is spoken here.
pub const KNOWN_API_VERSION: &str = "1.17.0";
/// Most bytes of a JSON body, when nothing else is asked for.
pub const DEFAULT_MAX_BODY: usize = 1 << 20;
/// Most bytes of a request's head.
pub const MAX_HEAD: usize = 16 << 10;
/// Most header lines of a request.
pub const MAX_HEADERS: usize = 64;
/// Most connections at a time.
pub const MAX_CONNECTIONS: usize = 128;

/// A server's thread that waits for what it is to serve. Started first of all, it gets ready beside
/// the rest of the process's start, and the first answer comes sooner.
pub struct Prepared {
    work: Sender<Work>,
    ready: Receiver<std_io::Result<()>>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

struct Work {
    listener: UnixListener,
    handle: Handle,
    dial: Dial,
    max_body: usize,
}

impl Prepared {
    /// Starts the thread, which takes on its filter at once: the mode has been set by then
    /// ([`seccomp::set_mode`]). It ends with this value.
    pub fn begin() -> std_io::Result<Self> {
        let (work, given) = mpsc::channel();
        let (told, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("api".to_owned())
            .spawn(move || {
                let runtime = match runtime() {
                    Ok(runtime) => runtime,
                    Err(err) => return drop(told.send(Err(err))),
                };
                let _ = told.send(Ok(()));
                restrict();
                let Ok(work) = given.recv() else { return };
                serve::run(&runtime, work, stopped);
            })?;
        Ok(Self {
            work,
            ready,
            stop,
            thread,
        })
    }

    /// Has it serve `socket`.
    pub fn serve(self, socket: Socket, handle: Handle, max_body: usize) -> std_io::Result<Server> {
        self.serve_with(socket, handle, proxy::over_vsock(), max_body)
    }

    /// The same with another way to the agent than the machine's vsock.
    pub fn serve_with(
        self,
        mut socket: Socket,
        handle: Handle,
        dial: Dial,
        max_body: usize,
    ) -> std_io::Result<Server> {
        let gone = || std_io::Error::other("the server's thread is gone");
        self.ready.recv().map_err(|_| gone())??;
        let work = Work {
            listener: socket.take_listener()?,
            handle,
            dial,
            max_body,
        };
        self.work.send(work).map_err(|_| gone())?;
        Ok(Server {
            stop: self.stop,
            thread: self.thread,
            socket,
        })
    }
}

fn restrict() {
    seccomp::install(Role::Api, "api").expect("a filter that was compiled can be installed");
}

fn runtime() -> std_io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // More than clients that are waited for at once; room for them is written to at the start.
        .max_io_events_per_tick(64)
        .build()
}

/// The running server.
pub struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    socket: Socket,
}

impl Server {
    /// Takes no more connections, lets the answers under way go out for a moment, and removes the
    /// socket.
    pub fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
        drop(self.socket);
    }
}

#[cfg(test)]
mod tests;
