//! A command's descriptors, and moving its bytes.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tine_guest_agent::exec::{ExecRequest, STDIN_TOLD, TtySize};
use tokio::io::{Interest, Ready};

use super::store::Store;
use super::{Exec, Input, Output};
use crate::agent::sys::Watched;
use crate::agent::{Either, race};

/// Bytes read from a command at once: what a pipe holds.
const CHUNK: usize = 64 * 1024;

/// The end of input on a terminal, as its line discipline understands it.
const CONTROL_D: u8 = 4;

thread_local! {
    /// One buffer for all pumps of the loop: reading and keeping happen without a pause in between.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// What the child gets; held until it has been started.
pub struct ChildSide {
    fds: Vec<OwnedFd>,
    /// What becomes 0, 1 and 2, in terms of `fds` or of the agent's /dev/null.
    pub stdio: [RawFd; 3],
}

/// What the agent keeps.
#[derive(Default)]
pub struct AgentSide {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    pub terminal: Option<OwnedFd>,
}

/// Makes the pipes or the terminal that a request needs.
pub fn open(request: &ExecRequest, null: &OwnedFd) -> io::Result<(ChildSide, AgentSide)> {
    if let Some(size) = request.tty {
        return open_terminal(size);
    }
    let mut child = ChildSide {
        fds: Vec::new(),
        stdio: [null.as_raw_fd(); 3],
    };
    let mut agent = AgentSide::default();
    if request.stdin || request.input.is_some() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        agent.stdin = Some(non_blocking(writer)?);
        child.give(0, reader);
    }
    for (target, kept) in [(1, &mut agent.stdout), (2, &mut agent.stderr)] {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // Left blocking: it is only read when there is something, see `Pump::read_once`.
        *kept = Some(reader);
        child.give(target, writer);
    }
    Ok((child, agent))
}

fn open_terminal(size: TtySize) -> io::Result<(ChildSide, AgentSide)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    resize(&master, size)?;
    let stdio = [slave.as_raw_fd(); 3];
    let agent = AgentSide {
        terminal: Some(non_blocking(master)?),
        ..AgentSide::default()
    };
    Ok((
        ChildSide {
            fds: vec![slave],
            stdio,
        },
        agent,
    ))
}

/// Gives a terminal a new size; the kernel tells the programs on it.
pub fn resize(terminal: impl AsFd, size: TtySize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

/// Only the agent's end: each end of a pipe has flags of its own, and programs expect theirs to block.
fn non_blocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
    Ok(fd)
}

impl ChildSide {
    fn give(&mut self, target: usize, fd: OwnedFd) {
        self.stdio[target] = fd.as_raw_fd();
        self.fds.push(fd);
    }
}

/// One output of a running command.
#[derive(Clone)]
pub struct Pump {
    pub exec: Rc<Exec>,
    pub store: Rc<Store>,
    pub output: Output,
    pub fd: Rc<Watched>,
    /// A pipe, whose reads take all there is; a terminal's may stop in between.
    pub pipe: bool,
    /// Children left behind may go on writing.
    pub keep: bool,
}

impl Pump {
    /// Moves output from the command to its log until the end of file.
    ///
    /// With an attached reader that lags, nothing is read, so that the command has to wait. The command's own end
    /// closes the log; what children left behind write after that is read and dropped, so that writing does not end
    /// them.
    pub async fn run(self) {
        loop {
            let room = self.exec.room.notified();
            let (closed, most) = self
                .exec
                .with_log(self.output, |log| (log.is_closed(), log.room()));
            if closed {
                break;
            }
            if most == 0 {
                room.await;
            } else if !self.read_once(most.min(CHUNK)).await {
                self.close();
                return;
            }
        }
        while self.keep && self.read_once(CHUNK).await {}
    }

    /// Reads what is there into the log, or drops it if the log is closed. False at the end of file.
    async fn read_once(&self, most: usize) -> bool {
        let Ok(mut guard) = self.fd.readable().await else {
            return false;
        };
        let ready = guard.ready();
        // Hung up and nothing to read: no call is needed to learn that this is the end.
        if (ready & Ready::READABLE).is_empty() {
            return false;
        }
        match self.take(most) {
            Ok(0) => false,
            Ok(count) if count < most && self.pipe => {
                guard.clear_ready();
                // All ends for writing were closed before the read, which took all there was.
                !ready.is_read_closed()
            }
            // There may be no more, which the next read has to find out without waiting. Few commands write so much,
            // and the others are spared a system call for each pipe.
            Ok(_) if self.pipe => rustix::fs::fcntl_setfl(&self.fd, OFlags::NONBLOCK).is_ok(),
            Ok(_) | Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => {
                guard.clear_ready();
                true
            }
            // A terminal's master gives EIO when nobody has it open any more.
            Err(_) => false,
        }
    }

