//! Everything the device waits for, behind one descriptor: the host's side, the limits' timers, the
//! detour's timer, and itself.
//!
//! The host's side is watched edge-triggered, and only while the device is active: frames that
//! cannot be taken now cost one wake-up at most, and then none until they can be.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

const BACKEND: u64 = 0;
const WAKE: u64 = 1;
const LIMIT: u64 = 2;
const DETOUR: u64 = 3;

/// What happened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Happened {
    /// The backend may have frames.
    pub readable: bool,
    /// The backend may have room.
    pub writable: bool,
    /// Someone asked for the device's attention: it itself, or its handle.
    pub woken: bool,
    /// The detour's time has come.
    pub detour: bool,
}

/// The descriptors.
pub(super) struct Events {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    detour: Option<OwnedFd>,
    /// What the backend is watched for, if it is.
    interest: Option<EventFlags>,
}

impl Events {
    /// Watches the limits' timers.
    pub fn new(limits: [BorrowedFd; 2]) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let data = EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, EventFlags::IN)?;
        for limit in limits {
            let data = EventData::new_u64(LIMIT);
            epoll::add(&epoll, limit, data, EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            wake: Arc::new(wake),
            detour: None,
            interest: None,
        })
    }

    /// Readable when [`Self::take`] has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Written to get the device's attention.
    pub fn waker(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    /// Makes a timer for the detour.
    pub fn add_detour(&mut self) -> io::Result<()> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let data = EventData::new_u64(DETOUR);
        epoll::add(&self.epoll, &timer, data, EventFlags::IN)?;
        self.detour = Some(timer);
        Ok(())
    }

    /// Lets the detour's event come after this time, or not at all.
    pub fn set_detour_timer(&self, after: Option<Duration>) {
        let Some(timer) = &self.detour else { return };
        // Zero would disarm.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// Watches the backend for frames, for room, or neither; an event comes at once if what is
    /// newly watched for is there.
    pub fn watch(&mut self, backend: BorrowedFd, frames: bool, room: bool) -> io::Result<()> {
        let mut flags = EventFlags::ET;
        flags.set(EventFlags::IN, frames);
        flags.set(EventFlags::OUT, room);
        let data = EventData::new_u64(BACKEND);
        match self.interest {
            Some(interest) if interest == flags => return Ok(()),
            Some(_) => epoll::modify(&self.epoll, backend, data, flags)?,
            None => epoll::add(&self.epoll, backend, data, flags)?,
        }
        self.interest = Some(flags);
        Ok(())
    }

    /// Whether the backend is watched for frames.
    pub fn watches_frames(&self) -> bool {
        self.interest
            .is_some_and(|flags| flags.contains(EventFlags::IN))
    }

    /// Takes what happened, without waiting.
    pub fn take(&self) -> Happened {
        let mut happened = Happened::default();
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; 8];
        let now = Timespec::default();
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else {
            return happened;
        };
        for event in events {
            let flags = event.flags;
            let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            match event.data.u64() {
                BACKEND => {
                    happened.readable |= ended || flags.contains(EventFlags::IN);
                    happened.writable |= ended || flags.contains(EventFlags::OUT);
                }
                WAKE => {
                    clear(&self.wake);
                    happened.woken = true;
                }
                DETOUR => {
                    self.set_detour_timer(None);
                    happened.detour = true;
                }
                // The limiters know themselves.
                _ => {}
            }
        }
        happened
    }

    /// Comes back soon, so that others have their turn before we go on.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Stops watching the backend and forgets what was announced.
    pub fn quiet(&mut self, backend: BorrowedFd) {
        if self.interest.take().is_some() {
            let _ = epoll::delete(&self.epoll, backend);
        }
        self.set_detour_timer(None);
        clear(&self.wake);
    }
}

/// Reads a counter back to zero, without waiting.
fn clear(counter: &OwnedFd) {
    let _ = rustix::io::read(counter, &mut [0u8; 8]);
}
