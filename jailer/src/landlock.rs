//! Landlock: what is left of the file system, of the network, and of other processes.
//!
//! The jail's root already holds only what is the machine's. Landlock says in addition that
//! nothing in it is executed, that no node, link or FIFO is made, that of the devices only those
//! that the machine needs are opened, that no TCP port is bound or connected to, and that abstract
//! sockets and signals do not reach beyond the jail.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::error::{JailError, failed};
use crate::sys;

/// The newest level that is used here. Later ones restrict more, but nobody has tried them here.
const NEWEST: ABI = ABI::V7;

/// What level of Landlock the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(pub u32);

impl Level {
    /// No Landlock.
    pub const NONE: Self = Self(0);
    /// From here on, abstract sockets and signals end at the jail's wall.
    pub const SCOPES: Self = Self(6);

    /// Asks the kernel.
    pub fn of_this_kernel() -> Self {
        // The library keeps what it found out to itself.
        Self(sys::landlock_version().min(NEWEST as u32))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none: the kernel has no Landlock, or it is switched off"),
            level => write!(f, "level {level}"),
        }
    }
}

/// A device that the machine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its node.
    pub path: &'static str,
    /// Opened for writing and controlled, or only read.
    pub control: bool,
}

/// Restricts the calling thread, which will become `program`. Called in the jail.
pub(crate) fn restrict(program: BorrowedFd<'_>, devices: &[Device]) -> Result<(), JailError> {
    let place = |path: &str| -> Result<OwnedFd, JailError> {
        openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(format!("open {path} in the jail")))
    };
    let files = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    let program = program
        .as_fd()
        .try_clone_to_owned()
        .map_err(failed("keep the program"))?;
    let mut rules = vec![
        (place("/")?, files),
        (program, AccessFs::Execute | AccessFs::ReadFile),
    ];
    for device in devices {
        let access = match device.control {
            true => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
            false => AccessFs::ReadFile.into(),
        };
        rules.push((place(device.path)?, access));
    }
    let set = || -> Result<(), landlock::RulesetError> {
        let mut rules_of = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        for (place, access) in &rules {
            rules_of = rules_of.add_rule(PathBeneath::new(place, *access))?;
        }
        rules_of.restrict_self().map(drop)
    };
    set().map_err(|err| failed("restrict itself with Landlock")(std::io::Error::other(err)))
}
