//! Forking: the machine's state is taken as for a snapshot, and instead of being written it is handed
//! out by descriptor to processes that come for it at a socket. What they make of it shares memory
//! and disks with the image, and the image is gone with the last of them.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
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
/// And how long still when the machine is over: that takes each some milliseconds, and one that does
/// not get there goes on with files that have no names.
const LEAVING: Duration = Duration::from_secs(2);
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
    /// Nothing is ever said here: closed, it tells the thread to come to an end.
    go_on: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HandingOut {
    /// Serves `count` of those who connect, by a thread of its own.
    fn begin(mut socket: Socket, what: Ready, request: &ForkRequest) -> io::Result<Self> {
        let listener = socket.take_listener()?;
        let (over, go_on) = pipe_with(PipeFlags::CLOEXEC)?;
        let (count, patience) = (request.count, request.patience);
        let serve = move || {
            let mut takers = Takers::default();
            let handed = hand_out(
                &listener,
                &over,
                &what.hand_over,
                count,
                patience,
                &mut takers,
            );
            if let Err(err) = handed {
                logger::log(Level::Warning, format_args!("handing a fork out: {err}"));
            }
            // Also to those who have not been served.
            drop(listener);
            takers.wait(&over);
            drop((socket, what));
        };
        // By one that may do so: see the roles' rules.
        let thread = Starter::default().spawn("fork", Role::Fork, serve)?;
        Ok(Self {
            go_on: Some(go_on),
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
        self.go_on = None;
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
        // They have nothing to say: what comes is the end.
        let now = Instant::now();
        self.0
            .retain(|taker| !poll_until(&[taker.as_fd()], now).is_ok_and(|[ended]| ended));
        self.0.push(stream);
    }

    /// Waits until all have closed theirs, within a time that is shorter when the machine is.
    fn wait(self, over: &OwnedFd) {
        let mut until = Instant::now() + NAMING;
        let mut is_over = false;
        for taker in self.0 {
            let taker = taker.as_fd();
            if !is_over {
                match poll_until(&[taker, over.as_fd()], until) {
                    Ok([false, true]) => {
                        is_over = true;
                        until = until.min(Instant::now() + LEAVING);
                    }
                    _ => continue,
                }
            }
            let _ = poll_until(&[taker], until);
        }
    }
}

/// Waits until something comes, or the other end is closed, at one of these, and says at which; at none
/// where the time is up.
fn poll_until<const N: usize>(fds: &[BorrowedFd<'_>; N], until: Instant) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut polled, Some(&left)) {
            Ok(_) => return Ok(polled.map(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

/// Takes connections until all copies are taken, nobody has taken one for a time, or the machine is
/// over.
fn hand_out(
    listener: &UnixListener,
    over: &OwnedFd,
    what: &HandOver,
    count: u32,
    patience: Duration,
    takers: &mut Takers,
) -> io::Result<()> {
    let mut left = count;
    let mut until = Instant::now() + patience;
    while left > 0 {
        // Also while there is always one more who comes, and goes before it is served.
        if until <= Instant::now() {
            return Ok(());
        }
        let [comes, is_over] = poll_until(&[listener.as_fd(), over.as_fd()], until)?;
        if is_over || !comes {
            return Ok(());
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
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
