//! The device: from the queues to the host's side and back.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tine_snapshot::section::{Section, SectionError};
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::control;
use super::events::Events;
use super::handle::{NetHandle, Shared};
use super::rx::{Pause, Rx};
use super::state::NetState;
use super::tx::Tx;
use super::{Backend, Detour, NetConfig, NetError, NetStats, Offloads, Tap};
use crate::rate::RateLimiter;
use crate::state::RestoreError;
use crate::virtio::{
    ActivateError, Activation, Interrupt, QueuePlace, VirtQueue, VirtioDevice, read_config_bytes,
    start_restored,
};

/// Entries of each queue of frames.
pub const QUEUE_SIZE: u16 = 256;

const RX: usize = 0;
const TX: usize = 1;
const CONTROL: usize = 2;
const QUEUE_SIZES: &[u16] = &[QUEUE_SIZE, QUEUE_SIZE, 64];

/// A network interface.
pub struct Net<B: Backend = Tap> {
    backend: B,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: Option<u16>,
    detour: Option<Box<dyn Detour>>,
    events: Events,
    pub(super) handle: NetHandle,
    /// The driver was asked to announce itself and has not said that it did.
    pub(super) announcing: bool,
    /// There while the device is active.
    pub(super) active: Option<Active>,
}

pub(super) struct Active {
    rx: Rx,
    pub(super) tx: Tx,
    control: VirtQueue,
    interrupt: Arc<Interrupt>,
    features: u64,
    /// The backend had no room for a frame.
    blocked: bool,
}

/// What is to be looked at.
#[derive(Default)]
struct Work {
    rx: bool,
    tx: bool,
    control: bool,
    /// The backend has just said that it has frames.
    edge: bool,
    /// The detour's time has come.
    detour: bool,
}

impl Net<Tap> {
    /// Attaches to the host's TAP device.
    pub fn open(config: NetConfig) -> Result<Self, NetError> {
        config.check()?;
        let rest = NetConfig {
            host: super::TapSource::Name(String::new()),
            id: config.id.clone(),
            ..config
        };
        let host = config.host;
        let tap = Tap::open(NetConfig::new(config.id, host))?;
        Self::with_backend(&rest, tap)
    }
}

impl<B: Backend> Net<B> {
    /// An interface as configured over some backend; `config.host` is not looked at.
    pub fn with_backend(config: &NetConfig, backend: B) -> Result<Self, NetError> {
        config.check()?;
        let failed = |source| NetError::Os {
            interface: config.id.clone(),
            action: "make its events (raise the limit of open files: ulimit -n)",
            source,
        };
        let rx_limiter = RateLimiter::new(config.rx_rate_limiter.as_ref()).map_err(failed)?;
        let tx_limiter = RateLimiter::new(config.tx_rate_limiter.as_ref()).map_err(failed)?;
        let events = Events::new([rx_limiter.event(), tx_limiter.event()]).map_err(failed)?;
        let shared = Shared {
            active: AtomicBool::new(false),
            announce: AtomicBool::new(false),
            wake: events.waker().clone(),
        };
        Ok(Self {
            backend,
            mac: config.guest_mac.map(super::MacAddr::bytes),
            mtu: config.mtu,
            detour: None,
            events,
            handle: NetHandle {
                stats: Arc::new(NetStats::default()),
                rx_limiter,
                tx_limiter,
                shared: Arc::new(shared),
            },
            announcing: false,
            active: None,
        })
    }

    /// Puts a host into the device that answers some of the guest's frames. Before the device goes
    /// behind its transport.
    pub fn with_detour(mut self, detour: Box<dyn Detour>) -> std::io::Result<Self> {
        self.events.add_detour()?;
        self.detour = Some(detour);
        Ok(self)
    }

    /// What others may do to the interface once it is behind its transport.
    pub fn handle(&self) -> NetHandle {
        self.handle.clone()
    }

    fn work(&mut self, mut work: Work) {
        let Some(active) = &mut self.active else {
            return;
        };
        let stats = &self.handle.stats;
        let mut share = false;
        if work.control {
            let announcing = &mut self.announcing;
            share |= control::run(&mut active.control, || *announcing = false) == Pause::Share;
        }
        if work.tx {
            let detour = self.detour.as_deref_mut();
            let limiter = &self.handle.tx_limiter;
            let pause = active.tx.run(&mut self.backend, detour, limiter, stats);
            active.blocked = pause == Pause::Blocked;
            share |= pause == Pause::Share;
            work.detour |= active.tx.take_detoured();
        }
        if let Some(detour) = self.detour.as_mut().filter(|_| work.detour) {
            detour.poll();
            self.events.set_detour_timer(detour.due());
            work.rx = true;
        }
        let mut frames = self.events.watches_frames();
        if work.rx {
            let detour = self.detour.as_deref_mut();
            let limiter = &self.handle.rx_limiter;
            let pause = active.rx.run(&mut self.backend, detour, limiter, stats);
            share |= pause == Pause::Share;
            // The detour may have waited for its frames to be taken: it goes on at the next event.
            if active.rx.take_detoured()
                && let Some(detour) = &mut self.detour
            {
                detour.poll();
                self.events.set_detour_timer(detour.due());
                share |= pause == Pause::Empty && detour.has_frames();
            }
            match pause {
                Pause::Empty => frames = true,
                // A first edge while nothing can be taken: no more of them until that changes.
                Pause::Blocked | Pause::Limited if work.edge => frames = false,
                _ => {}
            }
        }
        let watched = self
            .events
            .watch(self.backend.event(), frames, active.blocked);
        if share || watched.is_err() {
            self.events.wake();
        }
    }

