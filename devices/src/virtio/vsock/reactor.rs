//! What the device waits for, behind one descriptor: sockets, deadlines, and itself.
//!
//! Connections are watched edge-triggered, and their owner remembers what it was told. So a
//! socket that cannot be served now (no credit, no receive buffers) costs no wake-ups and no
//! system calls, and is served without a new event once it can be.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Names what an event or a deadline is about.
pub type Token = u64;

/// The listening socket.
pub const LISTENER: Token = 0;
/// In-process requests.
pub const HANDLE: Token = 1;
/// The driver's answer to a transport reset.
pub const RESET: Token = 2;
const TIMER: Token = 3;
const AGAIN: Token = 4;
/// Sockets have tokens from here on, each used once.
const FIRST_SOCKET: Token = 16;

/// Events taken at a time. The rest stays, and makes the descriptor readable again.
pub const EVENTS_AT_ONCE: usize = 64;

/// What a socket is ready for.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// What it is about.
    pub token: Token,
    /// There is something to receive, an end of file included.
    pub read: bool,
    /// The other side sends no more: there is an end of file, after what there is to receive.
    pub end: bool,
    /// There is room to send.
    pub write: bool,
    /// The other side is gone, or takes and sends nothing any more.
    pub hangup: bool,
}

/// The device's epoll descriptor and what hangs on it.
pub struct Reactor {
    epoll: OwnedFd,
    timer: OwnedFd,
    again: OwnedFd,
    deadlines: BTreeSet<(Instant, Token)>,
    by_token: HashMap<Token, Instant>,
    armed: Option<Instant>,
    next_token: Token,
}

impl Reactor {
    /// A reactor that watches nothing.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let again = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        for (fd, token) in [(&timer, TIMER), (&again, AGAIN)] {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            timer,
            again,
            deadlines: BTreeSet::new(),
            by_token: HashMap::new(),
            armed: None,
            next_token: FIRST_SOCKET,
        })
    }

    /// Readable when [`Self::wait`] has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A token for a new socket.
    pub fn new_token(&mut self) -> Token {
        self.next_token += 1;
        self.next_token
    }

    /// Watches until the descriptor can be read from, each time.
    pub fn watch_level(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(token),
            EventFlags::IN,
        )?)
    }

    /// Watches a socket's reading side, edge-triggered.
    pub fn watch(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(token),
            flags,
        )?)
    }

    /// Watches a watched socket's writing side too, or stops that. While nothing waits to be sent
    /// it would only announce every byte that the other side takes.
    pub fn watch_write(&self, fd: impl AsFd, token: Token, on: bool) -> io::Result<()> {
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        flags.set(EventFlags::OUT, on);
        Ok(epoll::modify(
            &self.epoll,
            fd,
            EventData::new_u64(token),
            flags,
        )?)
    }

    /// Stops watching. A socket that is closed needs no such call.
    pub fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Makes the descriptor readable, so that others have their turn before we go on.
    pub fn again(&self) {
        let _ = rustix::io::write(&self.again, &1u64.to_ne_bytes());
    }

    /// Takes what sockets are ready for, without waiting; deadlines are taken by
    /// [`Self::expired`].
    pub fn wait(&mut self) -> Vec<Ready> {
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
        let now = Timespec::default();
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else {
            return Vec::new();
        };
        let mut ready = Vec::with_capacity(events.len());
        for event in events {
            let flags = event.flags;
            match event.data.u64() {
                TIMER => clear(&self.timer),
                AGAIN => clear(&self.again),
                token => ready.push(Ready {
                    token,
                    read: flags.contains(EventFlags::IN),
                    end: flags.contains(EventFlags::RDHUP),
                    write: flags.contains(EventFlags::OUT),
                    hangup: flags.intersects(EventFlags::HUP | EventFlags::ERR),
                }),
            }
        }
        ready
    }

    /// Sets the one deadline of `token`.
    pub fn set_deadline(&mut self, token: Token, after: Duration) {
        self.clear_deadline(token);
        let at = Instant::now() + after;
        self.deadlines.insert((at, token));
        self.by_token.insert(token, at);
        if self.armed.is_none_or(|armed| at < armed) {
            self.arm(Some(at));
        }
    }

    /// Removes the deadline of `token`, if it has one. The timer may still run for it: that one
    /// wake-up in vain is cheaper than a system call for each connection.
    pub fn clear_deadline(&mut self, token: Token) {
        if let Some(at) = self.by_token.remove(&token) {
            self.deadlines.remove(&(at, token));
        }
    }

    /// Takes a token whose deadline has passed.
    pub fn expired(&mut self) -> Option<Token> {
        let armed = self.armed?;
        let now = Instant::now();
        if now < armed {
            return None;
        }
        if let Some(&(at, token)) = self.deadlines.first()
            && at <= now
        {
            self.clear_deadline(token);
            return Some(token);
        }
        let next = self.deadlines.first().map(|(at, _)| *at);
        self.arm(next);
        None
    }

    /// Forgets the deadlines of all sockets.
    pub fn forget_sockets(&mut self) {
        self.deadlines.retain(|(_, token)| *token < FIRST_SOCKET);
        self.by_token.retain(|token, _| *token < FIRST_SOCKET);
    }

    /// Forgets all deadlines and wake-ups.
    pub fn quiet(&mut self) {
        self.deadlines.clear();
        self.by_token.clear();
        self.arm(None);
        clear(&self.again);
    }

    fn arm(&mut self, at: Option<Instant>) {
        // Zero would disarm; a deadline in the past is due at once.
        let after = at.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            left.max(Duration::from_nanos(1))
        });
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: after.map_or(0, |after| after.as_secs() as i64),
                tv_nsec: after.map_or(0, |after| after.subsec_nanos().into()),
            },
        };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
        self.armed = at;
    }
}

/// Reads a counter back to zero, without waiting.
fn clear(counter: &OwnedFd) {
    let _ = rustix::io::read(counter, &mut [0u8; 8]);
}
