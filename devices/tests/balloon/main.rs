//! The memory balloon, driven by a fake guest.

mod driver;
mod free_pages;
mod hostile;
mod inflate;
mod reclaim;
mod statistics;
