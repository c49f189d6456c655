//! The block device, driven by a fake guest.

mod driver;
mod fake;
mod hostile;
mod in_flight;
mod layers;
mod limits;
mod model;
mod open;
mod requests;
