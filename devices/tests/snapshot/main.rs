//! Every device, saved and restored: the same suite for all, and what is particular to each.

// What other tests have for the other side of a device.
#[allow(dead_code)]
#[path = "../net/fake.rs"]
mod cable;
#[allow(dead_code)]
#[path = "../block/fake.rs"]
mod disk;
mod hostile;
#[allow(dead_code)]
#[path = "../transport/probe.rs"]
mod probe;
mod registers;
mod suite;

mod balloon;
mod block;
mod formats;
mod legacy;
mod net;
mod random;
mod rng;
mod threads;
mod transport;
mod vsock;
