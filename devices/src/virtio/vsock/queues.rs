//! The device's three queues while the driver runs: packets from the guest, packets to it, and the
//! event that tells the driver that all connections are gone.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use vm_memory::Bytes;

use super::muxer::Muxer;
use super::packet::{HEADER_LEN, Header, Parts};
use super::reactor::{RESET, Reactor};
use super::stats::{Count, VsockStats};
use super::{MAX_PACKET_LEN, PACKETS_PER_EVENT};
use crate::GuestMemory;
use crate::virtio::{ActivateError, Activation, Chain, QueuePlace, VirtQueue};

/// The queue of packets to the guest.
pub const RX: usize = 0;
/// The queue of packets from the guest.
pub const TX: usize = 1;
/// The queue of events.
pub const EVENT: usize = 2;
/// Their sizes. Linux fills the first with 4 KiB buffers at boot, one for two descriptors: enough
/// for what a connection has in flight, and not more memory than that.
pub const QUEUE_SIZES: &[u16] = &[128, 128, 64];

/// The event that tells the driver that all connections are gone.
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();
/// A driver that has no buffers for events is not waited for longer than this.
const RESET_TIMEOUT: Duration = Duration::from_secs(2);

/// The queues of a running driver.
pub struct Queues {
    mem: Arc<GuestMemory>,
    rx: VirtQueue,
    tx: VirtQueue,
    events: VirtQueue,
    /// The guest has sent more than its share; the rest is still in the queue.
    tx_waits: bool,
    /// The driver is to be told that all connections are gone, and had no buffer for it.
    reset_due: bool,
    /// Nothing is sent until the driver has dealt with that. Linux handles the queues side by
    /// side: a connection that is new to it could fall victim to a reset meant for the old ones.
    held: bool,
    stats: Arc<VsockStats>,
}

impl Queues {
    /// The queues that the driver has set up.
    pub fn new(activation: Activation, stats: Arc<VsockStats>) -> Result<Self, ActivateError> {
        let queues = <[VirtQueue; 3]>::try_from(activation.queues);
        let Ok([rx, tx, events]) = queues else {
            return Err(ActivateError("a socket device has three queues".into()));
        };
        Ok(Self {
            mem: activation.mem,
            rx,
            tx,
            events,
            tx_waits: false,
            reset_due: false,
            held: false,
            stats,
        })
    }

    /// Whether [`Self::receive`] has left packets in the queue.
    pub fn has_left_packets(&self) -> bool {
        self.tx_waits
    }

    /// Takes packets from the guest, a share of them. `accept` makes the socket for a connection
    /// to a host port, if someone takes it.
    pub fn receive(
        &mut self,
        muxer: &mut Muxer,
        reactor: &mut Reactor,
        accept: impl Fn(u32) -> Option<UnixStream>,
    ) {
        let mem = &self.mem;
        let mut left = PACKETS_PER_EVENT;
        self.tx.drain(|queue, chain| {
            if left == 0 {
                queue.undo_pop();
                return false;
            }
            left -= 1;
            let head = chain.head_index();
            match read_packet(mem, chain) {
                Some((header, payload)) => muxer.on_packet(reactor, &header, &payload, &accept),
                None => self.stats.dropped.add(1),
            }
            queue.push_used(head, 0);
            true
        });
        if left < PACKETS_PER_EVENT {
            self.tx.notify();
        }
        self.tx_waits = left == 0;
        if self.tx_waits {
            reactor.again();
        }
    }

    /// Sends packets to the guest, a share of them, as long as there are some and it has room.
    pub fn send(&mut self, muxer: &mut Muxer, reactor: &mut Reactor) {
        if self.held {
            return;
        }
        let mut turns = 0;
        let mut used = false;
        while muxer.has_packets() && turns < PACKETS_PER_EVENT {
            turns += 1;
            let Some(chain) = self.rx.pop() else {
                // The driver is to notify us of new buffers; some may have come meanwhile.
                match self.rx.enable_notification() {
                    true => continue,
                    false => break,
                }
            };
            let head = chain.head_index();
            let Some((space, room)) = packet_space(&self.mem, chain) else {
                self.stats.dropped.add(1);
                self.rx.push_used(head, 0);
                used = true;
                continue;
            };
            let Some(header) = muxer.next_packet(reactor, &room) else {
                self.rx.undo_pop();
                break;
            };
            space.write_header(header);
            self.rx.push_used(head, HEADER_LEN as u32 + header.len);
            used = true;
        }
        if used {
            self.rx.notify();
        }
        if turns == PACKETS_PER_EVENT && muxer.has_packets() {
            reactor.again();
        }
    }

    /// Tells the driver that all connections are gone, as soon as it has a buffer for that, and
    /// sends nothing else until it has heard.
    pub fn transport_reset(&mut self, reactor: &mut Reactor) {
        self.owe_transport_reset(reactor);
        self.serve_events(reactor);
    }

    /// The same as soon as the driver has set up a buffer, or the device is told to look for one.
    pub fn owe_transport_reset(&mut self, reactor: &mut Reactor) {
        self.reset_due = true;
        self.held = true;
        reactor.set_deadline(RESET, RESET_TIMEOUT);
    }

    /// Where the device is in each.
    pub fn places(&self) -> [QueuePlace; 3] {
        [&self.rx, &self.tx, &self.events].map(VirtQueue::place)
    }

    /// Sends the event that is due, if there is a buffer. All other buffers go back empty: the
    /// driver offers them anew when it has dealt with the event, which is how we know.
    pub fn serve_events(&mut self, reactor: &mut Reactor) {
        let mut told = false;
        for _ in 0..QUEUE_SIZES[EVENT] {
            let Some(chain) = self.events.pop() else {
                match self.events.enable_notification() {
                    true => continue,
                    false => break,
                }
            };
            if !self.reset_due && !told {
                self.events.undo_pop();
                self.held = false;
                return reactor.clear_deadline(RESET);
            }
            let head = chain.head_index();
            let sent = self.reset_due && write_event(&self.mem, chain);
            self.stats.dropped.add(u64::from(self.reset_due && !sent));
            let len = if sent { TRANSPORT_RESET.len() } else { 0 };
            self.events.push_used(head, len as u32);
            told = true;
            self.reset_due &= !sent;
        }
        if told {
            self.events.notify();
        }
    }

    /// Goes on without having told the driver, which has no buffers for events. One that has been
    /// told offers its buffers anew as soon as it runs: a restored machine may stand still, and then
    /// what is sent before would be reset with all the rest.
    pub fn stop_waiting(&mut self) {
        self.held &= !self.reset_due;
    }
}

fn write_event(mem: &GuestMemory, chain: Chain) -> bool {
    chain.writable().next().is_some_and(|descriptor| {
        let fits = descriptor.len() as usize >= TRANSPORT_RESET.len();
        fits && mem.write_slice(&TRANSPORT_RESET, descriptor.addr()).is_ok()
    })
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
