//! The block device, driven by a fake guest.

mod driver;
mod open;
mod requests;
