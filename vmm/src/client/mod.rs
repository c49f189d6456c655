//! A running machine from outside: an async client of its socket.
//!
//! It works in any tokio runtime. What the guest says comes through the machine's socket as it
//! is, and is not trusted: everything is bounded before it is kept.
//!
//! ```no_run
//! use tine::client::{ExecRequest, Machine, argv};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = Machine::connect("/run/tine/build/api.sock").await?;
//!
//! // Collected: the record has the output.
//! let record = machine.run(ExecRequest { argv: argv(["uname", "-a"]), ..Default::default() }).await?;
//! println!("{:?}: {}", record.exit_code, record.stdout);
//!
//! // Live: streams both ways. The request id makes it safe to send again.
//! let mut exec = machine
//!     .exec(ExecRequest {
//!         request_id: "job-17".into(),
//!         argv: argv(["wc", "-c"]),
//!         stdin: true,
//!         ..Default::default()
//!     })
//!     .await?;
//! let mut stdin = exec.stdin.take().expect("asked for");
//! stdin.write_all(b"hello").await?;
//! drop(stdin);
//! let mut count = String::new();
//! exec.stdout.take().expect("not taken").read_to_string(&mut count).await?;
//! let record = exec.wait().await?;
//! assert_eq!((count.trim(), record.exit_code), ("5", Some(0)));
//! # Ok(())
//! # }
//! ```

mod error;
mod exec;
mod files;
mod http;
mod io;
mod port;
mod status;
mod stream;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
pub use hyper::body::Bytes;
use serde::Serialize;
pub use tine_guest_agent::exec::{AttachRequest, ExecRequest, Record, Started, State, TtySize};
use tine_guest_agent::octets::Octets;
use tine_guest_agent::status::{Health, Process, ShutdownRequest, SignalRequest};
use tine_guest_agent::{RAW_UPGRADE, exec as protocol};

pub use self::error::Error;
pub use self::exec::{Attach, Control, Exec, Output, Stdin};
pub use self::files::{Files, WriteOptions};
use self::http::{Body, Http};
pub use self::port::Port;
pub use self::status::{Event, Forked, Status, Taken, WorkingSet};
pub use self::stream::{Content, Lines};

/// Times a collected command is sent when the connection breaks.
const ATTEMPTS: u32 = 5;

/// A machine, by its socket. Each request has a connection of its own; clones are the same machine.
#[derive(Debug, Clone)]
pub struct Machine(Http);

impl Machine {
    /// The machine at a socket, which has to accept a connection now.
    pub async fn connect(socket: impl Into<PathBuf>) -> Result<Self, Error> {
        let machine = Self::at(socket);
        machine.0.connect().await?;
        Ok(machine)
    }

