//! The network device, driven by a fake guest.

mod control;
mod detour;
mod driver;
mod fake;
mod host;
mod hostile;
mod limits;
mod model;
mod receive;
mod send;
mod settle;
mod tap;
