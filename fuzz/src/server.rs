//! The API's server with its controller, in this process, and its clients.
//!
//! Requests name files to create and to write. So the server's threads see a directory of their own
//! as the root of all files, and a network of their own; there is no `/dev/kvm` there, and so never a
//! machine.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tempfile::TempDir;
use tine::api::{self, Dial, Prepared, Socket};
use tine::control::{Controller, Handle, Identity, Outcome, StartPlan, State};
use tine::logger::{self, Level};
use tine_devices::mmds::Mmds;

/// Nothing here takes this long, on whatever machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// An answer that has not come by then is one that waits, for an event or a state.
const WAITS: Duration = Duration::from_millis(150);

/// The socket, to the server's threads.
const SOCKET: &str = "/api.sock";
/// Where the machine's records are, to them.
const RUN_DIR: &str = "/run";
/// Where the files of the description's examples are.
const FILES: &str = "srv";

type Job = Box<dyn FnOnce() + Send>;

/// Where servers live: a thread with a root of its own.
pub struct Place {
    root: TempDir,
    jobs: Sender<Job>,
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Place {
    /// Makes one.
    ///
    /// # Panics
    ///
    /// When this process may not change its root: requests would then be about the host's own files.
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let (jobs, given) = channel::<Job>();
        let path = root.path().to_owned();
        let (told, confined) = channel();
        thread::spawn(move || {
            let _ = told.send(confine(&path));
            for job in given {
                job();
            }
        });
        let confined = confined.recv().expect("an answer");
        confined.expect(
            "a root of their own for the server's threads: run this as root, or by `unshare -r`",
        );
        let place = Self { root, jobs };
        place.tidy();
        place
    }

    /// What the examples name, and nothing else.
    fn tidy(&self) {
        // Before files go that it writes to.
        let null = Some(Path::new("/dev/null"));
        logger::configure(null, Some(Level::Warning), Some(false)).expect("a log");
        for entry in std::fs::read_dir(self.root.path()).expect("the root") {
            let path = entry.expect("an entry").path();
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
        }
        let files = self.root.path().join(FILES);
        std::fs::create_dir(&files).expect("a directory");
        std::fs::create_dir(self.root.path().join(&RUN_DIR[1..])).expect("a directory");
        for name in ["vmlinux", "disk.img", "other.img", "initramfs.cpio"] {
            std::fs::write(files.join(name), [0; 4096]).expect("a file");
        }
        // One that nobody has open at its other end.
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, files.join("fifo"), FileType::Fifo, mode, 0).expect("a FIFO");
    }

    /// Starts a server. It reaches its agent by `agent`; with one, its machine is taken to be running.
    pub fn serve(&self, agent: Option<Dial>) -> Server {
        let (told, made) = channel();
        let job = move || drop(told.send(start(agent)));
        self.jobs.send(Box::new(job)).expect("the thread");
        made.recv().expect("a server")
    }

    /// Connects to the server.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.root.path().join(&SOCKET[1..])).expect("a server");
        stream.set_read_timeout(Some(WAITS)).expect("a time limit");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a time limit");
        stream
    }

    /// Asks for something that goes through the server and the controller, and ends both.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub fn end(&self, server: Server) {
        let body = r#"{"action_type":"FlushMetrics"}"#;
        let len = body.len();
        let flush = format!(
            "PUT /actions HTTP/1.1\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
        );
        let mut stream = self.connect();
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a time limit");
        ask(&mut stream, flush.as_bytes());
        let answer = hear(&mut stream).expect("it hangs");
        let statuses = crate::answers::statuses(&answer);
        assert!(
            matches!(statuses[..], [204 | 400 | 409 | 503]),
            "{}",
            answer.escape_ascii()
        );
        let (stopped, stop) = channel();
        let job = move || {
            server.stop();
            let _ = stopped.send(());
        };
        self.jobs.send(Box::new(job)).expect("the thread");
        stop.recv_timeout(PATIENCE).expect("it does not end");
        self.tidy();
    }
}

/// Takes the calling thread, and those that it starts, away from the host's files and network.
fn confine(root: &Path) -> rustix::io::Result<()> {
    // SAFETY: the table of descriptors stays the process's.
    unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNET) }?;
    rustix::process::chroot(root)?;
    rustix::process::chdir("/")
}

/// A server.
pub struct Server {
    handle: Handle,
    server: api::Server,
    controller: JoinHandle<Outcome>,
}

fn start(agent: Option<Dial>) -> Server {
    let identity = Identity {
        id: "fuzz".to_owned(),
        run_dir: Some(RUN_DIR.into()),
    };
    let made = Controller::new(identity, Mmds::new(51200)).expect("a controller");
    let (controller, handle) = made.expect("no deletion");
    let socket = Socket::bind(Path::new(SOCKET)).expect("a socket");
    let ready = Prepared::begin().expect("a thread");
    let shared = handle.clone();
    let server = match agent {
        Some(dial) => {
            handle.pretend(State::Running, None);
            ready.serve_with(socket, shared, dial, api::DEFAULT_MAX_BODY)
        }
        None => ready.serve(socket, shared, api::DEFAULT_MAX_BODY),
    };
    let run = move || controller.run(StartPlan::default()).expect("an end");
    Server {
        handle,
        server: server.expect("a server"),
        controller: thread::spawn(run),
    }
}

impl Server {
    fn stop(self) {
        self.handle.signal(15);
        self.server.stop();
        self.controller.join().expect("an end in good order");
    }
}

/// The agent's ends of the connections that a server makes to it, and what makes them.
pub fn agent() -> (Dial, Receiver<UnixStream>) {
    let (sender, dialled) = channel();
    let dial: Dial = Box::new(move |_| {
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_read_timeout(Some(PATIENCE))?;
        let _ = sender.send(theirs);
        Ok(ours)
    });
    (dial, dialled)
}

/// Sends all of a client's words, and that they are all.
pub fn ask(stream: &mut UnixStream, bytes: &[u8]) {
    // It may have been told to go already; but the server has to read, or to close.
    match stream.write_all(bytes) {
        Err(err) if err.kind() == ErrorKind::WouldBlock => panic!("it does not read"),
        _ => {}
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Takes what comes up to the end; `None` when something is waited for.
pub fn hear(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(err) if err.kind() == ErrorKind::WouldBlock => None,
        // A connection that is closed before all was read is reset.
        _ => Some(answer),
    }
}
