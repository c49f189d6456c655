//! Forking: the machine's state is taken as for a snapshot, and instead of being written it is handed
//! out by descriptor to processes that come for it at a socket. What they make of it shares memory
//! and disks with the image, and the image is gone with the last of them.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tine_jailer::seccomp::Role;
use tokio::sync::oneshot;

use super::command::{Command, Refusal};
use super::controller::Controller;
use super::handle::Permit;
use super::snapshot::Writing;
use crate::listen::Socket;
use crate::logger::{self, Level};
use crate::snapshot::{HandOver, Place, Save, SaveDisks};
use crate::threads::Starter;

/// How long those who have taken a copy may take to give its disks' files names.
const NAMING: Duration = Duration::from_secs(10);
/// In messages.
const ACTION: &str = "fork the machine";

/// Which copies are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkRequest {
    /// How many times the machine can be taken.
    pub count: u32,
    /// Where; in the run directory when not given.
    pub socket: Option<PathBuf>,
    /// How long it waits for the next one who takes one: whoever asked for them may be gone.
    pub patience: Duration,
}

/// Copies that can be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forked {
    /// Where they are taken.
    pub socket: PathBuf,
    /// How long the guest stood still for it.
    pub pause: Duration,
    /// The generation of the copies.
    pub generation: u64,
    /// Where the layers of the disks have names, as in a snapshot, until the copies are taken.
    pub layers: Option<PathBuf>,
}

/// Where the answer goes.
pub(super) type ForkReply = oneshot::Sender<Result<Forked, Refusal>>;

/// A socket where a captured machine is handed out; dropped, it is closed.
pub(super) struct HandingOut {
    /// Its thread's: with that one's end it is closed, also to those who have not been served.
    listener: Weak<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl HandingOut {
    /// Serves `count` of those who connect, by a thread of its own.
    fn begin(mut socket: Socket, what: Ready, request: &ForkRequest) -> io::Result<Self> {
        let served = Arc::new(socket.take_listener()?);
        let listener = Arc::downgrade(&served);
        let (count, patience) = (request.count, request.patience);
        let serve = move || {
            let mut takers = Takers::default();
            if let Err(err) = hand_out(&served, &what.hand_over, count, patience, &mut takers) {
                logger::log(Level::Warning, format_args!("handing a fork out: {err}"));
            }
            drop(served);
            takers.wait();
            drop((socket, what));
        };
        // By one that may do so: see the roles' rules.
        let thread = Starter::default().spawn("fork", Role::Fork, serve)?;
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }

    /// Somebody may still come.
    pub fn goes_on(&self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for HandingOut {
    fn drop(&mut self) {
        // Its thread takes nobody in any more, and removes the socket and the directory.
        if let Some(listener) = self.listener.upgrade() {
            let _ = shutdown(&*listener, Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by then.
            let _ = thread.join();
        }
    }
}

/// Those who have taken a copy and not closed the connection yet: they may still be giving the disks'
/// files names of their own.
#[derive(Default)]
struct Takers(Vec<UnixStream>);

impl Takers {
    fn add(&mut self, stream: UnixStream) {
        self.0.retain(|taker| !has_closed(taker, Duration::ZERO));
        self.0.push(stream);
    }

    fn wait(self) {
        let until = Instant::now() + NAMING;
        for taker in self.0 {
            has_closed(&taker, until.saturating_duration_since(Instant::now()));
        }
    }
}

/// Whether the other end closes a connection, on which it has nothing to say, within a time.
fn has_closed(stream: &UnixStream, limit: Duration) -> bool {
    let limit = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let mut polled = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&limit)).is_ok_and(|count| count > 0)
}

/// Takes connections until all copies are taken, nobody has taken one for a time, or the socket is shut
/// down.
fn hand_out(
    listener: &UnixListener,
    what: &HandOver,
    count: u32,
    patience: Duration,
    takers: &mut Takers,
) -> io::Result<()> {
    let mut left = count;
    let mut until = Instant::now() + patience;
    while left > 0 {
        let wait = until.saturating_duration_since(Instant::now());
        // Also while there is always one more who comes, and goes before it is served.
        if wait.is_zero() {
            return Ok(());
        }
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut polled = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        match poll(&mut polled, Some(&wait)) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(err) => return Err(err.into()),
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // It was shut down.
            Err(err) if err.kind() == io::ErrorKind::InvalidInput => return Ok(()),
            // Whoever came has gone again.
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => continue,
            Err(err) if err.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(err) => return Err(err),
        };
        match what.send(&stream) {
            Ok(()) => {
                left -= 1;
                until = Instant::now() + patience;
                takers.add(stream);
            }
            // That one has nothing; the next one may.
            Err(err) => logger::log(Level::Warning, format_args!("handing a fork out: {err}")),
        }
    }
    Ok(())
}

impl Controller {
    /// Takes the machine's state and lets it go on; the answer comes when it can be taken.
    pub(super) fn fork(&mut self, request: ForkRequest, permit: Permit, reply: ForkReply) {
        if let Err((refusal, reply)) = self.begin_fork(request, permit, reply) {
            logger::log(Level::Error, &refusal);
            // The one who asked may have gone away.
            let _ = reply.send(Err(refusal));
        }
    }

