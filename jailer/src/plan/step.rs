//! The steps that a plan is made of.

use std::ffi::CString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::cgroup::Group;
use crate::config::{Bind, Network};
use crate::landlock::{Device, Level};
use crate::seccomp::Mode;

/// A kind of namespace that a jail has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of namespaces(7)")]
pub enum Namespace {
    Ipc,
    Uts,
    Cgroup,
}

/// One thing that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Close all descriptors above 2 but some.
    CloseDescriptors {
        /// The program gets these.
        handed: Vec<RawFd>,
    },
    /// Take the jail's directory for this machine alone, and clean up after a dead one.
    Claim(PathBuf),
    /// Open the program, and check that nobody else can change it.
    OpenProgram {
        /// Where it is.
        path: PathBuf,
        /// It may have further names.
        linked: bool,
    },
    /// Limit a resource of the process.
    Limit(Resource, u64),
    /// Make a cgroup and set its limits.
    MakeGroup(Group),
    /// Enter a cgroup.
    EnterGroup(Group),
    /// A user namespace in which an ordinary user has rights over what follows.
    OwnUserNamespace,
    /// Go on in a new process.
    Fork {
        /// As the first of a PID namespace.
        new_pid_ns: bool,
        /// In this cgroup from the first moment.
        group: Option<Group>,
        /// In a session of its own, without standard input and outputs.
        daemonize: bool,
        /// The old process notes down what the new one calls.
        traced: bool,
        /// As a child of the old one's parent, which is told by this descriptor how it went.
        sibling: Option<RawFd>,
    },
    /// Note down who lives in the jail, and write the launcher's file with its number.
    Record(String),
    /// Make the directories of the root; they then belong to this user and group.
    PrepareRoot(Option<(u32, u32)>),
    /// Open the namespaces that are kept for jails, or make them.
    OpenKept,
    /// Take the root's mount and what is shown in it.
    TakeRoot {
        /// What is shown.
        binds: Vec<Bind>,
        /// Whom it belongs to there, where it is shown so.
        owner: (u32, u32),
    },
    /// Enter the network.
    Network(Network, NetworkBy),
    /// Leave the host's mounts behind.
    LeaveMounts(MountsBy),
    /// Namespaces of its own.
    Unshare(Vec<Namespace>),
    /// Make the root the only thing there is.
    EnterRoot,
    /// The host name in the jail.
    Hostname(String),
    /// A session keyring of its own.
    Keyring,
    /// Become this user in this group alone, in a user namespace that knows nobody, and so lets nobody
    /// make further ones of any kind.
    Become(u32, u32),
    /// No further namespaces of any kind, where the process is known in its own.
    NoNamespaces,
    /// Drop all capabilities, for good.
    NoCapabilities,
    /// Nothing executed gives rights, nothing is dumped, nobody may look into the process.
    NoPrivileges,
    /// Landlock.
    Landlock(Level, Vec<Device>),
    /// Be killed when this process, the parent, ends.
    EndWithParent(u32),
    /// Restrict the system calls of the whole process.
    Seccomp(Mode),
    /// Become the program, with these arguments and nothing in the environment.
    Execute(Vec<CString>),
}

/// How the mounts of the host are left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountsBy {
    /// By entering a namespace that is kept for this, with next to nothing in it.
    Kept,
    /// By copying all of them and taking them down.
    Copy,
}

/// How an empty network is had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkBy {
    /// By entering one that is kept for this. Landlock keeps abstract sockets in it apart.
    Kept,
    /// By making one.
    New,
}

/// A resource of the process, as getrlimit(2) has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the texts say what they are")]
pub enum Resource {
    Core,
    FileSize,
    OpenFiles,
    Processes,
    MessageQueues,
}
