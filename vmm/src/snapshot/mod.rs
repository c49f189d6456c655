//! Snapshots of machines: what of a [`Capture`](crate::machine::Capture) goes into a directory, and
//! how a machine comes out of one. The directory itself is `tine-snapshot`'s.

mod description;
mod host;
mod load;
mod save;

pub use description::Description;
pub use load::{LoadError, Loaded};
pub use save::Save;
