//! The controller of a machine: the one owner of the [`Machine`](crate::machine::Machine), on a
//! thread that takes typed commands.
//!
//! Everybody else holds a [`Handle`]. What is known of the machine is published to it, so that
//! reads wait for nobody, and changes of a machine's life go through its lock: one at a time, the
//! second is refused and told what the first is. A deletion alone may overtake: it is accepted
//! durably, whatever else is going on, and nothing that ends later undoes it.

mod access;
mod command;
mod configure;
mod controller;
mod deletion;
mod disk_snapshot;
mod disks;
mod dispatch;
mod end;
mod events;
mod files;
mod fold;
mod fork;
mod handle;
mod interfaces;
mod life;
mod metrics;
pub mod record;
mod recorder;
mod refresh;
mod restore;
mod served;
pub mod settings;
mod snapshot;
mod state;
mod working_set;

pub use access::{Access, Figures};
pub use command::{Lifecycle, Refusal};
pub use controller::{Controller, Outcome, StartPlan};
pub use deletion::{FILE as DELETION_FILE, Times as DeletionTimes};
pub use events::{Event, EventStream, Line};
pub use fork::{ForkRequest, Forked};
pub use handle::{Accepted, Handle, Identity};
pub use interfaces::{OtherInterface, give_addresses};
pub use metrics::{Counters, Sample, samples};
pub use recorder::RecordError;
pub use refresh::GuestIdentity;
pub use restore::RestoreRequest;
pub use snapshot::{SnapshotRequest, Taken};
pub use state::{State, Status};
pub use working_set::Recorded;
