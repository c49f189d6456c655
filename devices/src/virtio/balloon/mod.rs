//! The memory balloon (specification section 5.5): memory that the guest does not use goes back to
//! the host.
//!
//! There are three ways, each with its own bound on trust:
//!
//! * **inflating**: the machine sets a target, the guest's driver gives pages away one by one and
//!   takes them back when the target falls (or when it runs out of memory);
//! * **free page reporting**: the driver reports free blocks as they come to be;
//! * **free page hinting**: on demand, all free blocks at once; the driver keeps them from being
//!   used until it is told that the run is over.
//!
//! What the guest says is checked against guest memory, aligned inwards to whole pages, and joined
//! where it is adjacent: one call to the host for one range. Giving memory back is the business of
//! [`MemoryReclaim`], which is asked each time: how memory is mapped changes with snapshots. A
//! guest that lies hurts itself alone: it loses what was in its own memory.
//!
//! | module | holds |
//! |---|---|
//! | `config` | what a balloon is to be |
//! | `reclaim` | giving ranges back to the host |
//! | `pages` | page numbers and ranges of the guest's, made sense of |
//! | `statistics` | what the guest tells of its memory |
//! | `hinting` | the protocol of free page hinting |
//! | `handle`, `device` | what others may do at run time, and where all of it meets |

mod config;
mod device;
mod handle;
mod hinting;
mod pages;
mod queues;
mod reclaim;
mod state;
mod statistics;

pub use config::{BalloonConfig, BalloonError};
pub use device::Balloon;
pub use handle::{BalloonCounters, BalloonHandle};
pub use hinting::HintingStatus;
pub use reclaim::{MappedMemory, MemoryReclaim};
pub use statistics::GuestMemoryStats;

/// A page as the balloon counts them, whatever the guest's pages are (section 5.5.6).
pub const PAGE: u64 = 4096;
/// Page numbers looked at in one chain: four times as many as Linux puts into one.
pub const PAGES_PER_CHAIN: usize = 1024;
/// Chains served before other devices have their turn.
pub const CHAINS_PER_EVENT: usize = 4;