    /// Asks the driver to announce itself, if it can.
    fn announce(&mut self) {
        if !self.handle.shared.announce.swap(false, Ordering::SeqCst) {
            return;
        }
        if let Some(active) = &self.active
            && active.features & 1 << VIRTIO_NET_F_GUEST_ANNOUNCE != 0
        {
            self.announcing = true;
            active.interrupt.config_changed();
        }
    }

    fn config_space(&self) -> [u8; 12] {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.mac.unwrap_or_default());
        let announce = u32::from(self.announcing) * VIRTIO_NET_S_ANNOUNCE;
        let status = (VIRTIO_NET_S_LINK_UP | announce) as u16;
        space[6..8].copy_from_slice(&status.to_le_bytes());
        space[8..10].copy_from_slice(&1u16.to_le_bytes());
        space[10..].copy_from_slice(&self.mtu.unwrap_or(0).to_le_bytes());
        space
    }
}

fn offloads(features: u64) -> Offloads {
    let has = |bit: u32| features & 1 << bit != 0;
    let checksum = has(VIRTIO_NET_F_GUEST_CSUM);
    // The others build on it (section 5.1.3.1); the host would refuse them without.
    let tso4 = checksum && has(VIRTIO_NET_F_GUEST_TSO4);
    let tso6 = checksum && has(VIRTIO_NET_F_GUEST_TSO6);
    Offloads {
        checksum,
        tso4,
        tso6,
        ecn: (tso4 || tso6) && has(VIRTIO_NET_F_GUEST_ECN),
    }
}

impl<B: Backend + 'static> VirtioDevice for Net<B> {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn queue_sizes(&self) -> &[u16] {
        QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_GUEST_TSO4,
            VIRTIO_NET_F_GUEST_TSO6,
            VIRTIO_NET_F_GUEST_ECN,
            VIRTIO_NET_F_HOST_TSO4,
            VIRTIO_NET_F_HOST_TSO6,
            VIRTIO_NET_F_HOST_ECN,
            VIRTIO_NET_F_MRG_RXBUF,
            VIRTIO_NET_F_STATUS,
            VIRTIO_NET_F_CTRL_VQ,
            VIRTIO_NET_F_GUEST_ANNOUNCE,
        ];
        if self.mac.is_some() {
            bits.push(VIRTIO_NET_F_MAC);
        }
        if self.mtu.is_some() {
            bits.push(VIRTIO_NET_F_MTU);
        }
        bits.into_iter().fold(0, |all, bit| all | 1 << bit)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_bytes(&self.config_space(), offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, mut activation: Activation) -> Result<(), ActivateError> {
        let queues = std::mem::take(&mut activation.queues);
        let Ok([rx, tx, control]) = <[VirtQueue; 3]>::try_from(queues) else {
            return Err(ActivateError("a network device has three queues".into()));
        };
        let features = activation.features;
        let failed = |what: &str, error| ActivateError(format!("cannot {what}: {error}"));
        self.backend
            .set_offloads(offloads(features))
            .map_err(|error| failed("set the TAP device's offloads", error))?;
        let mergeable = features & 1 << VIRTIO_NET_F_MRG_RXBUF != 0;
        self.events
            .watch(self.backend.event(), true, false)
            .map_err(|error| failed("watch the TAP device", error))?;
        self.active = Some(Active {
            rx: Rx::new(rx, &activation, mergeable),
            tx: Tx::new(tx, &activation),
            control,
            interrupt: activation.interrupt,
            features,
            blocked: false,
        });
        self.handle.shared.active.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn process_queue(&mut self, index: usize) {
        self.work(Work {
            rx: index == RX,
            tx: index == TX,
            control: index == CONTROL,
            ..Work::default()
        });
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.fd())
    }

    fn process_backend(&mut self) {
        let happened = self.events.take();
        let rx_due = self.handle.rx_limiter.take_due();
        let tx_due = self.handle.tx_limiter.take_due();
        self.announce();
        if let Some(active) = &mut self.active {
            active.rx.ready |= happened.readable;
        }
        self.work(Work {
            rx: happened.readable || happened.woken || rx_due,
            tx: happened.writable || happened.woken || tx_due,
            control: happened.woken,
            edge: happened.readable,
            detour: happened.detour,
        });
    }

    fn reset(&mut self) {
        let shared = &self.handle.shared;
        shared.active.store(false, Ordering::SeqCst);
        shared.announce.store(false, Ordering::SeqCst);
        self.active = None;
        self.announcing = false;
        self.handle.rx_limiter.quiet();
        self.handle.tx_limiter.quiet();
        if let Some(detour) = &mut self.detour {
            detour.reset();
        }
        self.events.quiet(self.backend.event());
    }

    /// Puts all chains in hand back into their rings. A frame that was on its way to the guest
    /// arrives when the device goes on; a restored one does not get it.
    fn settle(&mut self) {
        if let Some(active) = &mut self.active {
            active.rx.give_back();
        }
    }

    fn queue_places(&self) -> Vec<QueuePlace> {
        let places = |active: &Active| {
            let queues = [active.rx.queue(), active.tx.queue(), &active.control];
            queues.map(VirtQueue::place)
        };
        self.active.iter().flat_map(places).collect()
    }

    fn save(&self, name: &str) -> Result<Section, SectionError> {
        Section::of(name, &NetState::of(self))
    }

    fn restore(
        &mut self,
        section: &Section,
        activation: Option<Activation>,
    ) -> Result<(), RestoreError> {
        let state: NetState = section.decode()?;
        state.restore(section, self)?;
        start_restored(self, section, activation)?;
        if let Some(active) = &mut self.active {
            active.tx.paid = state.tx_paid;
            self.announcing = state.announcing;
            // The network has the guest at another port now.
            self.handle.announce();
        }
        Ok(())
    }
}
