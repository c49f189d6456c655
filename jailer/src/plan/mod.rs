//! The plan: what is done to make a jail, as a list that can be read before anything is done.
//! Pure: the same request on the same host gives the same plan.

mod display;
mod step;
#[cfg(test)]
mod tests;

use std::ffi::{CString, OsString};
use std::fmt;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

pub use step::{MountsBy, Namespace, NetworkBy, Resource, Step};

use crate::cgroup::{self, Group, NoController};
use crate::config::{Config, Network};
use crate::host::Host;
use crate::landlock::{Device, Level};
use crate::seccomp::Mode;

/// Why there can be no such jail on this host, for this user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The program has no name to call a directory and a cgroup after.
    #[error("--exec-file {}: it has no plain file name", .0.display())]
    NoName(PathBuf),
    /// An argument with a NUL in it.
    #[error("the argument {0:?} contains a NUL byte, and no program can be given that")]
    Nul(OsString),
    /// Another user than one's own.
    #[error(
        "--uid {uid} --gid {gid}: only root can become somebody else; leave both out to stay \
        {own_uid}:{own_gid}"
    )]
    NotRoot {
        /// Asked for.
        uid: u32,
        /// Asked for.
        gid: u32,
        /// There is.
        own_uid: u32,
        /// There is.
        own_gid: u32,
    },
    /// A network that only root can enter.
    #[error("--netns {}: only root can enter it; leave it out for an empty network", .0.display())]
    Network(PathBuf),
    /// Only root can watch what a process calls.
    #[error("--seccomp trace: only root can watch a jailed process")]
    Trace,
    /// A cgroup setting that cannot be had.
    #[error(transparent)]
    Cgroup(#[from] NoController),
}

/// Processes and threads of a jail that has a user namespace of its own to count them in.
const PROCESSES: u64 = 256;

/// All steps, in order.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The machine's id.
    pub id: String,
    /// What is done.
    pub steps: Vec<Step>,
}

/// Plans the jail that `config` asks for.
pub fn plan(config: &Config, host: &Host) -> Result<Plan, PlanError> {
    let name = config.exec_file.file_name().and_then(|name| name.to_str());
    let no_name = || PlanError::NoName(config.exec_file.clone());
    let name = name
        .filter(|name| !name.contains('\n'))
        .ok_or_else(no_name)?;
    if !host.root {
        if (config.uid, config.gid) != (host.uid, host.gid) {
            return Err(PlanError::NotRoot {
                uid: config.uid,
                gid: config.gid,
                own_uid: host.uid,
                own_gid: host.gid,
            });
        }
        if let Network::Join(path) = &config.network {
            return Err(PlanError::Network(path.clone()));
        }
        if config.seccomp == Mode::Trace {
            return Err(PlanError::Trace);
        }
    }
    let id = config.id.as_str();
    let groups = cgroup::place(&config.cgroup, &host.cgroups, name, id, !host.root)?;
    let steps = steps(config, host, name, groups)?;
    Ok(Plan {
        id: id.to_owned(),
        steps,
    })
}