    fn begin_fork(
        &mut self,
        request: ForkRequest,
        permit: Permit,
        reply: ForkReply,
    ) -> Result<(), (Refusal, ForkReply)> {
        let run_dir = self.shared.identity.run_dir.clone();
        let path = match socket_path(&request, run_dir.as_deref()) {
            Ok(path) => path,
            Err(refusal) => return Err((refusal, reply)),
        };
        // First, so that the machine does not stand still for nothing.
        let socket = match Socket::bind_new(&path) {
            Ok(socket) => socket,
            Err(err) => return Err((Refusal::failed(ACTION, err), reply)),
        };
        let (save, pause) = match self.take(&Place::Fork(path.clone()), false, ACTION) {
            Ok(taken) => taken,
            Err(refusal) => return Err((refusal, reply)),
        };
        let shared = self.shared.clone();
        let prepare = move || {
            let generation = save.generation.saturating_add(1);
            let dir = run_dir.unwrap_or_else(std::env::temp_dir);
            let ready = ready(&save, &dir);
            let disks = ready.as_ref().ok().and_then(|ready| ready.disks.as_ref());
            let forked = Forked {
                socket: path,
                pause,
                generation,
                layers: disks.map(|disks| disks.0.clone()),
            };
            // Lets go of the frozen images before anybody is told that they are free.
            drop(save);
            shared.tell(Command::Snapshotted {
                whole: ready.is_ok(),
                stop: false,
            });
            let begun = ready.and_then(|ready| {
                HandingOut::begin(socket, ready, &request)
                    .map_err(|err| Refusal::failed(ACTION, err))
            });
            let result = begun.map(|begun| {
                shared.tell(Command::HandingOut(begun));
                forked
            });
            if let Err(err) = &result {
                logger::log(Level::Error, err);
            }
            let _ = reply.send(result);
        };
        // Before the answer, which that thread gives: who has it may begin the next change.
        drop(permit);
        match self.starter.spawn("snapshot", Role::Fork, prepare) {
            Ok(thread) => {
                self.writing = Some(Writing::new(thread, Arc::new(AtomicBool::new(false))));
            }
            // The reply went with the closure: whoever waits is told that the request is gone.
            Err(err) => {
                logger::log(Level::Error, Refusal::failed("start a thread", err));
            }
        }
        Ok(())
    }
}

fn socket_path(request: &ForkRequest, run_dir: Option<&Path>) -> Result<PathBuf, Refusal> {
    match (&request.socket, run_dir) {
        (Some(path), _) => Ok(path.clone()),
        (None, Some(dir)) => {
            let id = crate::client::new_request_id();
            Ok(dir.join(format!("fork-{}.sock", &id[..8])))
        }
        (None, None) => Err(Refusal::failed(
            ACTION,
            "there is no run directory for its socket: give `socket`",
        )),
    }
}

/// What is handed out.
struct Ready {
    hand_over: HandOver,
    disks: Option<Disks>,
}

/// A directory with the disks, for as long as others may want to give their files names of their own.
struct Disks(PathBuf);

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes what has been taken ready. Disks become files of their own first: a caller's image is
/// copied, what is the machine's own is linked.
fn ready(save: &Save, dir: &Path) -> Result<Ready, Refusal> {
    let mut snapshot = None;
    let mut disks = None;
    if !save.capture.disks.is_empty() {
        let id = crate::client::new_request_id();
        let dir = dir.join(format!(".fork-{}", &id[..8]));
        let written = SaveDisks {
            disks: save.capture.disks.clone(),
            description: save.description.clone(),
            at: save.at,
            generation: save.generation,
        }
        .write(&dir, |_| ControlFlow::Continue(()));
        snapshot = Some(written.map_err(|err| Refusal::failed(ACTION, err))?);
        disks = Some(Disks(dir));
    }
    let description = save.description.clone();
    let made = HandOver::new(
        &save.capture,
        description,
        save.generation,
        snapshot.as_ref(),
    );
    Ok(Ready {
        hand_over: made.map_err(|err| Refusal::failed(ACTION, err))?,
        disks,
    })
}
