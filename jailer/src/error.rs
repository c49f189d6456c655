//! Why there is no jail.

use std::io;
use std::path::PathBuf;

/// Why a jail could not be made. Each names the thing, the reason, and what to do where that is
/// not plain from the reason.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// A call failed.
    #[error("cannot {action}: {source}")]
    Os {
        /// What was asked for.
        action: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A path leads through a symbolic link.
    #[error("{}: {} is a symbolic link: give the path that it leads to", path.display(), link.display())]
    Symlink {
        /// The path.
        path: PathBuf,
        /// The component.
        link: PathBuf,
    },
    /// A path that cannot be used.
    #[error("{}: {reason}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The reason, and the next step.
        reason: String,
    },
    /// A machine of that id lives.
    #[error("the id {id:?} is in use by process {pid}: end that one or choose another id")]
    InUse {
        /// The id.
        id: String,
        /// Its process, as the host sees it.
        pid: u32,
    },
    /// A machine of that id is just being started or removed.
    #[error("the id {0:?} is being started or removed by another process: choose another id")]
    Busy(String),
    /// The state of an earlier jail cannot be judged from here.
    #[error("{}: written in another PID namespace, so it cannot be told whether its machine lives: \
        remove the file when it does not", .0.display())]
    Foreign(PathBuf),
    /// An ordinary user asks, and the host lets those make no user namespaces.
    #[error(
        "an ordinary user's jail is made of a user namespace, and this host allows none: {why}"
    )]
    NoUserNamespace {
        /// Which setting says so, and what the kernel said.
        why: String,
    },
    /// Another machine has the cgroup, one of another base directory.
    #[error("process {process} is in the cgroup {} already: choose another id", group.display())]
    GroupInUse {
        /// The cgroup.
        group: PathBuf,
        /// Its process.
        process: String,
    },
    /// An ordinary user's machine cannot have its cgroup.
    #[error(
        "{why}: an ordinary user's cgroups are made beside the one that it is in itself, where the host \
        has handed that over: the one above both, without a process in it"
    )]
    NotDelegated {
        /// What failed.
        why: String,
    },
    /// A cgroup did not take what it was told.
    #[error("{}: {wanted:?} was written, and it reads {found:?}", file.display())]
    NotTaken {
        /// The file.
        file: PathBuf,
        /// What was to be in it.
        wanted: String,
        /// What is in it.
        found: String,
    },
    /// What the new process said before it became the monitor.
    #[error("{0}")]
    Inside(String),
}

/// Names a failed call.
pub(crate) fn failed<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> JailError {
    move |source| JailError::Os {
        action: action.into(),
        source: source.into(),
    }
}
