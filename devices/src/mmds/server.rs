//! A host with one address and one port, inside a network device: from frames to requests.
//!
//! TCP, ARP and IP are `smoltcp`'s. Connections are made when they are needed and kept for the next
//! one; all of it is made when the guest has sent a first frame.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as Clock;
use smoltcp::wire::{EthernetAddress, IpCidr};

use super::http::{Step, step};
use super::link::Link;
use super::{MAX_CONNECTIONS, MAX_REQUEST_LEN, Mmds};
use crate::virtio::net::Detour;

/// The address of the host inside the device.
const MAC: [u8; 6] = [0x06, 0x01, 0x23, 0x45, 0x67, 0x01];
const PORT: u16 = 80;
const RECEIVE_LEN: usize = 4096;
const SEND_LEN: usize = 8192;
/// A connection on which nothing happens ends.
const IDLE: Duration = Duration::from_secs(15);
/// How long a neighbour's address is taken for granted; less than the library does.
const NEIGHBOUR_LIFE: Duration = Duration::from_secs(20);
/// Rounds between library and connections before others have their turn.
const MAX_ROUNDS: usize = 16;

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];

/// The metadata store as a host inside a network device.
pub struct Responder {
    mmds: Mmds,
    addr: Ipv4Addr,
    stack: Option<Box<Stack>>,
}

struct Stack {
    mmds: Mmds,
    addr: Ipv4Addr,
    link: Link,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<Connection>,
    started: Instant,
    /// Who the library has been told of last.
    neighbour: Option<([u8; 6], [u8; 4], Instant)>,
}

struct Connection {
    socket: SocketHandle,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Bytes of the answer that are on their way.
    sent: usize,
    /// The connection ends after the answer.
    close: bool,
    /// When something happened last, while there is someone.
    last: Option<Instant>,
}

impl Responder {
    pub(super) fn new(mmds: Mmds) -> Self {
        let addr = mmds.config().ipv4_address;
        Self {
            mmds,
            addr,
            stack: None,
        }
    }
}

impl Detour for Responder {
    fn wants(&self, start: &[u8]) -> bool {
        let target = match start.get(12..14) {
            Some(kind) if kind == ARP => start.get(38..42),
            Some(kind) if kind == IPV4 => start.get(30..34),
            _ => None,
        };
        target == Some(&self.addr.octets())
    }

    fn take(&mut self, frame: &mut [u8]) {
        let stack = &mut self.stack;
        let stack = stack.get_or_insert_with(|| Box::new(Stack::new(&self.mmds, self.addr)));
        stack.take(frame);
    }

    fn poll(&mut self) {
        if let Some(stack) = &mut self.stack {
            stack.poll();
        }
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.stack.as_mut()?.link.pop()
    }

    fn has_frames(&self) -> bool {
        let stack = self.stack.as_ref();
        stack.is_some_and(|stack| !stack.link.is_empty())
    }

    fn due(&mut self) -> Option<Duration> {
        self.stack.as_mut()?.due()
    }

    fn reset(&mut self) {
        self.stack = None;
    }
}

impl Stack {
    fn new(mmds: &Mmds, addr: Ipv4Addr) -> Self {
        let mut seed = [0; 8];
        let _ = getrandom(&mut seed, GetRandomFlags::NONBLOCK);
        let mut config = Config::new(EthernetAddress(MAC).into());
        config.random_seed = u64::from_ne_bytes(seed);
        let mut link = Link::default();
        let mut interface = Interface::new(config, &mut link, Clock::ZERO);
        // The guest may have any address: everyone is a neighbour.
        interface.update_ip_addrs(|addrs| {
            let _ = addrs.push(IpCidr::new(addr.into(), 0));
        });
        Self {
            mmds: mmds.clone(),
            addr,
            link,
            interface,
            sockets: SocketSet::new(Vec::new()),
            connections: Vec::new(),
            started: Instant::now(),
            neighbour: None,
        }
    }

    fn take(&mut self, frame: &mut [u8]) {
        if frame.get(12..14) == Some(&IPV4) {
            self.learn(frame);
            // Sent to a router, as a guest without a route to link-local addresses does.
            frame[..6].copy_from_slice(&MAC);
        }
        self.link.push(frame.to_vec());
    }

    /// Tells the library who it will answer, so that it does not have to ask: a guest that came by
    /// its router may not answer.
    fn learn(&mut self, frame: &[u8]) {
        let (Ok(mac), Some(Ok(addr))) = (
            <[u8; 6]>::try_from(&frame[6..12]),
            frame.get(26..30).map(<[u8; 4]>::try_from),
        ) else {
            return;
        };
        let now = Instant::now();
        let known = |(known_mac, known_addr, since)| {
            (known_mac, known_addr) == (mac, addr) && now - since < NEIGHBOUR_LIFE
        };
        if self.neighbour.is_some_and(known) {
            return;
        }
        self.neighbour = Some((mac, addr, now));
        let mut reply = Vec::with_capacity(42);
        reply.extend(MAC);
        reply.extend(mac);
        reply.extend(ARP);
        reply.extend([0, 1, 8, 0, 6, 4, 0, 2]);
        reply.extend(mac);
        reply.extend(addr);
        reply.extend(MAC);
        reply.extend(self.addr.octets());
        self.link.push(reply);
    }

