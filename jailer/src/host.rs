//! What the plan has to know of the host, asked for once.

use rustix::process::{getegid, geteuid};

use crate::cgroup::{Hierarchies, Request, Version};
use crate::landlock::Level;

/// Facts of the host and of the process that makes the jail.
#[derive(Debug, Clone)]
pub struct Host {
    /// Started as root: everything can be had. Otherwise what user namespaces allow.
    pub root: bool,
    /// The user that asks.
    pub uid: u32,
    /// And its group.
    pub gid: u32,
    /// What Landlock the kernel offers.
    pub landlock: Level,
    /// Where the cgroup controllers are.
    pub cgroups: Hierarchies,
}

impl Host {
    /// Asks the kernel, of cgroups only what `cgroup` needs. Changes nothing.
    pub fn gather(cgroup: &Request) -> Self {
        let uid = geteuid().as_raw();
        Self {
            root: uid == 0,
            uid,
            gid: getegid().as_raw(),
            landlock: Level::of_this_kernel(),
            cgroups: Hierarchies::detect(cgroup.controllers(), cgroup.version == Some(Version::V2)),
        }
    }
}
