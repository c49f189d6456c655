//! The metadata store, as a guest reaches it: over TCP, on frames.

mod client;
mod connections;
mod device;
mod random;
mod requests;

/// A network device on a fake cable.
#[path = "../net/driver.rs"]
#[allow(dead_code)]
mod driver;
#[path = "../net/fake.rs"]
#[allow(dead_code)]
mod fake;
