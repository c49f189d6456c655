//! What others may do to the balloon of a running machine, from any thread.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::hinting::Hinting;
use super::{BalloonConfig, BalloonError, GuestMemoryStats, HintingStatus, PAGE};
use crate::bus::lock;

/// A handle to a [`super::Balloon`] behind its transport.
#[derive(Clone)]
pub struct BalloonHandle(pub(super) Arc<Shared>);

/// Counters of a balloon. They only grow, also across resets.
#[derive(Debug, Default)]
pub struct BalloonCounters {
    /// Pages that the guest gave away.
    pub inflated_pages: AtomicU64,
    /// Pages that it took back.
    pub deflated_pages: AtomicU64,
    /// Bytes that it reported as free.
    pub reported_bytes: AtomicU64,
    /// Bytes that it hinted at as free.
    pub hinted_bytes: AtomicU64,
    /// Calls to the host that gave memory back.
    pub reclaims: AtomicU64,
    /// Of these, the ones that failed. The memory then stays where it is, which is no harm.
    pub reclaim_errors: AtomicU64,
    /// Pages that the guest named and that are none of its memory.
    pub bad_pages: AtomicU64,
    /// Times that the guest told of its memory.
    pub stats_updates: AtomicU64,
}

/// Counting.
pub(super) trait Count {
    /// Adds.
    fn add(&self, n: u64);
}

impl Count for AtomicU64 {
    fn add(&self, n: u64) {
        self.fetch_add(n, Ordering::Relaxed);
    }
}

/// What the handle and the device share.
pub(super) struct Shared {
    pub state: Mutex<State>,
    pub counters: BalloonCounters,
    /// Gets the device's attention.
    pub wake: OwnedFd,
}

/// What may be asked of hinting.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum HintingWish {
    /// A run, and whether the guest may use its pages again as soon as it has named all.
    Start(bool),
    Stop,
}

/// What changes at run time.
pub(super) struct State {
    /// As it stands now.
    pub config: BalloonConfig,
    /// Pages that the guest is to give away.
    pub target: u32,
    /// Pages that it says it has given away.
    pub actual: u32,
    pub hinting: Hinting,
    /// What is to become of hinting. The device sees to it between two chains: a guest that is
    /// told it may use its pages must not lose them to a chain that is being worked on.
    pub hinting_wish: Option<HintingWish>,
    /// The driver runs; `true` if it knows of hinting.
    pub active: Option<bool>,
    pub stats: GuestMemoryStats,
    /// The driver has to be told of a new configuration space.
    pub changed: bool,
}

impl BalloonHandle {
    /// How the balloon is configured now.
    pub fn config(&self) -> BalloonConfig {
        lock(&self.0.state).config
    }

    /// Asks the guest to give so much memory away.
    pub fn set_target_mib(&self, amount_mib: u32) -> Result<(), BalloonError> {
        let target = BalloonConfig::pages(amount_mib)?;
        self.change(|state| {
            state.config.amount_mib = amount_mib;
            state.target = target;
            state.changed = true;
        });
        Ok(())
    }

    /// How much memory the guest says it has given away, in pages of 4 KiB.
    pub fn actual_pages(&self) -> u32 {
        lock(&self.0.state).actual
    }

    /// How much memory the guest is to give away, in pages of 4 KiB.
    pub fn target_pages(&self) -> u32 {
        lock(&self.0.state).target
    }

    /// The same in MiB, rounded down.
    pub fn actual_mib(&self) -> u32 {
        self.actual_pages() / (1024 * 1024 / PAGE as u32)
    }

    /// What the guest told of its memory last; nothing if the device was made without statistics.
    pub fn stats(&self) -> Option<GuestMemoryStats> {
        let state = lock(&self.0.state);
        (state.config.stats_polling_interval_s > 0).then_some(state.stats)
    }

    /// Changes how often the guest tells of its memory. Neither from never nor to never.
    pub fn set_stats_polling_interval_s(&self, seconds: u16) -> Result<(), BalloonError> {
        let interval = lock(&self.0.state).config.stats_polling_interval_s;
        match (interval, seconds) {
            (0, 0) => return Ok(()),
            (0, _) => return Err(BalloonError::NoStatistics),
            (_, 0) => return Err(BalloonError::StatisticsOff),
            _ => {}
        }
        self.change(|state| state.config.stats_polling_interval_s = seconds);
        Ok(())
    }

    /// Asks the guest for all its free memory. With `acknowledge_on_stop` it may use it again as
    /// soon as it has named all, otherwise after [`Self::stop_hinting`].
    pub fn start_hinting(&self, acknowledge_on_stop: bool) -> Result<(), BalloonError> {
        self.hinting(HintingWish::Start(acknowledge_on_stop))
    }

    /// Lets the guest use again what it hinted at.
    pub fn stop_hinting(&self) -> Result<(), BalloonError> {
        self.hinting(HintingWish::Stop)
    }

    /// Where free page hinting is; an error if the device was made without.
    pub fn hinting_status(&self) -> Result<HintingStatus, BalloonError> {
        let state = lock(&self.0.state);
        match state.config.free_page_hinting {
            true => Ok(state.hinting.status),
            false => Err(BalloonError::NoHinting),
        }
    }

    /// The balloon's counters.
    pub fn counters(&self) -> &BalloonCounters {
        &self.0.counters
    }

    fn hinting(&self, wish: HintingWish) -> Result<(), BalloonError> {
        let mut state = lock(&self.0.state);
        if !state.config.free_page_hinting {
            return Err(BalloonError::NoHinting);
        }
        if state.active != Some(true) {
            return Err(BalloonError::HintingUnavailable);
        }
        state.hinting_wish = Some(wish);
        self.wake(&state);
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.0.state);
        change(&mut state);
        self.wake(&state);
    }

    /// While no driver runs there is nobody to tell: it reads for itself when it starts.
    fn wake(&self, state: &State) {
        if state.active.is_some() {
            let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
        }
    }
}
