//! Carrying the plan out, in the process that becomes the monitor.

mod claim;
mod fork;
mod parent;
mod surroundings;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::{DumpableBehavior, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::system::sethostname;
use rustix::thread::UnshareFlags;

use self::fork::How;
use crate::cgroup::{self, Group};
use crate::error::{JailError, failed};
use crate::kept::Kept;
use crate::owners::Holder;
use crate::plan::{Namespace, Plan, Resource, Step};
use crate::proc_fs::Proc;
use crate::seccomp::{self, Mode, Trace};
use crate::state::{Claim, ROOT};
use crate::sys;
use crate::{capabilities, identity, landlock, paths, program, root, run_once};

/// What came of it in the process that began it, if that did not become the monitor itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forked {
    /// The monitor runs; a sibling is about to.
    Runs {
        /// Its process, as this one sees it.
        pid: u32,
    },
    /// It ran, and was watched.
    Ended {
        /// How it ended, as waitpid(2) puts it.
        status: i32,
        /// What it called.
        trace: Trace,
    },
}

/// Makes the jail around the calling process, and becomes the program in it. Returns only when the
/// plan forks, and then in the parent, or when something fails.
///
/// The process must have one thread only: most of what is done concerns the calling thread alone. Where
/// it returns, it is about to end: descriptors that were opened for the jail stay open until then.
/// What could not be had although the jail is good without it is told to `note`.
pub fn enter(plan: &Plan, note: &dyn Fn(&str)) -> Result<Forked, JailError> {
    let mut jail = Jail::new(plan, note)?;
    match jail.go_on(&plan.steps) {
        Ok(forked) => Ok(forked),
        Err(err) => jail.give_up(err),
    }
}

/// A jail that is being made.
struct Jail<'a> {
    plan: &'a Plan,
    note: &'a dyn Fn(&str),
    proc: Proc,
    /// The PID namespace that processes are counted in.
    namespace: u64,
    claim: Option<Claim>,
    program: Option<OwnedFd>,
    /// The root as a directory of the host, then as a mount that is attached nowhere.
    root: Option<OwnedFd>,
    binds: Vec<root::Taken>,
    /// Of those that the binds needed.
    holders: Vec<Holder>,
    root_path: Option<PathBuf>,
    /// The host's mount namespace has been left.
    left: bool,
    /// Groups of somebody else that are not there.
    missing: Vec<PathBuf>,
    kept: Option<Kept>,
    /// In a user namespace of its own.
    alone: bool,
    seccomp: Mode,
    report: Option<fork::Report>,
    /// The process that the program is to end with.
    parent: Option<OwnedFd>,
}

impl<'a> Jail<'a> {
    fn new(plan: &'a Plan, note: &'a dyn Fn(&str)) -> Result<Self, JailError> {
        // Descriptors are closed before the first one of ours is opened.
        if let Some(Step::CloseDescriptors { handed }) = plan.steps.first() {
            sys::close_all_but(handed).map_err(failed("close inherited descriptors"))?;
            for &fd in handed {
                let doing = || failed::<io::Error>(format!("hand descriptor {fd} over"));
                sys::inherit(fd).map_err(doing())?;
            }
        }
        let proc = Proc::open()?;
        let namespace = proc.namespace()?;
        Ok(Self {
            plan,
            note,
            proc,
            namespace,
            claim: None,
            program: None,
            root: None,
            binds: Vec::new(),
            holders: Vec::new(),
            root_path: None,
            left: false,
            missing: Vec::new(),
            kept: None,
            alone: false,
            seccomp: Mode::Off,
            report: None,
            parent: parent::hold(plan)?,
        })
    }

    /// Carries `steps` out, which are the last ones of the plan. What has become of a new process is
    /// told in the old one alone.
    fn go_on(&mut self, steps: &[Step]) -> Result<Forked, JailError> {
        for (step, rest) in steps.iter().zip((1..).map(|next| &steps[next..])) {
            match step {
                Step::Fork {
                    new_pid_ns,
                    group,
                    daemonize,
                    traced,
                    sibling,
                } => {
                    let how = How {
                        new_pid_ns: *new_pid_ns,
                        group: group.as_ref(),
                        daemonize: *daemonize,
                        traced: *traced,
                        sibling: *sibling,
                    };
                    return self.fork(&how, rest);
                }
                _ => self.carry_out(step)?,
            }
        }
        Err(failed("run a plan that executes nothing")(io::Error::from(
            io::ErrorKind::InvalidInput,
        )))
    }

