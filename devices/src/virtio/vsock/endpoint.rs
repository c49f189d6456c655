//! One connection with its host socket.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::buffer::Buffer;
use super::connection::{Connection, Reaction};
use super::packet::{Header, Key, Parts};
use super::reactor::{Reactor, Ready, Token};
use super::stats::{Count, VsockStats};
use super::stream::{receive_parts, send_bytes, send_parts};

/// A connection that the muxer holds.
pub struct Endpoint {
    /// Its ports.
    pub key: Key,
    /// The guest is done with it; only what it sent is still to be delivered.
    pub lingers: bool,
    /// It stands in the muxer's queue.
    pub queued: bool,
    token: Token,
    connection: Connection,
    stream: UnixStream,
    /// The host program waits for an `OK` line.
    pub greets: bool,
    buffer: Buffer,
    /// There may be something to receive.
    readable: bool,
    /// There is an end of file to receive, sooner or later.
    ends: bool,
    /// The reactor watches the writing side.
    watches_write: bool,
    write_closed: bool,
}

impl Endpoint {
    /// Joins a connection with a socket, which `token` is watched by.
    pub fn new(key: Key, connection: Connection, stream: UnixStream, token: Token) -> Self {
        Self {
            key,
            lingers: false,
            queued: false,
            token,
            connection,
            stream,
            greets: false,
            buffer: Buffer::default(),
            readable: false,
            ends: false,
            watches_write: false,
            write_closed: false,
        }
    }

    /// The connection's protocol state.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether everything that the guest sent was delivered.
    pub fn is_drained(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Whether [`Self::next_packet`] has something.
    pub fn wants_to_send(&mut self) -> bool {
        if self.lingers {
            return false;
        }
        if self.readable {
            self.connection.wants_to_send();
        }
        self.connection.has_control() || (self.readable && self.connection.room() > 0)
    }

    /// Takes a packet from the guest, all but what concerns the muxer.
    pub fn on_packet(
        &mut self,
        header: &Header,
        payload: &Parts,
        reactor: &Reactor,
        stats: &VsockStats,
    ) -> Reaction {
        let reaction = self.connection.on_packet(header);
        match reaction {
            Reaction::Accepted if self.greets => {
                let line = format!("OK {}\n", self.key.host);
                // The socket is empty, so it takes the line whole, unless the client is gone:
                // then the next read finds that out.
                let _ = send_bytes(&self.stream, line.as_bytes());
            }
            Reaction::Data => self.deliver(payload, reactor, stats),
            Reaction::HalfClosed => {
                if !self.connection.guest_receives() {
                    // The host program's next write fails, as the guest asked for.
                    let _ = self.stream.shutdown(Shutdown::Read);
                }
                self.close_write_when_drained();
            }
            _ => {}
        }
        reaction
    }

    /// Hands payload to the host program, straight out of guest memory if nothing waits before it.
    fn deliver(&mut self, payload: &Parts, reactor: &Reactor, stats: &VsockStats) {
        let len = payload.len();
        if self.write_closed {
            return self.connection.forwarded(len as u32);
        }
        let mut sent = 0;
        if self.buffer.is_empty() {
            match send_parts(&self.stream, payload.as_slice()) {
                Ok(len) => sent = len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return self.host_reads_no_more(),
            }
            self.connection.forwarded(sent as u32);
        }
        stats.bytes_from_guest.add(len as u64);
        if sent < len {
            self.buffer.push(payload, sent);
            self.watch_write(reactor, true);
        }
    }

    /// Takes what the reactor says of the socket.
    pub fn on_ready(&mut self, ready: Ready, reactor: &Reactor) {
        self.readable |= ready.read || ready.hangup;
        self.ends |= ready.end || ready.hangup;
        if ready.hangup {
            self.host_reads_no_more();
            if !self.connection.guest_receives() {
                self.connection.host_sent_all();
            }
        } else if ready.write {
            self.flush();
        }
        if self.buffer.is_empty() && self.watches_write {
            self.watch_write(reactor, false);
        }
    }

    fn flush(&mut self) {
        match self.buffer.flush(&self.stream) {
            Ok(sent) => {
                self.connection.forwarded(sent as u32);
                self.close_write_when_drained();
            }
            Err(_) => self.host_reads_no_more(),
        }
    }

    fn host_reads_no_more(&mut self) {
        self.write_closed = true;
        self.connection.host_reads_no_more();
        self.buffer.clear();
        self.connection.forwarded(self.connection.held());
    }

    fn close_write_when_drained(&mut self) {
        if !self.connection.guest_sends() && self.buffer.is_empty() && !self.write_closed {
            self.write_closed = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    fn watch_write(&mut self, reactor: &Reactor, on: bool) {
        if self.watches_write != on {
            self.watches_write = on;
            // It fails only for lack of kernel memory; the data then stays where it is, and the
            // next packet or event tries again.
            if reactor.watch_write(&self.stream, self.token, on).is_err() {
                self.watches_write = !on;
            }
        }
    }

    /// Completes `header` to the next packet for the guest, and writes its payload into `room`.
    ///
    /// Payload goes first: it carries all that a credit update would, and of a host program that
    /// wrote and is gone the guest hears both in order. Where the guest lets no payload in, it is
    /// told of the end all the same.
    pub fn next_packet(&mut self, header: &mut Header, room: &Parts) -> bool {
        let len = self.connection.room() as usize;
        if self.readable && len > 0 {
            match receive_parts(&self.stream, &room.first(len)) {
                Ok((0, _)) => self.connection.host_sent_all(),
                Ok((len, all)) => {
                    self.connection.send(header, len as u32);
                    // What comes next is announced anew: the guest is told now, and not after a look
                    // for more.
                    self.readable = self.ends || !all;
                    return true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // A reset: what had been sent before it was received before it.
                Err(_) => self.connection.host_sent_all(),
            }
            self.readable = false;
        }
        self.connection.next_control(header)
    }
}
