//! The plan in words.

use std::fmt;

use super::{MountsBy, Namespace, NetworkBy, Resource, Step};
use crate::cgroup::{Group, Version};
use crate::config::{Bind, Network};
use crate::landlock::Device;
use crate::seccomp::{Mode, Role};

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::CloseDescriptors { handed } => {
                f.write_str("close all descriptors above 2")?;
                match handed.is_empty() {
                    true => Ok(()),
                    false => write!(f, " but {}", list(handed)),
                }
            }
            Step::Claim(dir) => write!(f, "take {} for this machine alone", dir.display()),
            Step::OpenProgram { path, .. } => {
                write!(f, "open {}, if nobody else can change it", path.display())
            }
            Step::Limit(resource, value) => write!(f, "limit {resource} to {value}"),
            Step::MakeGroup(group) => make_group(f, group),
            Step::EnterGroup(group) => write!(f, "enter the cgroup {}", group.dir().display()),
            Step::OwnUserNamespace => f.write_str("make a user namespace to have rights in"),
            Step::Fork {
                new_pid_ns,
                group,
                daemonize,
                traced,
                sibling,
            } => {
                f.write_str("go on in a new process")?;
                if *new_pid_ns {
                    f.write_str(", the first of a PID namespace")?;
                }
                if let Some(group) = group {
                    write!(f, ", in the cgroup {}", group.dir().display())?;
                }
                if *daemonize {
                    f.write_str(", in a session of its own, with /dev/null for 0, 1 and 2")?;
                }
                if sibling.is_some() {
                    f.write_str(", a child of the parent")?;
                }
                if *traced {
                    f.write_str("; stay, and note down what it calls")?;
                }
                Ok(())
            }
            Step::Record(file) => write!(f, "note down the process, and write /{file} in the root"),
            Step::PrepareRoot(owner) => {
                f.write_str("make the directories of the root")?;
                match owner {
                    Some((uid, gid)) => write!(f, ", which belongs to {uid}:{gid}"),
                    None => Ok(()),
                }
            }
            Step::OpenKept => f.write_str("open the namespaces that are kept for jails"),
            Step::TakeRoot { binds, .. } => {
                f.write_str("take the root as a mount: nothing on it can be executed")?;
                binds.iter().try_for_each(|bind| show(f, bind))
            }
            Step::Network(network, by) => match (network, by) {
                (Network::Join(path), _) => write!(f, "enter the network {}", path.display()),
                (Network::Host, _) => f.write_str("keep the network of the caller"),
                (Network::Empty, NetworkBy::Kept) => {
                    f.write_str("enter an empty network that is kept for jails")
                }
                (Network::Empty, NetworkBy::New) => f.write_str("make an empty network"),
            },
            Step::LeaveMounts(MountsBy::Kept) => {
                f.write_str("enter a mount namespace that is kept for jails, and copy it")
            }
            Step::LeaveMounts(MountsBy::Copy) => {
                f.write_str("copy the mount namespace, cut off from the host's")
            }
            Step::Unshare(kinds) => {
                write!(f, "make namespaces: {}", list(kinds))
            }
            Step::EnterRoot => f.write_str("make the root the only mount beside /dev (pivot_root)"),
            Step::Hostname(name) => write!(f, "be called {name}"),
            Step::Keyring => f.write_str("take a new session keyring"),
            Step::Become(uid, gid) => write!(
                f,
                "become user {uid} in group {gid} alone, in a user namespace that knows nobody, and so \
                 lets nobody make another"
            ),
            Step::NoNamespaces => {
                f.write_str("forbid further user namespaces, and so those of all kinds")
            }
            Step::NoCapabilities => f.write_str("drop all capabilities, from the bounding set too"),
            Step::NoPrivileges => {
                f.write_str("gain nothing by executing, be dumped and looked into by nobody")
            }
            Step::Landlock(level, devices) => {
                write!(
                    f,
                    "Landlock, {level}: no executing; of the devices {}",
                    list(devices)
                )
            }
            Step::EndWithParent(parent) => {
                write!(f, "be killed when process {parent}, the parent, ends")
            }
            Step::Seccomp(Mode::Filter) => write!(
                f,
                "allow {} system calls, and executing once",
                Role::Process.calls()
            ),
            Step::Seccomp(Mode::Trace) => f.write_str("have all system calls noted down"),
            Step::Seccomp(Mode::Off) => f.write_str("leave all system calls allowed"),
            Step::Execute(arguments) => {
                f.write_str("become the program, with an empty environment:")?;
                arguments
                    .iter()
                    .try_for_each(|word| write!(f, " {}", word.to_string_lossy()))
            }
        }
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let texts: Vec<String> = items.iter().map(T::to_string).collect();
    texts.join(", ")
}

fn make_group(f: &mut fmt::Formatter<'_>, group: &Group) -> fmt::Result {
    let dir = group.dir();
    if group.existing {
        return write!(f, "use the cgroup {}, if it is there", dir.display());
    }
    let version = match group.version {
        Version::V1 => 1,
        Version::V2 => 2,
    };
    write!(f, "make the cgroup {} (version {version})", dir.display())?;
    for setting in &group.settings {
        write!(f, ", {} = {}", setting.file, setting.value)?;
    }
    f.write_str(", and read it back")
}

fn show(f: &mut fmt::Formatter<'_>, bind: &Bind) -> fmt::Result {
    let how = if bind.writable { "" } else { " (read-only)" };
    let whose = match bind.owned {
        true => ", its owner being the jail's user",
        false => "",
    };
    write!(
        f,
        "; {} as {}{how}{whose}",
        bind.source.display(),
        bind.target.display()
    )
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Core => "the bytes of a core dump",
            Resource::FileSize => "the bytes of a file",
            Resource::OpenFiles => "the descriptors",
            Resource::Processes => "the processes and threads",
            Resource::MessageQueues => "the bytes of message queues",
        })
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Namespace::Ipc => "ipc",
            Namespace::Uts => "uts",
            Namespace::Cgroup => "cgroup",
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)
    }
}
