//! What of a balloon a snapshot keeps. Pages that were given away are not listed anywhere: they are
//! the driver's business, and holes in the snapshot's memory.

use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, State};

use super::handle::{self, HintingWish};
use super::hinting::Hinting;
use super::{GuestMemoryStats, HintingStatus};
use crate::state::RestoreError;

/// A settled balloon. What others asked of it while the machine ran counts, not what it was
/// configured to be at first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BalloonState {
    /// Features offered: which queue is which depends on them.
    features: u64,
    /// In pages.
    target: u32,
    actual: u32,
    stats_polling_interval_s: u16,
    /// What the guest told of its memory last, by tag.
    stats: Vec<(u16, u64)>,
    host_cmd: u32,
    guest_cmd: Option<u32>,
    last_run: u32,
    acknowledge_on_stop: bool,
    hinting_wish: Option<HintingWish>,
    /// The driver has to be told of a new configuration space.
    changed: bool,
}

impl State for BalloonState {
    const KIND: &'static str = "virtio-balloon";
    const VERSION: u16 = 1;
}

impl BalloonState {
    pub fn of(features: u64, state: &handle::State) -> Self {
        let hinting = &state.hinting;
        Self {
            features,
            target: state.target,
            actual: state.actual,
            stats_polling_interval_s: state.config.stats_polling_interval_s,
            stats: state.stats.to_list(),
            host_cmd: hinting.status.host_cmd,
            guest_cmd: hinting.status.guest_cmd,
            last_run: hinting.last,
            acknowledge_on_stop: hinting.acknowledge_on_stop,
            hinting_wish: state.hinting_wish,
            changed: state.changed,
        }
    }

    /// Sets what the device and its handle share, but for what only an active one has.
    pub fn restore(
        &self,
        section: &Section,
        features: u64,
        state: &mut handle::State,
    ) -> Result<(), RestoreError> {
        let section = &section.name;
        let bad = |field: &str, reason: &str| RestoreError::field(section, field, reason);
        RestoreError::unless_same(
            section,
            "the set of the balloon's features",
            format!("{:#x}", self.features),
            format!("{features:#x}"),
            "configure the balloon as it was",
        )?;
        if !self.target.is_multiple_of(256) {
            return Err(bad("target", "is no whole number of MiB"));
        }
        let interval = self.stats_polling_interval_s;
        if (interval > 0) != (state.config.stats_polling_interval_s > 0) {
            return Err(bad(
                "stats_polling_interval_s",
                "does not agree with the features",
            ));
        }
        let hinting = Hinting {
            status: HintingStatus {
                host_cmd: self.host_cmd,
                guest_cmd: self.guest_cmd,
            },
            last: self.last_run,
            acknowledge_on_stop: self.acknowledge_on_stop,
        };
        if !hinting.is_possible() {
            return Err(bad("host_cmd", "is the number of no run that was started"));
        }
        state.hinting = hinting;
        state.target = self.target;
        state.config.amount_mib = self.target / 256;
        state.config.stats_polling_interval_s = interval;
        state.actual = self.actual;
        state.stats = GuestMemoryStats::default();
        for (tag, value) in &self.stats {
            state.stats.set(*tag, *value);
        }
        Ok(())
    }

    /// Sets what an active device is still to do; `true` if there is anything.
    pub fn restore_wishes(&self, state: &mut handle::State) -> bool {
        state.changed = self.changed;
        // The driver has to know of hinting.
        state.hinting_wish = self.hinting_wish.filter(|_| state.active == Some(true));
        state.changed || state.hinting_wish.is_some()
    }
}