    /// The machine at a socket, whether or not it is there yet. The path may lead through links, but must
    /// not end in one, which a machine could have left in its directory.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self(Http::at(socket))
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        self.0.path()
    }

    /// What the machine is doing.
    pub async fn status(&self) -> Result<Status, Error> {
        self.ask_status("/v1/machine").await
    }

    async fn ask_status(&self, target: &str) -> Result<Status, Error> {
        let answer = self.0.send(Method::GET, target, None, Body::empty());
        let answer = answer.await?;
        let peer = http::peer(&answer);
        let mut status: Status = http::read_json(answer, target).await?;
        // In a PID namespace of its own the process does not know its number here.
        status.pid = status.pid.map(|own| peer.unwrap_or(own));
        Ok(status)
    }

    /// Waits until the machine is running: an exec sent from then on is accepted. A machine that
    /// will never be, or is not in time, is an error.
    pub async fn wait_until_running(&self, limit: Duration) -> Result<Status, Error> {
        let millis = limit.as_millis();
        self.ask_status(&format!("/v1/machine?wait=running&timeout={millis}ms"))
            .await
    }

    /// Follows what happens, from now on; the first event is the state that the machine is in.
    pub async fn events(&self) -> Result<Lines<Event>, Error> {
        let answer = self.0.send(Method::GET, "/v1/events", None, Body::empty());
        Ok(Lines::new(answer.await?.into_body()))
    }

    /// Deletes the machine. When this returns the deletion is recorded; the release follows.
    pub async fn delete(&self) -> Result<(), Error> {
        self.0
            .done(Method::DELETE, "/v1/machine", Body::empty())
            .await
    }

    /// Starts a command and gives its streams. A request without an id gets one.
    ///
    /// When the connection breaks, the client attaches to the same command again. An id that the
    /// machine has seen is not run again: the same request gets the command that it named first,
    /// another one is refused.
    pub async fn exec(&self, mut request: ExecRequest) -> Result<Exec, Error> {
        name(&mut request);
        Exec::submit(&self.0, &request).await
    }

    /// Attaches to a command that was started before.
    pub async fn attach(&self, request_id: &str, how: Attach) -> Result<Exec, Error> {
        check_id(request_id)?;
        Exec::attach(&self.0, request_id, how).await
    }

    /// Runs a command to its end and gives the record with its output, as far as it is kept. A
    /// request without an id gets one.
    pub async fn run(&self, mut request: ExecRequest) -> Result<Record, Error> {
        name(&mut request);
        let mut attempt = 0;
        loop {
            let body = Body::json(&request);
            match self.0.json(Method::POST, "/v1/exec", body).await {
                // Whether it arrived is not known; it is accepted once.
                Err(Error::Broken(_)) if attempt < ATTEMPTS => {
                    tokio::time::sleep(Duration::from_millis(20 << attempt)).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// What is known of a command, with its output as far as it is kept.
    pub async fn record(&self, request_id: &str) -> Result<Record, Error> {
        check_id(request_id)?;
        self.get(&format!("/v1/exec/{request_id}")).await
    }

    /// All commands that the machine knows of, without their output.
    pub async fn records(&self) -> Result<Vec<Record>, Error> {
        self.get("/v1/exec").await
    }

    /// Ends a command and all its children, and gives its record.
    pub async fn cancel(&self, request_id: &str) -> Result<Record, Error> {
        check_id(request_id)?;
        let target = format!("/v1/exec/{request_id}?wait=true");
        self.0.json(Method::DELETE, &target, Body::empty()).await
    }

    /// Sends a signal to a command's process group.
    pub async fn signal(&self, request_id: &str, signal: i32) -> Result<(), Error> {
        check_id(request_id)?;
        let target = format!("/v1/exec/{request_id}/signal");
        let body = Body::json(&SignalRequest { signal });
        self.0.done(Method::POST, &target, body).await
    }

    /// The guest's files.
    pub fn files(&self) -> Files {
        Files::of(self.0.clone())
    }

    /// Connects to a TCP port of the guest's loopback.
    pub async fn port(&self, number: u16) -> Result<Port, Error> {
        let target = format!("/v1/ports/{number}");
        let upgraded = self.0.upgrade(&target, RAW_UPGRADE, Body::empty());
        Ok(upgraded.await?.into())
    }

    /// The guest's processes.
    pub async fn processes(&self) -> Result<Vec<Process>, Error> {
        self.get("/v1/processes").await
    }

    /// Sends a signal to a process of the guest.
    pub async fn signal_process(&self, pid: u32, signal: i32) -> Result<(), Error> {
        let target = format!("/v1/processes/{pid}/signal");
        let body = Body::json(&SignalRequest { signal });
        self.0.done(Method::POST, &target, body).await
    }

    /// The guest's health: memory, load, disk.
    pub async fn health(&self) -> Result<Health, Error> {
        self.get("/v1/health").await
    }

    /// Asks the guest to end in good order: processes ended, file systems written.
    pub async fn shut_down(&self, request: &ShutdownRequest) -> Result<(), Error> {
        let body = Body::json(request);
        self.0.done(Method::POST, "/v1/shutdown", body).await
    }

    /// A `PUT` of the configuration or of an action, before the start.
    pub async fn put(&self, path: &str, value: &impl Serialize) -> Result<(), Error> {
        self.0.done(Method::PUT, path, Body::json(value)).await
    }

    /// A `PATCH` of what can be changed while the machine runs.
    pub async fn patch(&self, path: &str, value: &impl Serialize) -> Result<(), Error> {
        self.0.done(Method::PATCH, path, Body::json(value)).await
    }

    /// Takes a full snapshot into a directory, which is not there yet: an absolute path. When this
    /// returns it is whole and durable. With `stop` the machine then ends.
    pub async fn snapshot(&self, dir: &Path, stop: bool) -> Result<Taken, Error> {
        let body = Body::json(&serde_json::json!({ "path": dir, "stop": stop }));
        self.0.json(Method::PUT, "/v1/snapshots", body).await
    }

    /// Makes `count` copies of the machine ready to be taken by other processes, until nobody has
    /// taken one for `patience`. The machine goes on.
    pub async fn fork(&self, count: u32, patience: Duration) -> Result<Forked, Error> {
        let patience = patience.as_millis() as u64;
        let body = Body::json(&serde_json::json!({ "count": count, "timeout_ms": patience }));
        self.0.json(Method::POST, "/v1/fork", body).await
    }

    /// Tells a restored or forked machine's guest, which has waited, the time and random numbers of
    /// now.
    pub async fn refresh(&self) -> Result<(), Error> {
        let body = Body::json(&serde_json::Map::new());
        self.0.done(Method::POST, "/v1/refresh", body).await
    }

    /// Writes what the machine has touched of the snapshot that it was made of to a file, an absolute
    /// path: `working_set` of `PUT /v1/restore` has it read ahead for others.
    pub async fn record_working_set(&self, file: &Path) -> Result<WorkingSet, Error> {
        let body = Body::json(&serde_json::json!({ "path": file }));
        self.0.json(Method::PUT, "/v1/working-set", body).await
    }

    /// Takes a snapshot of the disks alone, whose file systems the guest's agent holds still for the
    /// moment, into a directory, which is not there yet: an absolute path. With `stop` the machine
    /// then ends.
    pub async fn snapshot_disks(&self, dir: &Path, stop: bool) -> Result<Taken, Error> {
        let request = serde_json::json!({ "path": dir, "stop": stop, "kind": "disk" });
        self.0
            .json(Method::PUT, "/v1/snapshots", Body::json(&request))
            .await
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, target: &str) -> Result<T, Error> {
        self.0.json(Method::GET, target, Body::empty()).await
    }
}

/// Words as a program and its arguments.
pub fn argv<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Vec<Octets> {
    use std::os::unix::ffi::OsStrExt;
    let words = words.into_iter();
    words.map(|word| word.as_ref().as_bytes().into()).collect()
}

/// An id that no other request has.
pub fn new_request_id() -> String {
    let mut bytes = [0; 12];
    // The kernel's generator fails only before it is ready, on hosts that have just booted, and
    // then it waits instead.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name(request: &mut ExecRequest) {
    if request.request_id.is_empty() {
        request.request_id = new_request_id();
    }
}

/// An id becomes part of a path: what cannot be one goes nowhere.
fn check_id(request_id: &str) -> Result<(), Error> {
    protocol::check_request_id(request_id).map_err(|err| Error::Refused {
        status: 400,
        code: "bad_request".into(),
        message: err.to_string(),
        errno: None,
        state: None,
    })
}

#[cfg(test)]
mod tests;