    /// One read, kept if the log still takes bytes.
    fn take(&self, most: usize) -> rustix::io::Result<usize> {
        let count = BUFFER.with_borrow_mut(|buffer| {
            let count = rustix::io::read(&self.fd, &mut buffer[..most])?;
            self.exec.with_log(self.output, |log| {
                if !log.is_closed() {
                    log.append(&buffer[..count]);
                }
            });
            rustix::io::Result::Ok(count)
        })?;
        if !self.store.fit() {
            self.exec.with_log(self.output, |log| log.stop_growing());
        }
        self.exec.changed.notify_waiters();
        Ok(count)
    }

    /// After the command's end: takes what its pipe holds now, and no more, as a child left behind may go on writing
    /// for ever.
    pub fn drain(&self) {
        if self.exec.with_log(self.output, |log| log.is_closed()) {
            return;
        }
        // The pump may have been told of what is taken here, and must not wait for it.
        let _ = rustix::fs::fcntl_setfl(&self.fd, OFlags::NONBLOCK);
        let mut left = rustix::io::ioctl_fionread(&self.fd).unwrap_or_default() as usize;
        while left > 0 {
            match self.take(left.min(CHUNK)) {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => break,
            }
        }
        self.close();
    }

    fn close(&self) {
        self.exec.with_log(self.output, |log| log.close());
        self.exec.changed.notify_waiters();
        self.exec.room.notify_waiters();
    }
}

impl Exec {
    /// Says where [`Exec::feed`] writes to.
    pub(super) fn set_input(&self, input: Input) {
        self.input.replace(input);
        self.changed.notify_waiters();
    }

    /// The descriptor that takes input, once the command has been started, and whether it is a terminal.
    async fn input(&self) -> Option<(Rc<Watched>, bool)> {
        loop {
            let changed = self.changed.notified();
            match &*self.input.borrow() {
                Input::Pending => {}
                Input::Pipe(fd) => return Some((fd.clone(), false)),
                Input::Terminal(fd) => return Some((fd.clone(), true)),
                Input::Closed => return None,
            }
            changed.await;
        }
    }

    /// Writes to the command's standard input, waiting while it does not read. What a command no longer takes is
    /// dropped, as its end of the pipe is gone.
    pub async fn feed(&self, bytes: &[u8]) {
        self.feed_while(bytes, || true, |_| ()).await;
    }

    /// The same with input from a connection: counted, and dropped once another one has taken the input over (`owner`
    /// is then not the owner any more).
    pub async fn feed_from(&self, owner: u32, bytes: &[u8]) {
        let owns = || self.stdin_owner.get() == owner;
        let taken = |count: usize| {
            let before = self.stdin_taken.get();
            let now = before + count as u64;
            self.stdin_taken.set(now);
            if before / STDIN_TOLD != now / STDIN_TOLD {
                self.changed.notify_waiters();
            }
        };
        self.feed_while(bytes, owns, taken).await;
    }

    /// `wanted` is asked before each write; `taken` hears of what has been given to the command, or would not be.
    async fn feed_while(&self, mut bytes: &[u8], wanted: impl Fn() -> bool, taken: impl Fn(usize)) {
        let Some((fd, _)) = self.input().await else {
            if wanted() {
                taken(bytes.len());
            }
            return;
        };
        while !bytes.is_empty() {
            let Either::Left(Ok(mut guard)) =
                race(fd.ready(Interest::WRITABLE), self.ended()).await
            else {
                return;
            };
            if !wanted() {
                return;
            }
            match rustix::io::write(&fd, bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    taken(count);
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(_) => {
                    drop(guard);
                    self.set_input(Input::Closed);
                    taken(bytes.len());
                    return;
                }
            }
        }
    }

    /// Who may feed the command now.
    pub fn stdin_owner(&self) -> u32 {
        self.stdin_owner.get()
    }

    /// Lets nobody feed the command who has done so before, and returns the new owner.
    pub fn take_stdin(&self) -> u32 {
        self.stdin_owner.set(self.stdin_owner.get().wrapping_add(1));
        self.stdin_owner.get()
    }

    /// How much input the command was given.
    pub fn stdin_taken(&self) -> u64 {
        self.stdin_taken.get()
    }

    /// The end of standard input.
    pub async fn feed_end(&self) {
        self.end_while(|| true).await;
    }

    /// The same, told by a connection: nothing happens once another one has taken the input over.
    pub async fn feed_end_from(&self, owner: u32) {
        self.end_while(|| self.stdin_owner.get() == owner).await;
    }

    async fn end_while(&self, wanted: impl Fn() -> bool) {
        match self.input().await {
            _ if !wanted() => {}
            Some((_, true)) => self.feed(&[CONTROL_D]).await,
            Some((_, false)) => self.set_input(Input::Closed),
            None => {}
        }
    }

    /// The terminal has a new size.
    pub async fn resize(&self, size: TtySize) {
        if let Some((terminal, true)) = self.input().await {
            let _ = resize(&terminal, size);
        }
    }
}
