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
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tine_jailer::seccomp::{self, Role};
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

/// How long the thread for files waits for the next one: a hundred years.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// The running server.
pub struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    socket: Socket,
}

impl Server {
    /// Serves `socket` on a thread of its own.
    pub fn spawn(socket: Socket, handle: Handle, max_body: usize) -> std_io::Result<Self> {
        Self::spawn_with(socket, handle, proxy::over_vsock(), max_body)
    }

    /// The same with another way to the agent than the machine's vsock.
    pub fn spawn_with(
        mut socket: Socket,
        handle: Handle,
        dial: Dial,
        max_body: usize,
    ) -> std_io::Result<Self> {
        let listener = socket.take_listener()?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .thread_keep_alive(FOR_EVER)
            .on_thread_start(|| {
                seccomp::install(Role::Worker, "api-files")
                    .expect("a filter that was compiled can be installed");
            })
            .build()?;
        let thread = thread::Builder::new()
            .name("api".to_owned())
            .spawn(move || {
                // The thread for files is started before this one may start none any more.
                drop(runtime.spawn_blocking(|| ()));
                seccomp::install(Role::Api, "api")
                    .expect("a filter that was compiled can be installed");
                serve::run(&runtime, listener, handle, dial, max_body, stopped);
            })?;
        Ok(Self {
            stop,
            thread,
            socket,
        })
    }

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
