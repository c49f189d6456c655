//! Every device, saved and restored: the same suite for all, and what is particular to each.

mod suite;

mod block;
mod rng;
