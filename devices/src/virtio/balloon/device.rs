//! The device: configuration space, events, and the driver's coming and going.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tine_snapshot::section::{Section, SectionError};
use virtio_bindings::virtio_ids::VIRTIO_ID_BALLOON;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::handle::{HintingWish, Shared, State};
use super::hinting::Hinting;
use super::queues::{F_DEFLATE_ON_OOM, F_FREE_PAGE_HINT, F_REPORTING, F_STATS_VQ, Queues};
use super::state::BalloonState;
use super::{BalloonConfig, BalloonCounters, BalloonError, BalloonHandle, MemoryReclaim};
use crate::bus::lock;
use crate::state::RestoreError;
use crate::virtio::{
    ActivateError, Activation, QueuePlace, VirtioDevice, read_config_bytes, start_restored,
};

const QUEUE_SIZE: u16 = 128;
/// Where the driver writes how many pages it has given away.
const ACTUAL: u64 = 4;

/// The balloon device.
pub struct Balloon {
    shared: Arc<Shared>,
    reclaim: Arc<dyn MemoryReclaim>,
    features: u64,
    queue_sizes: Vec<u16>,
    /// Readable when the timer is due or someone wants attention.
    events: OwnedFd,
    /// When the guest is to tell of its memory.
    timer: Option<OwnedFd>,
    /// Seconds that the timer runs for; 0: not at all.
    armed: u16,
    /// There while the device is active.
    queues: Option<Queues>,
}

impl Balloon {
    /// A balloon as configured; `reclaim` gives memory back, and is asked each time.
    pub fn new(
        config: &BalloonConfig,
        reclaim: Arc<dyn MemoryReclaim>,
    ) -> Result<Self, BalloonError> {
        let target = BalloonConfig::pages(config.amount_mib)?;
        let optional = [
            (config.stats_polling_interval_s > 0, F_STATS_VQ, true),
            (config.deflate_on_oom, F_DEFLATE_ON_OOM, false),
            (config.free_page_hinting, F_FREE_PAGE_HINT, true),
            (config.free_page_reporting, F_REPORTING, true),
        ];
        let mut features = 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;
        let mut queue_sizes = vec![QUEUE_SIZE; 2];
        for (on, feature, has_queue) in optional {
            if on {
                features |= feature;
                queue_sizes.extend(has_queue.then_some(QUEUE_SIZE));
            }
        }
        let statistics = config.stats_polling_interval_s > 0;
        let (events, wake, timer) = make_events(statistics).map_err(BalloonError::Events)?;
        let state = State {
            config: *config,
            target,
            actual: 0,
            hinting: Hinting::new(),
            hinting_wish: None,
            active: None,
            stats: Default::default(),
            changed: false,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                counters: BalloonCounters::default(),
                wake,
            }),
            reclaim,
            features,
            queue_sizes,
            events,
            timer,
            armed: 0,
            queues: None,
        })
    }

    /// What others may do to the balloon once it is behind its transport.
    pub fn handle(&self) -> BalloonHandle {
        BalloonHandle(self.shared.clone())
    }

    /// Lets the timer run for the interval that is set, anew if that changed.
    fn arm(&mut self, seconds: u16) {
        let Some(timer) = self.timer.as_ref().filter(|_| self.armed != seconds) else {
            return;
        };
        let every = Timespec {
            tv_sec: seconds.into(),
            tv_nsec: 0,
        };
        let spec = Itimerspec {
            it_interval: every,
            it_value: every,
        };
        let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec);
        self.armed = seconds;
    }

    fn quiet(&self) {
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    fn config_space(&self) -> [u8; 12] {
        let state = lock(&self.shared.state);
        let mut space = [0; 12];
        space[..4].copy_from_slice(&state.target.to_le_bytes());
        space[4..8].copy_from_slice(&state.actual.to_le_bytes());
        space[8..].copy_from_slice(&state.hinting.status.host_cmd.to_le_bytes());
        space
    }
}

