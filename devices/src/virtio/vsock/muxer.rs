//! All connections: who is who, whose turn it is to send to the guest, and who has to go.
//!
//! Every connection with something to send stands in one queue, once, and sends one packet when
//! its turn comes; then it goes to the end. So none starves another.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::connection::{Connection, Reaction};
use super::endpoint::Endpoint;
use super::packet::{Header, Key, Parts, TYPE_STREAM, op};
use super::reactor::{Reactor, Ready, Token};
use super::stats::{Count, VsockStats};
use super::{HOST_CID, Limits, MAX_RESETS};

/// Host ports of connections from the host are given out from here on, away from those that
/// programs listen on.
const FIRST_HOST_PORT: u32 = 1 << 30;
/// The port number that stands for any port.
pub const PORT_ANY: u32 = u32::MAX;

/// A host socket on its way to become a connection to the guest.
pub struct Client {
    /// The socket.
    pub stream: UnixStream,
    /// The guest port it asks for.
    pub port: u32,
    /// Its token, if the reactor watches it already. It then waits for an `OK` line.
    pub token: Option<Token>,
}

/// All connections of the device.
pub struct Muxer {
    guest_cid: u64,
    endpoints: HashMap<Token, Endpoint>,
    /// Those of the endpoints that the guest knows, all but the lingering ones.
    by_key: HashMap<Key, Token>,
    /// Oldest first.
    lingering: BTreeSet<Token>,
    /// Who has something to send to the guest.
    queue: VecDeque<Token>,
    /// Resets for connections that are no more, complete.
    resets: VecDeque<Header>,
    /// Of the last connection that was made from the host.
    pub last_host_port: u32,
    limits: Limits,
    stats: Arc<VsockStats>,
}

impl Muxer {
    /// No connections.
    pub fn new(guest_cid: u32, limits: Limits, stats: Arc<VsockStats>) -> Self {
        Self {
            guest_cid: guest_cid.into(),
            endpoints: HashMap::new(),
            by_key: HashMap::new(),
            lingering: BTreeSet::new(),
            queue: VecDeque::new(),
            resets: VecDeque::new(),
            last_host_port: FIRST_HOST_PORT,
            limits,
            stats,
        }
    }

    /// Asks the guest for a connection. Where there is no room for one more, the client's socket
    /// is closed.
    pub fn connect(&mut self, reactor: &mut Reactor, client: Client) {
        let key = self.free_key(client.port);
        let token = client.token.unwrap_or_else(|| reactor.new_token());
        let watched = match client.token {
            // Announces again what the one who watched it before has been told.
            Some(_) => reactor.watch_write(&client.stream, token, false),
            None => reactor.watch(&client.stream, token),
        };
        if watched.is_err() || !self.make_room(reactor) {
            self.stats.refused.add(1);
            return;
        }
        let mut endpoint = Endpoint::new(key, Connection::to_guest(), client.stream, token);
        endpoint.greets = client.token.is_some();
        reactor.set_deadline(token, self.limits.request);
        self.insert(token, endpoint);
    }

    /// Takes a packet from the guest. `accept` makes the socket for a connection to a host port,
    /// if someone takes it.
    pub fn on_packet(
        &mut self,
        reactor: &mut Reactor,
        header: &Header,
        payload: &Parts,
        accept: impl FnOnce(u32) -> Option<UnixStream>,
    ) {
        self.stats.packets_from_guest.add(1);
        if header.src_cid != self.guest_cid || header.dst_cid != HOST_CID {
            self.stats.dropped.add(1);
            return;
        }
        if header.kind != TYPE_STREAM {
            return self.answer_with_reset(header);
        }
        match self.by_key.get(&header.key()) {
            Some(&token) if self.is_superseded(token, header) => {
                self.remove(reactor, token);
                self.accept(reactor, header, accept);
            }
            Some(&token) => self.on_endpoint_packet(reactor, token, header, payload),
            None if header.op == op::REQUEST => self.accept(reactor, header, accept),
            None => self.answer_with_reset(header),
        }
    }

    /// A guest that asks for a connection anew has forgotten one which we closed.
    fn is_superseded(&self, token: Token, header: &Header) -> bool {
        header.op == op::REQUEST && self.endpoints[&token].connection().is_closing()
    }

    fn accept(
        &mut self,
        reactor: &mut Reactor,
        request: &Header,
        accept: impl FnOnce(u32) -> Option<UnixStream>,
    ) {
        let token = reactor.new_token();
        let stream = match self.make_room(reactor) {
            true => accept(request.dst_port),
            false => None,
        };
        match stream {
            Some(stream) if reactor.watch(&stream, token).is_ok() => {
                let connection = Connection::from_guest(request);
                let endpoint = Endpoint::new(request.key(), connection, stream, token);
                self.stats.connections.add(1);
                self.insert(token, endpoint);
            }
            _ => {
                self.stats.refused.add(1);
                self.push_reset(request.key(), TYPE_STREAM);
            }
        }
    }

    fn on_endpoint_packet(
        &mut self,
        reactor: &mut Reactor,
        token: Token,
        header: &Header,
        payload: &Parts,
    ) {
        let endpoint = self.endpoints.get_mut(&token).expect("named by its key");
        let refused = !endpoint.connection().is_established();
        match endpoint.on_packet(header, payload, reactor, &self.stats) {
            Reaction::Nothing | Reaction::Data | Reaction::HalfClosed => self.schedule(token),
            Reaction::Accepted => {
                self.stats.connections.add(1);
                reactor.clear_deadline(token);
                self.schedule(token);
            }
            Reaction::Closed => {
                self.push_reset(header.key(), TYPE_STREAM);
                self.linger(reactor, token);
            }
            Reaction::Gone => {
                self.stats.refused.add(u64::from(refused));
                self.linger(reactor, token);
            }
            Reaction::Violation => self.reset(reactor, token),
        }
    }

