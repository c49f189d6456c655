//! A guest's TCP/IP, on one end of a wire whose other end is the store.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant as Clock;
use smoltcp::wire::{EthernetAddress, IpCidr};
use tine_devices::mmds::{Mmds, MmdsConfig, MmdsVersion, Responder};
use tine_devices::virtio::net::{Detour, PEEK_LEN};

pub const STORE: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const GUEST_MAC: [u8; 6] = [6, 0, 0, 0, 0, 7];

/// The store of most tests.
pub fn store(version: MmdsVersion) -> Mmds {
    let mmds = Mmds::default();
    let config = MmdsConfig {
        version,
        ..MmdsConfig::default()
    };
    mmds.configure(config).unwrap();
    mmds.put(json!({
        "latest": {
            "meta-data": {"ami-id": "ami-1", "cpus": 2, "network": {"ip": "172.16.0.2"}},
            "user-data": "#!/bin/sh\necho hi\n",
        },
        "odd": [1, null],
    }))
    .unwrap();
    mmds
}

/// What is between the guest and the store.
pub trait Wire {
    /// Takes a frame from the guest.
    fn send(&mut self, frame: Vec<u8>);
    /// Frames for the guest.
    fn receive(&mut self) -> Vec<Vec<u8>>;
}

/// Nothing.
pub struct Direct {
    pub responder: Responder,
    due: Option<Instant>,
}

impl Direct {
    pub fn to(mmds: &Mmds) -> Self {
        Self {
            responder: mmds.responder(),
            due: None,
        }
    }
}

impl Wire for Direct {
    fn send(&mut self, mut frame: Vec<u8>) {
        let start = &frame[..frame.len().min(PEEK_LEN)];
        if self.responder.wants(start) {
            self.responder.take(&mut frame);
            self.responder.poll();
        }
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        if self.due.is_some_and(|due| due <= Instant::now()) {
            self.responder.poll();
        }
        let frames = std::iter::from_fn(|| self.responder.next_frame()).collect();
        self.responder.poll();
        self.due = self.responder.due().map(|after| Instant::now() + after);
        frames
    }
}

#[derive(Default)]
struct Queues {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

pub struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

pub struct Room<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl phy::Device for Queues {
    type RxToken<'a> = Received;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Clock) -> Option<(Received, Room<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Received(frame), Room(&mut self.sent)))
    }

    fn transmit(&mut self, _: Clock) -> Option<Room<'_>> {
        Some(Room(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// The guest.
pub struct Client<W> {
    pub wire: W,
    queues: Queues,
    interface: Interface,
    sockets: SocketSet<'static>,
    started: Instant,
    next_port: u16,
}

impl<W: Wire> Client<W> {
    /// A guest with a route to link-local addresses.
    pub fn new(wire: W) -> Self {
        Self::with_addr(wire, "172.16.0.2/0")
    }

    pub fn with_addr(wire: W, addr: &str) -> Self {
        let mut queues = Queues::default();
        let config = Config::new(EthernetAddress(GUEST_MAC).into());
        let mut interface = Interface::new(config, &mut queues, Clock::ZERO);
        let addr: IpCidr = addr.parse().unwrap();
        interface.update_ip_addrs(|addrs| addrs.push(addr).unwrap());
        Self {
            wire,
            queues,
            interface,
            sockets: SocketSet::new(Vec::new()),
            started: Instant::now(),
            next_port: 40_000,
        }
    }

    /// A guest that reaches the store by its router, whose address it knows.
    pub fn behind_router(wire: W) -> Self {
        let mut client = Self::with_addr(wire, "172.16.0.2/24");
        let router = Ipv4Addr::new(172, 16, 0, 1);
        client
            .interface
            .routes_mut()
            .add_default_ipv4_route(router)
            .unwrap();
        let mut reply = vec![
            6, 0, 0, 0, 0, 7, 6, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2,
        ];
        reply.extend([
            6, 0, 0, 0, 0, 1, 172, 16, 0, 1, 6, 0, 0, 0, 0, 7, 172, 16, 0, 2,
        ]);
        client.queues.received.push_back(reply);
        client
    }

    /// Lets both sides go on.
    pub fn run(&mut self) {
        let now = Clock::from_micros(self.started.elapsed().as_micros() as i64);
        self.interface
            .poll(now, &mut self.queues, &mut self.sockets);
        for frame in self.queues.sent.drain(..) {
            self.wire.send(frame);
        }
        self.queues.received.extend(self.wire.receive());
    }

    fn run_until(&mut self, mut done: impl FnMut(&mut Socket) -> bool, socket: SocketHandle) {
        let until = Instant::now() + Duration::from_secs(10);
        while !done(self.sockets.get_mut(socket)) {
            assert!(Instant::now() < until, "nothing happens any more");
            self.run();
        }
    }

    pub fn connect(&mut self) -> SocketHandle {
        self.connect_to(STORE)
    }

    pub fn connect_to(&mut self, addr: Ipv4Addr) -> SocketHandle {
        let socket = self.start_to_connect(addr);
        self.run_until(|socket| socket.may_send() || !socket.is_open(), socket);
        socket
    }

    pub fn start_to_connect(&mut self, addr: Ipv4Addr) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; 4096]);
        let mut socket = Socket::new(buffer(), buffer());
        self.next_port += 1;
        let context = self.interface.context();
        socket.connect(context, (addr, 80), self.next_port).unwrap();
        self.sockets.add(socket)
    }

