//! Every device, saved and restored: the same suite for all, and what is particular to each.

// The other side of a cable, as the tests of the network device have it.
#[allow(dead_code)]
#[path = "../net/fake.rs"]
mod cable;
mod hostile;
mod suite;

mod balloon;
mod block;
mod legacy;
mod net;
mod rng;
mod vsock;
