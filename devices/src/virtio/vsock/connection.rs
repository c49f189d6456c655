//! One connection's protocol: what a packet from the guest means, and what the guest is to be
//! sent. No sockets, no guest memory, no clock; [`super::endpoint`] joins it with those.

use super::credit::Credit;
use super::packet::{Header, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};

/// What the owner of a connection has to do about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing, or nothing but to send what became due.
    Nothing,
    /// The guest accepted our request.
    Accepted,
    /// Hand the payload to the host program, and report it by [`Connection::forwarded`].
    Data,
    /// The guest closed a direction: see [`Connection::guest_sends`] and
    /// [`Connection::guest_receives`].
    HalfClosed,
    /// The guest closed both directions and waits for a reset to confirm it.
    Closed,
    /// The guest reset the connection.
    Gone,
    /// The packet is impossible: the connection ends with a reset.
    Violation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// We asked the guest and wait for its answer.
    Requested,
    Established,
}

/// The protocol state of one connection.
#[derive(Debug)]
pub struct Connection {
    stage: Stage,
    credit: Credit,
    /// A REQUEST or RESPONSE that is to be sent.
    opening: Option<u16>,
    credit_asked_for: bool,
    /// We have asked for credit since it last grew.
    credit_requested: bool,
    request_credit: bool,
    /// Directions that the host program closed, as flags of a SHUTDOWN.
    host_shutdown: u32,
    /// These, as far as the guest knows.
    announced: u32,
    guest_shutdown: u32,
}

impl Connection {
    /// A connection that the host asks for.
    pub fn to_guest() -> Self {
        Self::new(Stage::Requested, op::REQUEST)
    }

    /// A connection that the guest asked for by `request`, and that the host accepts.
    pub fn from_guest(request: &Header) -> Self {
        let mut connection = Self::new(Stage::Established, op::RESPONSE);
        connection.credit.heard(request.buf_alloc, request.fwd_cnt);
        connection
    }

    fn new(stage: Stage, opening: u16) -> Self {
        Self {
            stage,
            credit: Credit::default(),
            opening: Some(opening),
            credit_asked_for: false,
            credit_requested: false,
            request_credit: false,
            host_shutdown: 0,
            announced: 0,
            guest_shutdown: 0,
        }
    }

    /// Takes a packet. After [`Reaction::Closed`], [`Reaction::Gone`] and [`Reaction::Violation`]
    /// the connection is over.
    pub fn on_packet(&mut self, header: &Header) -> Reaction {
        if header.op == op::RST {
            return Reaction::Gone;
        }
        if self.credit.heard(header.buf_alloc, header.fwd_cnt) {
            self.credit_requested = false;
            self.request_credit = false;
        }
        match (self.stage, header.op) {
            // A response to a request that was not sent yet answers nothing.
            (Stage::Requested, op::RESPONSE) if self.opening.is_none() => {
                self.stage = Stage::Established;
                Reaction::Accepted
            }
            (Stage::Requested, _) => Reaction::Violation,
            (Stage::Established, op::RW) => self.on_data(header.len),
            (Stage::Established, op::SHUTDOWN) => self.on_shutdown(header.flags),
            (Stage::Established, op::CREDIT_UPDATE) => Reaction::Nothing,
            (Stage::Established, op::CREDIT_REQUEST) => {
                self.credit_asked_for = true;
                Reaction::Nothing
            }
            (Stage::Established, _) => Reaction::Violation,
        }
    }

    fn on_data(&mut self, len: u32) -> Reaction {
        // A guest that writes on after both directions are closed gets a reset. While the host
        // program has something left to say it is heard out first.
        let over = self.host_shutdown == SHUTDOWN_BOTH || !self.guest_sends();
        let early = self.opening.is_some();
        if over || early || !self.credit.received(len) {
            return Reaction::Violation;
        }
        Reaction::Data
    }

    fn on_shutdown(&mut self, flags: u32) -> Reaction {
        self.guest_shutdown |= flags & SHUTDOWN_BOTH;
        match self.guest_shutdown {
            SHUTDOWN_BOTH => Reaction::Closed,
            _ => Reaction::HalfClosed,
        }
    }

    /// Whether the guest may still send.
    pub fn guest_sends(&self) -> bool {
        self.guest_shutdown & SHUTDOWN_SEND == 0
    }

    /// Whether the guest still receives.
    pub fn guest_receives(&self) -> bool {
        self.guest_shutdown & SHUTDOWN_RECEIVE == 0
    }

    /// Whether the guest has accepted, or asked for, this connection.
    pub fn is_established(&self) -> bool {
        self.stage == Stage::Established
    }

    /// Whether both directions are closed from the host and the guest knows.
    pub fn is_closing(&self) -> bool {
        self.announced == SHUTDOWN_BOTH
    }

    /// The host program took `len` bytes of what the guest sent, or never will.
    pub fn forwarded(&mut self, len: u32) {
        self.credit.forwarded(len);
    }

    /// The host program said all that it had to say, and all of it was sent.
    pub fn host_sent_all(&mut self) {
        self.host_shutdown |= SHUTDOWN_SEND;
    }

    /// The host program will not read any more.
    pub fn host_reads_no_more(&mut self) {
        self.host_shutdown |= SHUTDOWN_RECEIVE;
    }

    /// How much payload can be sent to the guest now.
    pub fn room(&self) -> u32 {
        match self.can_send() {
            true => self.credit.room(),
            false => 0,
        }
    }

    fn can_send(&self) -> bool {
        let open = self.host_shutdown & SHUTDOWN_SEND == 0 && self.guest_receives();
        self.is_established() && self.opening.is_none() && open
    }

    /// The host program has something to send. Asks the guest for credit, once, if there is none.
    pub fn wants_to_send(&mut self) {
        if self.can_send() && self.credit.room() == 0 && !self.credit_requested {
            self.credit_requested = true;
            self.request_credit = true;
        }
    }

    /// Whether [`Self::next_control`] has something.
    pub fn has_control(&self) -> bool {
        self.opening.is_some() || (self.is_established() && self.has_established_control())
    }

    fn has_established_control(&self) -> bool {
        self.credit_due() || self.request_credit || self.host_shutdown != self.announced
    }

    fn credit_due(&self) -> bool {
        self.guest_sends() && (self.credit_asked_for || self.credit.update_due())
    }

    /// Completes `header` to the next packet without payload that the guest is to be sent.
    pub fn next_control(&mut self, header: &mut Header) -> bool {
        if !self.has_control() {
            return false;
        }
        if let Some(op) = self.opening.take() {
            header.op = op;
        } else if self.host_shutdown != self.announced {
            self.announced = self.host_shutdown;
            header.op = op::SHUTDOWN;
            header.flags = self.announced;
        } else if self.request_credit {
            self.request_credit = false;
            header.op = op::CREDIT_REQUEST;
        } else {
            header.op = op::CREDIT_UPDATE;
        }
        self.stamp(header);
        true
    }

    /// Completes `header` to a packet with `len` bytes of payload, at most [`Self::room`].
    pub fn send(&mut self, header: &mut Header, len: u32) {
        debug_assert!(len <= self.room());
        header.op = op::RW;
        header.len = len;
        self.credit.sent(len);
        self.stamp(header);
    }

    fn stamp(&mut self, header: &mut Header) {
        // Every packet says how much space there is, whatever else it says.
        self.credit_asked_for = false;
        (header.buf_alloc, header.fwd_cnt) = self.credit.tell();
    }

    /// Bytes that the guest sent and the host program has not taken.
    pub fn held(&self) -> u32 {
        self.credit.held()
    }
}
