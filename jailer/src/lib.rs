//! The jail that a monitor runs in.
//!
//! A [`Config`] says what is wanted, [`plan`] turns it into a list of [`Step`]s without touching
//! anything, and [`enter`] carries them out in the calling process, which then becomes the
//! monitor. [`collect`] removes what machines left that died without a word.
//!
//! What each step is there for stands in `THREATS.md`.

mod apply;
mod capabilities;
pub mod cgroup;
mod config;
mod error;
pub mod files;
mod gc;
mod host;
mod identity;
mod kept;
mod landlock;
mod namespace;
pub mod options;
mod owners;
mod paths;
mod plan;
mod proc_fs;
mod program;
mod root;
mod run_once;
pub mod seccomp;
mod show;
mod state;
mod sys;

pub use apply::{Forked, enter};
pub use config::{
    BadArgument, Bind, Config, DEFAULT_BASE, DEFAULT_OPEN_FILES, Id, MAX_ID, Network,
    ResourceLimits,
};
pub use error::JailError;
pub use gc::{Collected, collect, discard, kill};
pub use host::Host;
pub use plan::{MountsBy, Namespace, NetworkBy, Plan, PlanError, Resource, Step, plan};
pub use show::Inhabited;
pub use sys::begin;
