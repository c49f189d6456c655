//! The device: its three queues, and the one place where everything meets.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use vm_memory::Bytes;

use super::clients::Clients;
use super::handle::{Shared, VsockHandle};
use super::listener::Listener;
use super::muxer::{Client, Muxer};
use super::packet::{HEADER_LEN, Header, Parts};
use super::reactor::{EVENTS_AT_ONCE, HANDLE, LISTENER, Reactor, Ready};
use super::stats::{Count, VsockStats};
use super::stream::connect_to;
use super::{
    LIMITS, Limits, MAX_PACKET_LEN, MIN_GUEST_CID, PACKETS_PER_EVENT, VsockConfig, VsockError,
};
use crate::GuestMemory;
use crate::virtio::mmio::VIRTIO_RING_F_EVENT_IDX;
use crate::virtio::{ActivateError, Activation, Chain, VirtQueue, VirtioDevice, read_config_bytes};

const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;
const QUEUE_SIZES: &[u16] = &[128, 128, 64];

/// The event that tells the driver that all connections are gone.
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();
/// When accepting fails for lack of descriptors, the next try comes after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The socket device.
pub struct Vsock {
    guest_cid: u32,
    active: Option<Active>,
    muxer: Muxer,
    clients: Clients,
    listener: Option<Listener>,
    shared: Arc<Shared>,
    stats: Arc<VsockStats>,
    reactor: Reactor,
}

/// What there is while the driver runs.
struct Active {
    mem: Arc<GuestMemory>,
    rx: VirtQueue,
    tx: VirtQueue,
    events: VirtQueue,
    /// The guest has sent more than its share; the rest is still in the queue.
    tx_waits: bool,
    /// The driver is to be told, and had no buffer for it.
    reset_waits: bool,
}

impl Vsock {
    /// A device and the handle by which this process uses it.
    pub fn new(config: &VsockConfig) -> Result<(Self, VsockHandle), VsockError> {
        Self::with_limits(config, LIMITS)
    }

    pub(super) fn with_limits(
        config: &VsockConfig,
        limits: Limits,
    ) -> Result<(Self, VsockHandle), VsockError> {
        if config.guest_cid < MIN_GUEST_CID || config.guest_cid == u32::MAX {
            return Err(VsockError::GuestCid(config.guest_cid));
        }
        let listener = config.uds_path.as_deref().map(Listener::bind).transpose()?;
        let stats = Arc::new(VsockStats::default());
        let (shared, handle) = Shared::new(stats.clone()).map_err(VsockError::Events)?;
        let device = Self {
            guest_cid: config.guest_cid,
            active: None,
            muxer: Muxer::new(config.guest_cid, limits, stats.clone()),
            clients: Clients::new(limits),
            listener,
            shared,
            stats,
            reactor: Reactor::new().map_err(VsockError::Events)?,
        };
        Ok((device, handle))
    }

    /// Ends all connections without a word to the guest about each, and tells its driver that
    /// they are gone: after a restore, none of those that the guest knows exists on this host.
    /// Does nothing while the driver is not running.
    pub fn transport_reset(&mut self) {
        self.drop_connections();
        if let Some(active) = &mut self.active {
            active.reset_waits = true;
            active.send_event(&self.stats);
        }
    }

    fn drop_connections(&mut self) {
        self.muxer.clear();
        self.clients.clear();
        self.reactor.forget_sockets();
    }

    /// Takes packets from the guest.
    fn receive(&mut self) {
        let Some(active) = &mut self.active else {
            return;
        };
        let (muxer, reactor) = (&mut self.muxer, &mut self.reactor);
        let (shared, listener) = (&self.shared, &self.listener);
        let accept = |port| open_host_port(shared, listener.as_ref(), port);
        let mem = active.mem.clone();
        let mut left = PACKETS_PER_EVENT;
        active.tx.drain(|queue, chain| {
            if left == 0 {
                queue.undo_pop();
                return false;
            }
            left -= 1;
            let head = chain.head_index();
            match read_packet(&mem, chain) {
                Some((header, payload)) => muxer.on_packet(reactor, &header, &payload, accept),
                None => self.stats.dropped.add(1),
            }
            queue.push_used(head, 0);
            true
        });
        if left < PACKETS_PER_EVENT {
            active.tx.notify();
        }
        active.tx_waits = left == 0;
        if active.tx_waits {
            reactor.again();
        }
    }

    /// Sends packets to the guest, as long as there are some and it has room for them.
    fn send(&mut self) {
        let Some(active) = &mut self.active else {
            return;
        };
        let mem = active.mem.clone();
        let mut sent = 0;
        while self.muxer.has_packets() && sent < PACKETS_PER_EVENT {
            let Some(chain) = active.rx.pop() else {
                // The driver is to notify us of new buffers; some may have come meanwhile.
                match active.rx.enable_notification() {
                    true => continue,
                    false => break,
                }
            };
            let head = chain.head_index();
            let Some((space, room)) = packet_space(&mem, chain) else {
                self.stats.dropped.add(1);
                active.rx.push_used(head, 0);
                sent += 1;
                continue;
            };
            let Some(header) = self.muxer.next_packet(&mut self.reactor, &room) else {
                active.rx.undo_pop();
                break;
            };
            space.write_header(header);
            active.rx.push_used(head, HEADER_LEN as u32 + header.len);
            sent += 1;
        }
        if sent > 0 {
            active.rx.notify();
        }
        if sent == PACKETS_PER_EVENT {
            self.reactor.again();
        }
    }