    fn poll(&mut self) {
        self.offer_connection();
        for _ in 0..MAX_ROUNDS {
            let now = Clock::from_micros(self.started.elapsed().as_micros() as i64);
            self.interface.poll(now, &mut self.link, &mut self.sockets);
            let mut busy = false;
            for connection in &mut self.connections {
                let socket = self.sockets.get_mut::<Socket>(connection.socket);
                busy |= connection.serve(socket, &self.mmds);
            }
            self.offer_connection();
            if !busy {
                return;
            }
        }
    }

    fn due(&mut self) -> Option<Duration> {
        let elapsed = self.started.elapsed();
        let now = Clock::from_micros(elapsed.as_micros() as i64);
        let lasts = self
            .connections
            .iter()
            .filter_map(|connection| connection.last);
        let idle = lasts
            .min()
            .map(|last| (last + IDLE).saturating_duration_since(Instant::now()));
        // While the guest takes no frames there is no use in making others.
        let delay = match self.link.is_full() {
            true => None,
            false => self.interface.poll_delay(now, &self.sockets),
        };
        let delay = delay.map(Duration::from);
        let first = idle.into_iter().chain(delay).min();
        // Everything that can be done at once has been.
        first.map(|after| after.max(Duration::from_millis(1)))
    }

    /// Sees to it that someone listens, as long as there is room.
    fn offer_connection(&mut self) {
        let sockets = &mut self.sockets;
        let mut idle = None;
        for connection in &self.connections {
            match sockets.get_mut::<Socket>(connection.socket).state() {
                State::Listen => return,
                State::Closed => idle = Some(connection.socket),
                // It has been heard of last: only latecomers could still be for it.
                State::TimeWait => idle = idle.or(Some(connection.socket)),
                _ => {}
            }
        }
        let socket = match idle {
            Some(socket) => socket,
            None if self.connections.len() < MAX_CONNECTIONS => {
                let buffer = |len| SocketBuffer::new(vec![0; len]);
                let socket = sockets.add(Socket::new(buffer(RECEIVE_LEN), buffer(SEND_LEN)));
                self.connections.push(Connection::new(socket));
                socket
            }
            None => return,
        };
        let listening = sockets.get_mut::<Socket>(socket);
        if listening.state() == State::TimeWait {
            listening.abort();
        }
        listening.set_nagle_enabled(false);
        listening.set_ack_delay(None);
        let _ = listening.listen(PORT);
        if let Some(connection) = self.connections.iter_mut().find(|c| c.socket == socket) {
            *connection = Connection::new(socket);
        }
    }
}

impl Connection {
    fn new(socket: SocketHandle) -> Self {
        Self {
            socket,
            request: Vec::new(),
            answer: Vec::new(),
            sent: 0,
            close: false,
            last: None,
        }
    }

    /// Takes what came, and sends what can be sent; `true` if something was done.
    fn serve(&mut self, socket: &mut Socket, mmds: &Mmds) -> bool {
        if !socket.is_active() || socket.state() == State::TimeWait {
            self.last = None;
            return false;
        }
        let now = Instant::now();
        let last = *self.last.get_or_insert(now);
        let mut busy = false;
        while self.request.len() < MAX_REQUEST_LEN && socket.can_recv() {
            let room = MAX_REQUEST_LEN - self.request.len();
            let received = socket.recv(|bytes| {
                let len = bytes.len().min(room);
                self.request.extend_from_slice(&bytes[..len]);
                (len, len)
            });
            busy |= received.is_ok_and(|len| len > 0);
        }
        busy |= self.answer_next(mmds, now);
        if self.sent < self.answer.len()
            && let Ok(len @ 1..) = socket.send_slice(&self.answer[self.sent..])
        {
            self.sent += len;
            busy = true;
        }
        let done = self.sent == self.answer.len();
        // The answer's last bytes still go out after this.
        if done && (self.close || !socket.may_recv()) && socket.may_send() {
            socket.close();
            busy = true;
        }
        if busy {
            self.last = Some(now);
        } else if now - last >= IDLE {
            socket.abort();
            busy = true;
        }
        busy
    }

    /// Makes the next answer, when the one before is on its way.
    fn answer_next(&mut self, mmds: &Mmds, now: Instant) -> bool {
        if self.close || self.sent < self.answer.len() || self.request.is_empty() {
            return false;
        }
        match step(mmds, &self.request, now) {
            Step::More => false,
            Step::Answer {
                consumed,
                bytes,
                close,
            } => {
                self.request.drain(..consumed.min(self.request.len()));
                (self.answer, self.sent, self.close) = (bytes, 0, close);
                true
            }
        }
    }
}
