//! The device: the one place where its queues, the sockets and the handles meet.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tine_snapshot::section::{Section, SectionError};
use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;

use super::clients::Clients;
use super::handle::{Shared, VsockHandle};
use super::listener::Listener;
use super::muxer::{Client, Muxer};
use super::queues::{EVENT, QUEUE_SIZES, Queues, RX, TX};
use super::reactor::{EVENTS_AT_ONCE, HANDLE, LISTENER, RESET, Reactor, Ready};
use super::state::VsockState;
use super::stats::VsockStats;
use super::stream::connect_to;
use super::{LIMITS, Limits, MIN_GUEST_CID, VsockConfig, VsockError};
use crate::state::RestoreError;
use crate::virtio::mmio::VIRTIO_RING_F_EVENT_IDX;
use crate::virtio::{
    ActivateError, Activation, QueuePlace, VirtioDevice, read_config_bytes, start_restored,
};

/// When accepting fails for lack of descriptors, the next try comes after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The socket device.
pub struct Vsock {
    guest_cid: u32,
    queues: Option<Queues>,
    muxer: Muxer,
    clients: Clients,
    listener: Option<Listener>,
    shared: Arc<Shared>,
    stats: Arc<VsockStats>,
    reactor: Reactor,
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
            queues: None,
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
        if let Some(queues) = &mut self.queues {
            queues.transport_reset(&mut self.reactor);
        }
    }

    fn drop_connections(&mut self) {
        self.muxer.clear();
        self.clients.clear();
        self.reactor.forget_sockets();
    }

    /// Takes packets from the guest.
    fn receive(&mut self) {
        if let Some(queues) = &mut self.queues {
            let (shared, listener) = (&self.shared, self.listener.as_ref());
            let accept = |port| open_host_port(shared, listener, port);
            queues.receive(&mut self.muxer, &mut self.reactor, accept);
        }
    }

    /// Sends packets to the guest.
    fn send(&mut self) {
        if let Some(queues) = &mut self.queues {
            queues.send(&mut self.muxer, &mut self.reactor);
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
                RESET => {
                    if let Some(queues) = &mut self.queues {
                        queues.stop_waiting();
                    }
                }
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

/// The socket for a guest's connection to a host port, if someone takes it.
fn open_host_port(shared: &Shared, listener: Option<&Listener>, port: u32) -> Option<UnixStream> {
    if shared.listens(port) {
        return shared.accept(port);
    }
    connect_to(&listener?.path_of_port(port)).ok()
}

impl Drop for Vsock {
    fn drop(&mut self) {
        // Handles may outlive the device: what they ask for then is refused, not queued.
        self.shared.set_active(false);
    }
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
        let queues = Queues::new(activation, self.stats.clone())?;
        let watched = self.reactor.watch_level(&*self.shared, HANDLE);
        watched.map_err(|e| ActivateError(format!("cannot watch requests: {e}")))?;
        self.watch_listener();
        self.queues = Some(queues);
        self.shared.set_active(true);
        Ok(())
    }

    fn process_queue(&mut self, index: usize) {
        match index {
            RX => {}
            TX => self.receive(),
            EVENT => {
                if let Some(queues) = &mut self.queues {
                    queues.serve_events(&mut self.reactor);
                }
            }
            _ => return,
        }
        self.send();
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reactor.fd())
    }

    fn process_backend(&mut self) {
        if self.queues.is_none() {
            return;
        }
        for ready in self.reactor.wait() {
            self.on_ready(ready);
        }
        self.on_deadlines();
        if self.queues.as_ref().is_some_and(Queues::has_left_packets) {
            self.receive();
        }
        self.send();
    }

    fn reset(&mut self) {
        self.queues = None;
        self.shared.set_active(false);
        self.reactor.unwatch(&*self.shared);
        if let Some(listener) = &self.listener {
            self.reactor.unwatch(listener);
        }
        self.drop_connections();
        self.reactor.quiet();
    }

    fn settle(&mut self) {
        // Packets are moved whole, and a chain without a use goes back at once.
    }

    fn queue_places(&self) -> Vec<QueuePlace> {
        self.queues.iter().flat_map(Queues::places).collect()
    }

    fn save(&self, name: &str) -> Result<Section, SectionError> {
        let last_host_port = self.muxer.last_host_port;
        Section::of(name, &VsockState { last_host_port })
    }

    fn restore(
        &mut self,
        section: &Section,
        activation: Option<Activation>,
    ) -> Result<(), RestoreError> {
        // Any number will do: ports are given out from where they can be.
        self.muxer.last_host_port = section.decode::<VsockState>()?.last_host_port;
        start_restored(self, section, activation)?;
        if let Some(queues) = &mut self.queues {
            queues.owe_transport_reset(&mut self.reactor);
        }
        Ok(())
    }
}