    fn on_ready(&mut self, ready: Ready) {
        match ready.token {
            HANDLE => self.take_requests(),
            LISTENER => self.take_clients(),
            token if self.clients.contains(token) => {
                if let Some(client) = self.clients.on_ready(&mut self.reactor, token) {
                    self.muxer.connect(&mut self.reactor, client);
                }
            }
            _ => self.muxer.on_ready(&mut self.reactor, ready),
        }
    }

    fn take_requests(&mut self) {
        let requests = self.shared.take();
        if requests.transport_reset {
            self.transport_reset();
        }
        for (port, stream) in requests.connects {
            let client = Client {
                stream,
                port,
                token: None,
            };
            self.muxer.connect(&mut self.reactor, client);
        }
    }

    fn take_clients(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        for _ in 0..EVENTS_AT_ONCE {
            match listener.accept() {
                Ok(stream) => self.clients.add(&mut self.reactor, stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // No descriptors left, most likely. The socket stays readable: look away for
                    // a while rather than spin.
                    self.reactor.unwatch(listener);
                    self.reactor.set_deadline(LISTENER, ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }

    fn on_deadlines(&mut self) {
        while let Some(token) = self.reactor.expired() {
            match token {
                LISTENER => self.watch_listener(),
                token if self.clients.contains(token) => self.clients.on_deadline(token),
                token => self.muxer.on_deadline(&mut self.reactor, token),
            }
        }
    }

    fn watch_listener(&mut self) {
        if let Some(listener) = &self.listener
            && self.reactor.watch_level(listener, LISTENER).is_err()
        {
            self.reactor.set_deadline(LISTENER, ACCEPT_AGAIN);
        }
    }
}

impl Active {
    fn send_event(&mut self, stats: &VsockStats) {
        while self.reset_waits {
            let Some(chain) = self.events.pop() else {
                if self.events.enable_notification() {
                    continue;
                }
                return;
            };
            let head = chain.head_index();
            let descriptor = chain.writable().next();
            let written = descriptor.is_some_and(|descriptor| {
                let fits = descriptor.len() as usize >= TRANSPORT_RESET.len();
                fits && self
                    .mem
                    .write_slice(&TRANSPORT_RESET, descriptor.addr())
                    .is_ok()
            });
            let len = match written {
                true => TRANSPORT_RESET.len() as u32,
                false => 0,
            };
            stats.dropped.add(u64::from(!written));
            self.events.push_used(head, len);
            self.events.notify();
            self.reset_waits = !written;
        }
    }
}

/// The socket for a guest's connection to a host port, if someone takes it.
fn open_host_port(shared: &Shared, listener: Option<&Listener>, port: u32) -> Option<UnixStream> {
    if shared.listens(port) {
        return shared.accept(port);
    }
    connect_to(&listener?.path_of_port(port)).ok()
}

/// Takes a chain of the guest's apart. What the header says of the payload has to be there.
fn read_packet(mem: &GuestMemory, chain: Chain) -> Option<(Header, Parts<'_>)> {
    let (header, mut payload) = Parts::of_chain(mem, chain, false)?.split_header()?;
    let header = header.read_header();
    if header.len > MAX_PACKET_LEN || header.len as usize > payload.len() {
        return None;
    }
    payload.truncate(header.len as usize);
    Some((header, payload))
}

/// Space for a packet to the guest. A buffer without room for payload is of no use.
fn packet_space(mem: &GuestMemory, chain: Chain) -> Option<(Parts<'_>, Parts<'_>)> {
    let (header, mut room) = Parts::of_chain(mem, chain, true)?.split_header()?;
    room.truncate(MAX_PACKET_LEN as usize);
    (!room.is_empty()).then_some((header, room))
}

impl VirtioDevice for Vsock {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn queue_sizes(&self) -> &[u16] {
        QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_bytes(&u64::from(self.guest_cid).to_le_bytes(), offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let queues = <[VirtQueue; 3]>::try_from(activation.queues);
        let Ok([rx, tx, events]) = queues else {
            return Err(ActivateError("not three queues".into()));
        };
        let watched = self.reactor.watch_level(&*self.shared, HANDLE);
        watched.map_err(|e| ActivateError(format!("cannot watch requests: {e}")))?;
        self.watch_listener();
        self.active = Some(Active {
            mem: activation.mem,
            rx,
            tx,
            events,
            tx_waits: false,
            reset_waits: false,
        });
        self.shared.set_active(true);
        Ok(())
    }

    fn process_queue(&mut self, index: usize) {
        match index {
            TX => self.receive(),
            EVENT => {
                if let Some(active) = &mut self.active {
                    active.send_event(&self.stats);
                }
            }
            _ => {}
        }
        if matches!(index, RX | TX) {
            self.send();
        }
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reactor.fd())
    }

    fn process_backend(&mut self) {
        if self.active.is_none() {
            return;
        }
        for ready in self.reactor.wait() {
            self.on_ready(ready);
        }
        self.on_deadlines();
        if self.active.as_ref().is_some_and(|active| active.tx_waits) {
            self.receive();
        }
        self.send();
    }

    fn reset(&mut self) {
        self.active = None;
        self.shared.set_active(false);
        self.reactor.unwatch(&*self.shared);
        if let Some(listener) = &self.listener {
            self.reactor.unwatch(listener);
        }
        self.drop_connections();
        self.reactor.quiet();
    }
}
