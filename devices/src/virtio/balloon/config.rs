//! What a balloon is to be, as inert data, and why it could not be had or changed.

use std::io;

use serde::{Deserialize, Serialize};

/// The balloon of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalloonConfig {
    /// How much memory the guest is to give away, in MiB.
    pub amount_mib: u32,
    /// The guest may take memory back when it runs out of it.
    pub deflate_on_oom: bool,
    /// How often the guest tells of its memory, in seconds; 0: never, also not later.
    #[serde(default)]
    pub stats_polling_interval_s: u16,
    /// The guest reports free blocks as they come to be.
    #[serde(default)]
    pub free_page_reporting: bool,
    /// The guest can be asked for all its free blocks.
    #[serde(default)]
    pub free_page_hinting: bool,
}

impl BalloonConfig {
    pub(super) fn pages(amount_mib: u32) -> Result<u32, BalloonError> {
        amount_mib
            .checked_mul(256)
            .ok_or(BalloonError::Amount { amount_mib })
    }
}

/// Why a balloon could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum BalloonError {
    /// More than the device can express.
    #[error("a balloon of {amount_mib} MiB is larger than any machine")]
    Amount {
        /// The amount given.
        amount_mib: u32,
    },
    /// The device was made without statistics.
    #[error(
        "the balloon was made without statistics: give stats_polling_interval_s before the start"
    )]
    NoStatistics,
    /// Statistics cannot be switched off while the machine runs.
    #[error(
        "statistics cannot be switched off while the machine runs: give an interval of 1 second or more"
    )]
    StatisticsOff,
    /// The device was made without free page hinting.
    #[error(
        "the balloon was made without free page hinting: set free_page_hinting before the start"
    )]
    NoHinting,
    /// The guest's driver does not run, or does not know of free page hinting.
    #[error("the guest's driver does not do free page hinting now")]
    HintingUnavailable,
    /// The host refused a descriptor.
    #[error("cannot make the balloon's events: {0}; raise the limit of open files (ulimit -n)")]
    Events(#[source] io::Error),
}