    /// Takes what the reactor says of a socket.
    pub fn on_ready(&mut self, reactor: &mut Reactor, ready: Ready) {
        // It may have been removed since the event was taken.
        let Some(endpoint) = self.endpoints.get_mut(&ready.token) else {
            return;
        };
        endpoint.on_ready(ready, reactor);
        if endpoint.lingers && endpoint.is_drained() {
            self.remove(reactor, ready.token);
        } else {
            self.schedule(ready.token);
        }
    }

    /// Ends a connection whose deadline has passed.
    pub fn on_deadline(&mut self, reactor: &mut Reactor, token: Token) {
        if self.endpoints.contains_key(&token) {
            self.stats.timeouts.add(1);
            self.reset(reactor, token);
        }
    }

    /// Whether [`Self::next_packet`] may have something.
    pub fn has_packets(&self) -> bool {
        !self.resets.is_empty() || !self.queue.is_empty()
    }

    /// The next packet for the guest; its payload is written into `room`.
    pub fn next_packet(&mut self, reactor: &mut Reactor, room: &Parts) -> Option<Header> {
        if let Some(reset) = self.resets.pop_front() {
            return Some(reset);
        }
        while let Some(token) = self.queue.pop_front() {
            let Some(endpoint) = self.endpoints.get_mut(&token) else {
                continue;
            };
            endpoint.queued = false;
            let mut header = Header::to_guest(self.guest_cid, endpoint.key, op::RW);
            if !endpoint.next_packet(&mut header, room) {
                continue;
            }
            if header.op == op::SHUTDOWN && endpoint.connection().is_closing() {
                reactor.set_deadline(token, self.limits.close);
            }
            self.schedule(token);
            self.stats.packets_to_guest.add(1);
            self.stats.bytes_to_guest.add(header.len.into());
            return Some(header);
        }
        None
    }

    /// Drops all connections, without a word to the guest.
    pub fn clear(&mut self) {
        self.endpoints.clear();
        self.by_key.clear();
        self.lingering.clear();
        self.queue.clear();
        self.resets.clear();
    }

    fn insert(&mut self, token: Token, endpoint: Endpoint) {
        self.by_key.insert(endpoint.key, token);
        self.endpoints.insert(token, endpoint);
        self.schedule(token);
    }

    fn schedule(&mut self, token: Token) {
        if let Some(endpoint) = self.endpoints.get_mut(&token)
            && !endpoint.queued
            && endpoint.wants_to_send()
        {
            endpoint.queued = true;
            self.queue.push_back(token);
        }
    }

    /// Ends a connection for the guest. What it sent is still delivered.
    fn linger(&mut self, reactor: &mut Reactor, token: Token) {
        reactor.clear_deadline(token);
        let Some(endpoint) = self.endpoints.get_mut(&token) else {
            return;
        };
        if endpoint.is_drained() {
            return self.remove(reactor, token);
        }
        endpoint.lingers = true;
        self.lingering.insert(token);
        self.by_key.remove(&endpoint.key);
    }

    fn reset(&mut self, reactor: &mut Reactor, token: Token) {
        let endpoint = &self.endpoints[&token];
        let (key, established) = (endpoint.key, endpoint.connection().is_established());
        self.stats.resets.add(u64::from(established));
        self.push_reset(key, TYPE_STREAM);
        self.remove(reactor, token);
    }

    fn remove(&mut self, reactor: &mut Reactor, token: Token) {
        reactor.clear_deadline(token);
        let Some(endpoint) = self.endpoints.remove(&token) else {
            return;
        };
        if !self.lingering.remove(&token) {
            self.by_key.remove(&endpoint.key);
        }
        if endpoint.queued {
            self.queue.retain(|queued| *queued != token);
        }
    }

    /// Whether there is room for one more connection, if need be after the oldest lingering one
    /// has gone.
    fn make_room(&mut self, reactor: &mut Reactor) -> bool {
        if self.endpoints.len() < self.limits.connections {
            return true;
        }
        let Some(&oldest) = self.lingering.first() else {
            return false;
        };
        self.stats.evicted.add(1);
        self.remove(reactor, oldest);
        true
    }

    fn free_key(&mut self, guest: u32) -> Key {
        loop {
            self.last_host_port = match self.last_host_port.wrapping_add(1) {
                PORT_ANY => FIRST_HOST_PORT,
                port => port.max(FIRST_HOST_PORT),
            };
            let host = self.last_host_port;
            let key = Key { host, guest };
            if !self.by_key.contains_key(&key) {
                return key;
            }
        }
    }

    fn answer_with_reset(&mut self, header: &Header) {
        // A reset is never answered with one: two sides without memory would go on for ever.
        if header.op != op::RST {
            self.push_reset(header.key(), header.kind);
        }
    }

    fn push_reset(&mut self, key: Key, kind: u16) {
        if self.resets.len() == MAX_RESETS {
            self.stats.dropped.add(1);
            return;
        }
        let header = Header::to_guest(self.guest_cid, key, op::RST);
        self.resets.push_back(Header { kind, ..header });
    }
}
