//! Which queue is which, and what is done with the chains of each.

use std::sync::Arc;

use vm_memory::Bytes;

use super::handle::{Count, Shared};
use super::pages::{PageList, free_ranges, within};
use super::{CHAINS_PER_EVENT, GuestMemoryStats, MemoryReclaim, PAGE};
use crate::GuestMemory;
use crate::bus::lock;
use crate::virtio::{Activation, Chain, Interrupt, QueuePlace, VirtQueue};

pub(super) const F_STATS_VQ: u64 = 1 << 1;
pub(super) const F_DEFLATE_ON_OOM: u64 = 1 << 2;
pub(super) const F_FREE_PAGE_HINT: u64 = 1 << 3;
pub(super) const F_REPORTING: u64 = 1 << 5;

/// What a queue is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Inflate,
    Deflate,
    Statistics,
    Hinting,
    Reporting,
}

/// The queues of a running driver.
pub(super) struct Queues {
    mem: Arc<GuestMemory>,
    pub interrupt: Arc<Interrupt>,
    /// In the order of their numbers. Queues of features that were not agreed on do not count:
    /// those behind them move up, as Linux has it over MMIO.
    queues: Vec<(Role, VirtQueue)>,
    pages: PageList,
    /// The chain that the guest tells of its memory with, kept until it is to tell anew.
    statistics: Option<u16>,
    reclaim: Arc<dyn MemoryReclaim>,
    shared: Arc<Shared>,
}

impl Queues {
    pub fn new(
        activation: Activation,
        reclaim: Arc<dyn MemoryReclaim>,
        shared: Arc<Shared>,
    ) -> Self {
        let roles = [
            (Role::Inflate, 0),
            (Role::Deflate, 0),
            (Role::Statistics, F_STATS_VQ),
            (Role::Hinting, F_FREE_PAGE_HINT),
            (Role::Reporting, F_REPORTING),
        ];
        let agreed = roles
            .into_iter()
            .filter(|(_, feature)| activation.features & feature == *feature)
            .map(|(role, _)| role);
        Self {
            mem: activation.mem,
            interrupt: activation.interrupt,
            queues: agreed.zip(activation.queues).collect(),
            pages: PageList::default(),
            statistics: None,
            reclaim,
            shared,
        }
    }

    /// Works on a queue; `true` if others should have their turn before it goes on.
    pub fn run(&mut self, index: usize) -> bool {
        let Some((role, mut queue)) = self.take(index) else {
            return false;
        };
        let mut left = CHAINS_PER_EVENT;
        let mut share = false;
        queue.drain(|queue, chain| {
            if left == 0 {
                share = true;
                queue.undo_pop();
                return false;
            }
            left -= 1;
            let head = chain.head_index();
            match role {
                Role::Inflate => self.inflate(chain),
                Role::Deflate => {
                    self.pages.load(&self.mem, chain);
                    self.shared
                        .counters
                        .deflated_pages
                        .add(self.pages.len() as u64);
                }
                Role::Hinting => self.hint(chain),
                Role::Reporting => {
                    let bytes = self.give_back(free_ranges(chain));
                    self.shared.counters.reported_bytes.add(bytes);
                }
                Role::Statistics => {
                    self.told(chain);
                    // A second one at a time is against the rules, and no harm.
                    if let Some(earlier) = self.statistics.replace(head) {
                        queue.push_used(earlier, 0);
                    }
                    return true;
                }
            }
            queue.push_used(head, 0);
            true
        });
        queue.notify();
        self.queues.insert(index, (role, queue));
        share
    }

    /// Where the device is in each, from the first on.
    pub fn places(&self) -> impl Iterator<Item = QueuePlace> {
        self.queues.iter().map(|(_, queue)| queue.place())
    }

    /// Works on all queues.
    pub fn run_all(&mut self) -> bool {
        let shares = (0..self.queues.len()).map(|index| self.run(index));
        shares.fold(false, |any, share| any | share)
    }

    /// Asks the guest to tell of its memory.
    pub fn ask_for_statistics(&mut self) {
        let Some(head) = self.statistics.take() else {
            return;
        };
        let queue = self
            .queues
            .iter_mut()
            .find(|(role, _)| *role == Role::Statistics);
        if let Some((_, queue)) = queue {
            queue.push_used(head, 0);
            queue.notify();
        }
    }

    /// Puts the chain in hand back into the ring.
    pub fn settle(&mut self) {
        if self.statistics.take().is_some() {
            let queue = self
                .queues
                .iter_mut()
                .find(|(role, _)| *role == Role::Statistics);
            if let Some((_, queue)) = queue {
                queue.undo_pop();
            }
        }
    }

    fn take(&mut self, index: usize) -> Option<(Role, VirtQueue)> {
        (index < self.queues.len()).then(|| self.queues.remove(index))
    }

    fn inflate(&mut self, chain: Chain) {
        self.pages.load(&self.mem, chain);
        self.shared
            .counters
            .inflated_pages
            .add(self.pages.len() as u64);
        let mut pages = std::mem::take(&mut self.pages);
        self.give_back(pages.ranges());
        self.pages = pages;
    }

    fn hint(&self, chain: Chain) {
        let mut chain = chain.peekable();
        let command = chain.next_if(|first| !first.is_write_only());
        if let Some(command) = command {
            let id = self.mem.read_obj::<u32>(command.addr());
            if let Some(id) = id.ok().filter(|_| command.len() >= 4) {
                let mut state = lock(&self.shared.state);
                if state.hinting.answered(u32::from_le(id)) {
                    drop(state);
                    self.interrupt.config_changed();
                }
            }
        }
        if lock(&self.shared.state).hinting.is_in_run() {
            let buffers = chain
                .take(PAGE as usize / 16)
                .filter(|buffer| buffer.is_write_only());
            let ranges = buffers.map(|buffer| (buffer.addr().0, u64::from(buffer.len())));
            let bytes = self.give_back(ranges);
            self.shared.counters.hinted_bytes.add(bytes);
        }
    }

    /// Gives what of the ranges is guest memory back to the host, and tells how many bytes.
    fn give_back(&self, ranges: impl Iterator<Item = (u64, u64)>) -> u64 {
        let counters = &self.shared.counters;
        let mut bytes = 0;
        for range in ranges {
            let bad = within(&self.mem, range, |start, len| {
                counters.reclaims.add(1);
                match self.reclaim.reclaim(&self.mem, start, len) {
                    Ok(()) => bytes += len,
                    Err(_) => counters.reclaim_errors.add(1),
                }
            });
            counters.bad_pages.add(bad);
        }
        bytes
    }

    fn told(&self, chain: Chain) {
        let stats = GuestMemoryStats::read(&self.mem, chain);
        lock(&self.shared.state).stats = stats;
        self.shared.counters.stats_updates.add(1);
    }
}
