//! The server with clients that misbehave in front, and with an agent that lies behind.

mod agent;
mod clients;
mod events;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;
use tine_devices::mmds::Mmds;

use super::{Prepared, Server, Socket, proxy};
use crate::control::{Controller, Handle, Identity, Outcome, StartPlan, State};

/// A server without a machine; agents are what the test says.
struct Bench {
    _dir: TempDir,
    path: PathBuf,
    handle: Handle,
    server: Option<Server>,
    controller: Option<JoinHandle<Outcome>>,
    /// The agent's ends of connections that the server made to it.
    dialled: Receiver<UnixStream>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let identity = Identity {
            id: "test".to_owned(),
            run_dir: Some(dir.path().to_owned()),
        };
        let Ok((controller, handle)) = Controller::new(identity, Mmds::new(1000)).unwrap() else {
            panic!("deleted");
        };
        let (sender, dialled) = channel();
        let socket = Socket::bind(&path).unwrap();
        let server = Prepared::begin()
            .unwrap()
            .serve_with(socket, handle.clone(), dial(sender), 1 << 16)
            .unwrap();
        let run = move || controller.run(StartPlan::default()).unwrap();
        Self {
            _dir: dir,
            path,
            handle,
            server: Some(server),
            controller: Some(std::thread::spawn(run)),
            dialled,
        }
    }

    /// One whose machine is taken to be running.
    fn running() -> Self {
        let bench = Self::new();
        bench.handle.pretend(State::Running, None);
        bench
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        stream
    }

    /// Sends bytes on a connection of their own and returns the status and all that comes.
    fn send(&self, request: &[u8]) -> (u16, String) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        answer(&mut stream)
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.send(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes())
    }

    /// The next connection to the agent.
    fn agent(&self) -> UnixStream {
        let stream = self.dialled.recv_timeout(Duration::from_secs(5)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        stream
    }
}

fn dial(sender: Sender<UnixStream>) -> proxy::Dial {
    Box::new(move |_| {
        let (ours, theirs) = UnixStream::pair()?;
        let _ = sender.send(theirs);
        Ok(ours)
    })
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.handle.signal(15);
        if let Some(server) = self.server.take() {
            server.stop();
        }
        if let Some(controller) = self.controller.take() {
            let outcome = controller.join();
            assert!(outcome.is_ok() || std::thread::panicking());
        }
        assert!(!self.path.exists(), "the socket is removed");
    }
}

/// Reads an answer with a length, or to the end where it has none.
fn answer(stream: &mut UnixStream) -> (u16, String) {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                let number = value.parse::<usize>().ok()?;
                name.eq_ignore_ascii_case("content-length")
                    .then_some(number)
            });
            if head.starts_with("HTTP/1.1 101") || length.is_some_and(|len| body.len() >= len) {
                return (head[9..12].parse().unwrap(), body.to_owned());
            }
        }
        match stream.read(&mut part) {
            Ok(0) => {
                let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
                let status = head.get(9..12).and_then(|s| s.parse().ok());
                return (status.unwrap_or(0), body.to_owned());
            }
            Ok(len) => bytes.extend_from_slice(&part[..len]),
            Err(err) => panic!("{err}, after {text:?}"),
        }
    }
}
