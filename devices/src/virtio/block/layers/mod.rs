//! A disk in layers: a raw image or a qcow2 image at the bottom, qcow2 images over it, each with
//! what was written since. Only the top is ever written; what lies below is frozen, and may be
//! below other machines' disks too.
//!
//! [`Layer`] is one file, opened and locked; [`Chain`] is a disk made of layers, to read and write;
//! [`create`] makes an empty top, [`flatten`] one file of many, [`merge`] one layer of several,
//! [`commit`] takes a top back into its raw base. The format itself is crate `imago`'s business. Which file lies over which is told
//! by the caller: a name in an image's header is never followed.
//!
//! What imago leaves to others is here: [`check`] looks at all of an image before it is written,
//! and `repair` makes its reference counts anew where a killed process left old ones.

mod chain;
mod check;
mod commit;
mod copy;
mod create;
mod error;
mod flatten;
mod header;
mod layer;
mod merge;
mod place;
mod rename;
mod repair;
mod zeroes;

pub use chain::Chain;
pub use check::{Checked, check};
pub use commit::commit;
pub use create::{Backing, create};
pub use error::LayerError;
pub use flatten::flatten;
pub use layer::Layer;
pub use merge::{merge, to_merge};
pub use tine_snapshot::manifest::DiskFormat as Format;