/// One descriptor for the two others: attention, and the timer if there is to be one.
fn make_events(timer: bool) -> io::Result<(OwnedFd, OwnedFd, Option<OwnedFd>)> {
    let events = epoll::create(CreateFlags::CLOEXEC)?;
    let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    let watch = |fd: &OwnedFd| epoll::add(&events, fd, EventData::new_u64(0), EventFlags::IN);
    watch(&wake)?;
    if !timer {
        return Ok((events, wake, None));
    }
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    watch(&timer)?;
    Ok((events, wake, Some(timer)))
}

impl VirtioDevice for Balloon {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BALLOON
    }

    fn queue_sizes(&self) -> &[u16] {
        &self.queue_sizes
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_bytes(&self.config_space(), offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let mut state = lock(&self.shared.state);
        let mut actual = state.actual.to_le_bytes();
        for (at, byte) in data.iter().enumerate() {
            let place = offset
                .checked_add(at as u64)
                .and_then(|at| at.checked_sub(ACTUAL));
            let place = place.and_then(|at| usize::try_from(at).ok());
            if let Some(to) = place.and_then(|at| actual.get_mut(at)) {
                *to = *byte;
            }
        }
        state.actual = u32::from_le_bytes(actual);
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let interval = {
            let mut state = lock(&self.shared.state);
            state.active = Some(activation.features & F_FREE_PAGE_HINT != 0);
            state.changed = false;
            state.config.stats_polling_interval_s
        };
        let statistics = activation.features & F_STATS_VQ != 0;
        let (reclaim, shared) = (self.reclaim.clone(), self.shared.clone());
        self.queues = Some(Queues::new(activation, reclaim, shared));
        self.arm(if statistics { interval } else { 0 });
        Ok(())
    }

    fn process_queue(&mut self, index: usize) {
        let share = self.queues.as_mut().is_some_and(|queues| queues.run(index));
        if share {
            self.wake();
        }
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn process_backend(&mut self) {
        self.quiet();
        let timer = self.timer.as_ref();
        let due = timer.is_some_and(|timer| rustix::io::read(timer, &mut [0u8; 8]).is_ok());
        let Some(queues) = &mut self.queues else {
            return;
        };
        if due {
            queues.ask_for_statistics();
        }
        let share = queues.run_all();
        let (changed, interval) = {
            let mut state = lock(&self.shared.state);
            let wish = state.hinting_wish.take();
            match wish {
                Some(HintingWish::Start(acknowledge)) => state.hinting.start(acknowledge),
                Some(HintingWish::Stop) => state.hinting.stop(),
                None => {}
            }
            let changed = std::mem::take(&mut state.changed) | wish.is_some();
            (changed, state.config.stats_polling_interval_s)
        };
        if changed {
            queues.interrupt.config_changed();
        }
        if self.armed != 0 {
            self.arm(interval);
        }
        if share {
            self.wake();
        }
    }

    fn reset(&mut self) {
        self.queues = None;
        self.arm(0);
        self.quiet();
        let mut state = lock(&self.shared.state);
        state.active = None;
        state.changed = false;
        state.actual = 0;
        state.hinting = Hinting::new();
        state.hinting_wish = None;
        state.stats = Default::default();
    }

    /// Puts the chain in hand back into its ring.
    fn settle(&mut self) {
        if let Some(queues) = &mut self.queues {
            queues.settle();
        }
    }

    fn queue_places(&self) -> Vec<QueuePlace> {
        self.queues.iter().flat_map(Queues::places).collect()
    }

    fn save(&self, name: &str) -> Result<Section, SectionError> {
        let state = lock(&self.shared.state);
        Section::of(name, &BalloonState::of(self.features, &state))
    }

    fn restore(
        &mut self,
        section: &Section,
        activation: Option<Activation>,
    ) -> Result<(), RestoreError> {
        let saved: BalloonState = section.decode()?;
        saved.restore(section, self.features, &mut lock(&self.shared.state))?;
        start_restored(self, section, activation)?;
        if self.queues.is_some() && saved.restore_wishes(&mut lock(&self.shared.state)) {
            self.wake();
        }
        Ok(())
    }
}