fn steps(
    config: &Config,
    host: &Host,
    name: &str,
    groups: Vec<Group>,
) -> Result<Vec<Step>, PlanError> {
    let traced = config.seccomp == Mode::Trace;
    let forks = config.new_pid_ns || config.daemonize || traced;
    let mut steps = vec![
        Step::CloseDescriptors {
            handed: sorted(&config.keep),
        },
        Step::Claim(config.base.join(name).join(config.id.as_str())),
        Step::OpenProgram {
            path: config.exec_file.clone(),
            linked: config.linked_program,
        },
        Step::Limit(Resource::Core, 0),
        Step::Limit(Resource::OpenFiles, config.limits.open_files),
        Step::Limit(Resource::MessageQueues, 0),
    ];
    if let Some(bytes) = config.limits.file_size {
        steps.push(Step::Limit(Resource::FileSize, bytes));
    }
    let owner = host.root.then_some((config.uid, config.gid));
    steps.push(Step::PrepareRoot(owner));
    let take_root = Step::TakeRoot {
        binds: config.binds.clone(),
        owner: (config.uid, config.gid),
    };
    if host.root {
        // Copies of the host's mounts have to be taken where the host's mounts are.
        steps.extend([Step::OpenKept, take_root.clone()]);
    }
    // Version 2 can begin a process in its group. Entering later waits for all processes.
    let mut first = None;
    for group in groups {
        steps.push(Step::MakeGroup(group.clone()));
        match group.version {
            cgroup::Version::V2 if forks && first.is_none() => first = Some(group),
            _ => steps.push(Step::EnterGroup(group)),
        }
    }
    if !host.root {
        steps.push(Step::OwnUserNamespace);
    }
    if forks {
        steps.push(Step::Fork {
            new_pid_ns: config.new_pid_ns,
            group: first,
            daemonize: config.daemonize,
            traced,
            // Who notes down what it calls waits for its end.
            sibling: config.sibling.filter(|_| !traced),
        });
    }
    steps.push(Step::Record(format!("{name}.pid")));
    let network = match host.root && host.landlock >= Level::SCOPES {
        true => NetworkBy::Kept,
        false => NetworkBy::New,
    };
    let network = Step::Network(config.network.clone(), network);
    if host.root {
        steps.extend([network, Step::LeaveMounts(MountsBy::Kept)]);
    } else {
        steps.extend([network, Step::LeaveMounts(MountsBy::Copy)]);
        steps.push(take_root);
    }
    steps.extend([
        Step::Unshare(vec![Namespace::Ipc, Namespace::Uts, Namespace::Cgroup]),
        Step::EnterRoot,
        Step::Hostname(config.id.as_str().to_owned()),
        Step::Keyring,
    ]);
    steps.push(match host.root {
        true => Step::Become(config.uid, config.gid),
        false => Step::NoNamespaces,
    });
    steps.extend([
        Step::Limit(Resource::Processes, PROCESSES),
        Step::NoCapabilities,
        Step::NoPrivileges,
        Step::Landlock(host.landlock, devices(&config.network)),
    ]);
    // What changes a process's rights would take the wish back.
    steps.extend(config.end_with_parent.map(Step::EndWithParent));
    steps.extend([
        Step::Seccomp(config.seccomp),
        Step::Execute(arguments(config, name)?),
    ]);
    Ok(steps)
}

fn sorted(descriptors: &[RawFd]) -> Vec<RawFd> {
    let mut sorted = descriptors.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

fn devices(network: &Network) -> Vec<Device> {
    let mut devices = vec![
        Device {
            path: "/dev/kvm",
            control: true,
        },
        Device {
            path: "/dev/urandom",
            control: false,
        },
    ];
    // An empty network has no interface to attach to.
    if *network != Network::Empty {
        devices.push(Device {
            path: "/dev/net/tun",
            control: true,
        });
    }
    devices
}

/// What the program is given: its name as the known jailer gives it, its id, and the rest.
fn arguments(config: &Config, name: &str) -> Result<Vec<CString>, PlanError> {
    let mut own = vec![
        format!("/{name}"),
        "--id".to_owned(),
        config.id.as_str().to_owned(),
    ];
    // What a monitor does with its own filters has to go with what the jail does.
    match config.seccomp {
        Mode::Filter => {}
        Mode::Trace => own.extend(["--seccomp".to_owned(), "trace".to_owned()]),
        Mode::Off => own.push("--no-seccomp".to_owned()),
    }
    let all = own
        .into_iter()
        .map(OsString::from)
        .chain(config.arguments.iter().cloned());
    all.map(|word| CString::new(word.clone().into_vec()).map_err(|_| PlanError::Nul(word)))
        .collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "{number:2}. {step}")?;
        }
        Ok(())
    }
}