    fn carry_out(&mut self, step: &Step) -> Result<(), JailError> {
        match step {
            Step::CloseDescriptors { .. } => {}
            Step::Claim(dir) => {
                self.take_directory(dir)?;
                self.root_path = Some(dir.join(ROOT));
            }
            Step::OpenProgram { path, linked } => {
                self.program = Some(paths::open_program(path, *linked)?);
                program::check(path)?;
            }
            Step::Limit(resource, value) => self.limit(*resource, *value)?,
            Step::MakeGroup(group) => self.make_group(group)?,
            Step::EnterGroup(group) => self.enter_group(group)?,
            Step::OwnUserNamespace => {
                let (uid, gid) = own_ids();
                identity::own_namespace(&self.proc, uid, gid)?;
                self.alone = true;
            }
            // Where this goes on is another process.
            Step::Fork { .. } => return Err(out_of_order()),
            Step::Record(pid_file) => self.record(pid_file)?,
            Step::PrepareRoot(owner) => {
                let claim = self.claim.as_mut().ok_or_else(out_of_order)?;
                let (root, made) = root::prepare(claim.dir.as_fd(), *owner)?;
                claim.record.made.extend(made);
                self.root = Some(root);
            }
            Step::OpenKept => match Kept::open() {
                Ok(kept) => self.kept = Some(kept),
                // Without them a jail is as good, and takes longer to make.
                Err(err) => (self.note)(&format!("no namespaces can be kept for jails: {err}")),
            },
            Step::TakeRoot { binds, owner } => self.take_root(binds, *owner)?,
            Step::Network(network, by) => self.enter_network(network, *by)?,
            Step::LeaveMounts(by) => self.leave_mounts(*by)?,
            Step::Unshare(kinds) => unshare(kinds)?,
            Step::EnterRoot => {
                let root = self.root.as_ref().ok_or_else(out_of_order)?.as_fd();
                match &self.kept {
                    Some(_) => root::enter_over_devices(root, &self.binds)?,
                    None => root::enter_and_leave_host(root, &self.binds, own_ids().0 == 0)?,
                }
                self.binds.clear();
            }
            Step::Hostname(name) => {
                sethostname(name.as_bytes()).map_err(failed("set the host name"))?;
            }
            Step::Keyring => match sys::new_session_keyring() {
                Ok(()) => {}
                // A kernel without keyrings.
                Err(err) if err.raw_os_error() == Some(libc::ENOSYS) => {}
                Err(err) => return Err(failed("take a new session keyring")(err)),
            },
            Step::Become(uid, gid) => {
                self.alone = identity::become_user(*uid, *gid)?;
                if !self.alone {
                    (self.note)("this host does not allow user namespaces: the jail has none");
                }
            }
            Step::NoNamespaces => identity::deny_namespaces(&self.proc)?,
            Step::NoCapabilities => capabilities::drop_all()?,
            Step::NoPrivileges => {
                capabilities::no_new_privileges()?;
                set_dumpable_behavior(DumpableBehavior::NotDumpable)
                    .map_err(failed("forbid dumps"))?;
            }
            Step::Landlock(level, devices) => {
                if *level > landlock::Level::NONE {
                    let program = self.program.as_ref().ok_or_else(out_of_order)?;
                    landlock::restrict(program.as_fd(), devices)?;
                } else {
                    (self.note)("this kernel offers no Landlock: the jail does without");
                }
            }
            Step::EndWithParent(_) => self.end_with_parent()?,
            Step::Seccomp(mode) => self.seccomp = *mode,
            Step::Execute(arguments) => self.execute(arguments)?,
        }
        Ok(())
    }

    fn limit(&self, resource: Resource, value: u64) -> Result<(), JailError> {
        let kind = match resource {
            Resource::Core => rustix::process::Resource::Core,
            Resource::FileSize => rustix::process::Resource::Fsize,
            Resource::OpenFiles => rustix::process::Resource::Nofile,
            Resource::MessageQueues => rustix::process::Resource::Msgqueue,
            // Without a user namespace, all processes of this user on the host would count.
            Resource::Processes if !self.alone => return Ok(()),
            Resource::Processes => rustix::process::Resource::Nproc,
        };
        let limit = Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        setrlimit(kind, limit).map_err(failed(format!("limit {resource} to {value}")))
    }

    fn make_group(&mut self, group: &Group) -> Result<(), JailError> {
        match cgroup::make(group) {
            Ok(true) => {}
            Ok(false) => self.missing.push(group.dir()),
            Err(err @ JailError::GroupInUse { .. }) => {
                self.forget_groups_from(&group.dir())?;
                return Err(err);
            }
            Err(err @ JailError::Os { .. }) if own_ids().0 != 0 => {
                let why = err.to_string();
                return Err(JailError::NotDelegated { why });
            }
            Err(err) => return Err(err),
        }
        Ok(())
    }

    fn enter_group(&mut self, group: &Group) -> Result<(), JailError> {
        if !self.missing.contains(&group.dir()) {
            cgroup::enter(group)?;
        }
        Ok(())
    }

    /// Returns only when nothing could be tried.
    fn execute(&mut self, arguments: &[std::ffi::CString]) -> Result<(), JailError> {
        let program = self.program.as_ref().ok_or_else(out_of_order)?;
        self.holders.clear();
        let prepared = run_once::prepare(arguments)?;
        sys::reset_signals();
        match self.seccomp {
            Mode::Filter => seccomp::restrict_process(prepared.pointers())?,
            Mode::Trace => {
                let report = self.report.as_mut().ok_or_else(out_of_order)?;
                seccomp::watch(|number| report.tell(number))?;
            }
            Mode::Off => {}
        }
        let err = failed("execute the program")(prepared.execute(program.as_fd()));
        match &mut self.report {
            Some(report) => report.send(&err),
            // Few system calls are allowed any more: enough to say it and to end.
            None => {
                (self.note)(&err.to_string());
                sys::leave(1)
            }
        }
    }
}

/// A plan that was put together by hand.
fn out_of_order() -> JailError {
    failed("carry out a step before the one that it needs")(io::Error::from(
        io::ErrorKind::InvalidInput,
    ))
}

fn own_ids() -> (u32, u32) {
    let uid = rustix::process::geteuid().as_raw();
    (uid, rustix::process::getegid().as_raw())
}

fn unshare(kinds: &[Namespace]) -> Result<(), JailError> {
    let flags = kinds.iter().fold(UnshareFlags::empty(), |flags, kind| {
        flags
            | match kind {
                Namespace::Ipc => UnshareFlags::NEWIPC,
                Namespace::Uts => UnshareFlags::NEWUTS,
                Namespace::Cgroup => UnshareFlags::NEWCGROUP,
            }
    });
    sys::unshare(flags).map_err(failed("make namespaces"))
}
