//! The block device (specification section 5.2): a drive of the guest.
//!
//! [`Block`] is the device: it reads requests out of the queue, checks everything in them, and
//! answers them. Where the bytes are is the business of a [`Backend`], which knows nothing of
//! virtio: [`RawFile`] is an image file or a block device of the host, and data moves straight
//! between it and guest memory ([`Buffers`]); [`Layered`] is a disk in [`layers`]; [`Image`] is
//! either, and becomes layers when a snapshot freezes it.
//!
//! The device never waits for its storage: a request is handed to the backend, and its completion
//! announced by an event. What holds true:
//!
//! * no more requests are in flight than the queue has entries, whatever the driver does;
//! * a request is checked as a whole before anything of it is begun;
//! * every chain goes back to the driver once: with a status, or, if it has no room for a status,
//!   empty and counted ([`BlockStats::malformed`]);
//! * after a reset nothing in flight is left to touch guest memory.

mod backend;
mod buffers;
mod config;
mod device;
mod disk;
mod exchange;
mod image;
mod layered;
pub mod layers;
mod lock;
mod plan;
mod raw;
mod request;
mod state;
mod stats;
mod sys;
mod worker;

pub use backend::{Backend, Completion, Operation, Token};
pub use buffers::Buffers;
pub use config::{BlockConfig, BlockError, Cache, Engine, LowerConfig};
pub use device::{Block, QUEUE_SIZE, SEG_MAX};
pub use image::Image;
pub use layered::Layered;
pub use raw::RawFile;
pub use stats::BlockStats;

/// What a sector number counts in, whatever the block size (section 5.2.4).
pub const SECTOR: u64 = 512;
