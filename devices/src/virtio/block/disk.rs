//! Requests in flight: begun from chains of the queue, and answered into them.

use std::sync::Arc;

use virtio_bindings::virtio_blk::*;
use vm_memory::{Bytes, GuestAddress};

use super::plan::{Limits, Plan, plan};
use super::request::{Request, total};
use super::stats::add;
use super::{
    Backend, BlockConfig, BlockError, BlockStats, Cache, Completion, Operation, QUEUE_SIZE, Token,
};
use crate::rate::RateLimiter;
use crate::virtio::{Chain, VirtQueue};

/// A drive: its backend, and the requests in flight.
pub(super) struct Disk<B> {
    /// The drive's id.
    pub id: String,
    pub backend: B,
    pub read_only: bool,
    pub cache: Cache,
    pub serial: [u8; 20],
    /// The driver does not know of flushes.
    pub durable: bool,
    pub stats: Arc<BlockStats>,
    /// Requests in flight, by token.
    pending: Vec<Option<Pending>>,
    free: Vec<Token>,
    /// Completions being worked off; kept for its room.
    done: Vec<Completion>,
    /// Chains were left in the queue.
    pub stalled: bool,
}

/// What is to be known of a request when it completes.
struct Pending {
    head: u16,
    status: GuestAddress,
    /// Room for data in.
    room: u32,
    /// Bytes to be moved.
    expected: u64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

impl Kind {
    fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Read { .. } => Self::Read,
            Operation::Write { .. } => Self::Write,
            Operation::Flush => Self::Flush,
            Operation::Discard { .. } => Self::Discard,
            Operation::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }
}

impl<B: Backend> Disk<B> {
    /// A drive as configured, with nothing in flight.
    pub fn new(config: &BlockConfig, backend: B) -> Result<Self, BlockError> {
        Ok(Self {
            id: config.id.clone(),
            backend,
            read_only: config.read_only,
            cache: config.cache,
            serial: config.serial_bytes()?,
            durable: false,
            stats: Arc::default(),
            pending: (0..QUEUE_SIZE).map(|_| None).collect(),
            free: (0..QUEUE_SIZE).rev().collect(),
            done: Vec::new(),
            stalled: false,
        })
    }

    /// Whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == usize::from(QUEUE_SIZE)
    }

    /// Whether no other request can be begun.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes back what the event announced.
    pub fn quiet(&self) {
        // Non-blocking: the count is of no interest, only that it is zero again.
        let _ = self.backend.event().read();
    }

    /// Takes a chain: answers it, or hands it to the backend. There is a free token. `false`: the
    /// limiter does not let it pass now, and it was put back.
    pub fn begin(&mut self, queue: &mut VirtQueue, chain: Chain, limiter: &RateLimiter) -> bool {
        let head = chain.head_index();
        let Ok(request) = Request::parse(chain, queue.mem()) else {
            add(&self.stats.malformed, 1);
            queue.push_used(head, 0);
            return true;
        };
        if !limiter.take(request.data_len()) {
            queue.undo_pop();
            return false;
        }
        let limits = Limits {
            capacity: self.backend.capacity(),
            read_only: self.read_only,
            flush: self.cache == Cache::Writeback,
            durable: self.durable,
            serial: &self.serial,
        };
        let room = total(&request.room) as u32;
        match plan(&request, queue.mem(), &limits) {
            Plan::Answer(status, written) => {
                if u32::from(status) != VIRTIO_BLK_S_OK {
                    add(&self.stats.errors, 1);
                }
                answer(queue, head, request.status, status, room, written);
            }
            Plan::Submit(operation, expected) => {
                let token = self.free.pop().expect("a free token");
                self.pending[usize::from(token)] = Some(Pending {
                    head,
                    status: request.status,
                    room,
                    expected,
                    kind: Kind::of(&operation),
                });
                self.backend.submit(token, operation);
            }
        }
        true
    }

    /// Hands back what the backend has finished.
    pub fn complete(&mut self, queue: &mut VirtQueue) {
        loop {
            self.backend.completed(&mut self.done);
            if self.done.is_empty() {
                return queue.notify();
            }
            let mut done = std::mem::take(&mut self.done);
            for completion in done.drain(..) {
                self.finish(queue, completion);
            }
            self.done = done;
            // What completed up to now has been announced too: without this the event loop would
            // wake for nothing. In this order nothing is missed.
            self.quiet();
        }
    }

    fn finish(&mut self, queue: &mut VirtQueue, completion: Completion) {
        let slot = self.pending.get_mut(usize::from(completion.token));
        let Some(pending) = slot.and_then(Option::take) else {
            return;
        };
        self.free.push(completion.token);
        let whole = matches!(completion.result, Ok(moved) if moved >= pending.expected);
        let (status, written) = match (whole, pending.kind) {
            (true, Kind::Read) => (VIRTIO_BLK_S_OK, pending.room),
            (true, _) => (VIRTIO_BLK_S_OK, 0),
            (false, _) => (VIRTIO_BLK_S_IOERR, 0),
        };
        match whole {
            true => self.count(&pending),
            false => add(&self.stats.errors, 1),
        }
        let Pending {
            head,
            status: at,
            room,
            ..
        } = pending;
        answer(queue, head, at, status as u8, room, written);
    }

    fn count(&self, pending: &Pending) {
        let stats = &self.stats;
        match pending.kind {
            Kind::Read => {
                add(&stats.reads, 1);
                add(&stats.read_bytes, pending.expected);
            }
            Kind::Write => {
                add(&stats.writes, 1);
                add(&stats.written_bytes, pending.expected);
            }
            Kind::Flush => add(&stats.flushes, 1),
            Kind::Discard => add(&stats.discards, 1),
            Kind::WriteZeroes => add(&stats.write_zeroes, 1),
        }
    }
}

/// Writes the status and gives the chain back. `written` bytes of data in were written, from the
/// start; only if that is all of them, the status follows without a gap and counts too (what the
/// driver may rely on, section 2.7.8.2).
fn answer(
    queue: &mut VirtQueue,
    head: u16,
    status_at: GuestAddress,
    status: u8,
    room: u32,
    written: u32,
) {
    let _ = queue.mem().write_obj(status, status_at);
    let len = if written == room { room + 1 } else { written };
    queue.push_used(head, len);
}