    /// Goes on with ports that no one has used before.
    pub fn skip_ports(&mut self, count: u16) {
        self.next_port += count;
    }

    pub fn is_open(&mut self, socket: SocketHandle) -> bool {
        self.sockets.get_mut::<Socket>(socket).may_send()
    }

    pub fn send(&mut self, socket: SocketHandle, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let sent = self
                .sockets
                .get_mut::<Socket>(socket)
                .send_slice(bytes)
                .unwrap();
            bytes = &bytes[sent..];
            self.run();
        }
    }

    pub fn close(&mut self, socket: SocketHandle) {
        self.sockets.get_mut::<Socket>(socket).close();
    }

    /// The next answer on the connection.
    pub fn answer(&mut self, socket: SocketHandle) -> Answer {
        let mut bytes = Vec::new();
        loop {
            self.run_until(|socket| socket.can_recv() || !socket.may_recv(), socket);
            let end = self.sockets.get_mut::<Socket>(socket).recv(|part| {
                let before = bytes.len();
                bytes.extend_from_slice(part);
                match Answer::parse(&bytes) {
                    Some((_, len)) => (len - before, true),
                    None => (part.len(), part.is_empty()),
                }
            });
            match end {
                Ok(false) => {}
                Ok(true) => return Answer::parse(&bytes).expect("a whole answer").0,
                Err(_) => panic!("the connection ended within {:?}", String::from_utf8(bytes)),
            }
        }
    }

    /// Whether the store has ended the connection, and sent nothing more.
    pub fn ends(&mut self, socket: SocketHandle) -> bool {
        self.run_until(|socket| socket.can_recv() || !socket.may_recv(), socket);
        !self.sockets.get_mut::<Socket>(socket).can_recv()
    }

    /// Asks on a connection of its own.
    pub fn ask(&mut self, request: &str) -> Answer {
        let socket = self.connect();
        self.send(socket, request.as_bytes());
        let answer = self.answer(socket);
        self.close(socket);
        self.run_until(|socket| !socket.is_active(), socket);
        self.sockets.remove(socket);
        answer
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: store\r\n\r\n"))
    }

    pub fn get_with(&mut self, path: &str, headers: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\n{headers}\r\n\r\n"))
    }

    pub fn get_json(&mut self, path: &str) -> Value {
        let answer = self.get_with(path, "Accept: application/json");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = response.parse(bytes).unwrap() else {
            return None;
        };
        let own = |header: &httparse::Header| {
            let value = String::from_utf8(header.value.to_vec()).unwrap();
            (header.name.to_ascii_lowercase(), value)
        };
        let mut answer = Self {
            status: response.code.unwrap(),
            headers: response.headers.iter().map(own).collect(),
            body: String::new(),
        };
        let len: usize = answer.header("content-length").unwrap().parse().unwrap();
        let body = bytes.get(head..head + len)?;
        answer.body = String::from_utf8(body.to_vec()).unwrap();
        Some((answer, head + len))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(header, _)| header == name);
        header.map(|(_, value)| value.as_str())
    }
}
