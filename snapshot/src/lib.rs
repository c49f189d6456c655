//! Snapshots on disk. Nothing in this crate knows KVM or a device; what a machine is made of comes
//! here as [`section::Section`]s, each named, versioned and checked by itself.

pub mod section;
