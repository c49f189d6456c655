//! Watching what a process calls, call by call (seccomp_unotify(2)).
//!
//! A filter asks a supervisor about every call, who lets it go on. The threads say which role they
//! take on by a call that means nothing to the kernel.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::filters::{ROLES, Role};
use super::table::Table;
use super::trace::{Call, From, Trace};
use crate::error::{JailError, failed};
use crate::sys;
use crate::sys::notify::{self, Notice};

/// An option of prctl(2) that there is not: a thread that takes on a role calls it.
const MARK: u64 = 0x5449_4e45;

/// Tells the supervisor that the calling thread takes on `role`.
pub(super) fn mark(role: Role) {
    let index = ROLES.iter().position(|other| *other == role).unwrap_or(0);
    sys::call_nothing(MARK, index as u64);
}

/// Has every call of this process asked about from now on. Returns when there is a supervisor.
/// `tell` is given the number that the descriptor to be asked through will have.
pub(crate) fn watch(tell: impl FnOnce(i32) -> std::io::Result<()>) -> Result<(), JailError> {
    let next = notify::next_descriptor().map_err(failed("find a free descriptor"))?;
    tell(next).map_err(failed("tell the supervisor"))?;
    notify::ask_about_everything().map_err(failed("have calls asked about"))
}

/// Lets `process` call what it likes, and notes it down until its end. `descriptor` is what it
/// [`watch`]es through.
pub(crate) fn supervise(process: u32, descriptor: i32) -> Result<Trace, JailError> {
    supervise_from(process, descriptor, From::Execution)
}

pub(super) fn supervise_from(
    process: u32,
    descriptor: i32,
    from: From,
) -> Result<Trace, JailError> {
    let doing = "watch over the process";
    let pid = Pid::from_raw(process as i32)
        .ok_or(Errno::SRCH)
        .map_err(failed(doing))?;
    let number = process;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed(doing))?;
    let questions = loop {
        // There is nothing to wait for: the descriptor comes into being by the very call after
        // which the process cannot say so any more.
        match pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty()) {
            Ok(fd) if notify::is_notifier(fd.as_fd()) => break fd,
            Ok(_) | Err(Errno::BADF) => std::thread::yield_now(),
            Err(err) => return Err(failed(doing)(err)),
        }
    };
    Supervisor::new(questions, from, number).run(&process)
}

struct Supervisor {
    questions: OwnedFd,
    noting: bool,
    /// By call: which arguments rules look at.
    looked_at: HashMap<i64, BTreeSet<u8>>,
    refused: HashMap<i64, u32>,
    /// The roles of each thread, its own last.
    roles: HashMap<u32, Vec<Role>>,
    process: u32,
    /// Threads that have started another one, of which nothing was heard yet, and their roles then.
    starting: VecDeque<(u32, Vec<Role>)>,
    trace: Trace,
}

impl Supervisor {
    fn new(questions: OwnedFd, from: From, process: u32) -> Self {
        let whole: Table = Role::Process.table();
        let mut looked_at: HashMap<i64, BTreeSet<u8>> = HashMap::new();
        for rule in &whole.rules {
            let indices = looked_at.entry(rule.number).or_default();
            indices.extend(rule.tests.iter().map(|(index, _)| *index));
        }
        Self {
            questions,
            noting: from == From::Now,
            looked_at,
            refused: whole.refused.into_iter().collect(),
            roles: HashMap::new(),
            process,
            starting: VecDeque::new(),
            trace: Trace::default(),
        }
    }

    fn run(mut self, process: &OwnedFd) -> Result<Trace, JailError> {
        loop {
            let mut both = [
                PollFd::new(&self.questions, PollFlags::IN),
                PollFd::new(process, PollFlags::IN),
            ];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(err) => return Err(failed("wait for a call")(err)),
            }
            let asked = both[0].revents().contains(PollFlags::IN);
            let ended = !both[1].revents().is_empty();
            if asked {
                // The thread may be gone by now, and its question with it.
                if let Ok(notice) = notify::next_notice(self.questions.as_fd()) {
                    self.answer(&notice);
                }
            } else if ended {
                return Ok(self.trace);
            }
        }
    }

    /// Gives a thread that is heard of for the first time the roles of the one that started it. Who
    /// calls something else has started its thread by then: that one is looked up, so that roles taken
    /// on since are not taken for the other's.
    fn meet(&mut self, thread: u32) {
        if let Some(place) = self.starting.iter().position(|(by, _)| *by == thread) {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process));
            let numbers = tasks.into_iter().flatten().flatten();
            let numbers = numbers.filter_map(|task| task.file_name().to_str()?.parse().ok());
            if let Some(new) = numbers
                .filter(|number| !self.roles.contains_key(number))
                .max()
                && let Some((_, roles)) = self.starting.remove(place)
            {
                self.roles.insert(new, roles);
            }
        }
        if !self.roles.contains_key(&thread) {
            let started = self.starting.pop_front();
            let roles = started.map_or_else(|| vec![Role::Process], |(_, roles)| roles);
            self.roles.insert(thread, roles);
        }
    }

    fn answer(&mut self, notice: &Notice) {
        let number = i64::from(notice.number);
        if !self.noting {
            self.noting = [libc::SYS_execve, libc::SYS_execveat].contains(&number);
            return notify::answer(self.questions.as_fd(), notice, None);
        }
        self.meet(notice.thread);
        let roles = self.roles.entry(notice.thread).or_default();
        let questions = self.questions.as_fd();
        if number == libc::SYS_prctl && notice.arguments[0] == MARK {
            // What it would have called instead.
            for (number, first) in [
                (libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS),
                (libc::SYS_seccomp, 1),
            ] {
                for role in roles.iter() {
                    let mut arguments = [0; 6];
                    arguments[0] = first as u64;
                    let call = Call { number, arguments };
                    *self.trace.0.entry((*role, call)).or_default() += 1;
                }
            }
            if let Some(role) = ROLES.get(notice.arguments[1] as usize) {
                roles.push(*role);
            }
            return notify::answer(questions, notice, Some(0));
        }
        if let Some(error) = self.refused.get(&number) {
            return notify::answer(questions, notice, Some(-(*error as i32)));
        }
        if number == libc::SYS_clone {
            self.starting.push_back((notice.thread, roles.clone()));
        }
        let mut arguments = [0; 6];
        for index in self.looked_at.get(&number).into_iter().flatten() {
            let index = usize::from(*index);
            arguments[index] = notice.arguments[index] & u64::from(u32::MAX);
        }
        for role in roles.iter() {
            let call = Call { number, arguments };
            *self.trace.0.entry((*role, call)).or_default() += 1;
        }
        if number == libc::SYS_exit {
            self.roles.remove(&notice.thread);
        }
        notify::answer(questions, notice, None);
    }
}
