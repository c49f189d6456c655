//! A command from its start to its record.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tine_guest_agent::exec::{Background, DEFAULT_GRACE_MS, ExecRequest, State, Usage};
use tokio::io::Interest;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::io::{self, AgentSide, Pump};
use super::launch::{Refusal, launch};
use super::{End, Exec, Input, Output};
use crate::agent::cgroup::Group;
use crate::agent::sys::{self, Exit};
use crate::agent::{Agent, Either, race};

/// A terminal ends when its session's leader does; this bounds the wait for it.
const TERMINAL_END: Duration = Duration::from_secs(2);

/// After a kill, for the last of a command's processes to be gone: they may be stuck in the kernel for longer.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Runs an admitted command. Its end is told through the record.
pub async fn run(agent: Rc<Agent>, exec: Rc<Exec>, request: ExecRequest) {
    let limit = Limit::of(&request);
    let end = match start(&agent, &exec, &request, &limit).await {
        Ok(running) => running.finish(&agent, &exec, &request, &limit).await,
        Err(refusal) => End {
            state: State::Failed,
            exit_code: Some(refusal.exit_code),
            signal: None,
            reason: Some(refusal.reason),
            usage: None,
        },
    };
    exec.set_ended(end);
    exec.room.notify_waiters();
    agent.events.exec_ended(&exec);
    agent.store.ended(exec);
    agent.run_ended.notify_waiters();
}

/// A command that has been started.
struct Running {
    pid: i32,
    exit: oneshot::Receiver<Exit>,
    group: Option<Group>,
    pumps: Vec<Pump>,
    /// It was to be ended before it had begun.
    stop: Option<Stop>,
}

/// Why a command was ended before its own end.
enum Stop {
    TimedOut(u64),
    Cancelled,
}

/// When a command's time is up, counted from its acceptance.
struct Limit {
    timeout_ms: u64,
    deadline: Option<Instant>,
}

impl Limit {
    fn of(request: &ExecRequest) -> Self {
        let after = |timeout| Instant::now().checked_add(Duration::from_millis(timeout));
        Self {
            timeout_ms: request.timeout_ms.unwrap_or_default(),
            deadline: request.timeout_ms.and_then(after),
        }
    }

    /// Waits for a reason to end the command.
    async fn reached(&self, exec: &Exec) -> Stop {
        let time = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        match race(time, exec.cancel.notified()).await {
            Either::Left(()) => Stop::TimedOut(self.timeout_ms),
            Either::Right(()) => Stop::Cancelled,
        }
    }
}

async fn start(
    agent: &Rc<Agent>,
    exec: &Rc<Exec>,
    request: &ExecRequest,
    limit: &Limit,
) -> Result<Running, Refusal> {
    let failed = |what: &str, error: std::io::Error| Refusal {
        exit_code: 126,
        reason: format!("{what}: {error}"),
    };
    let (child, ours) = io::open(request, &agent.null)
        .map_err(|error| failed("cannot make the command's streams", error))?;
    let group = agent.cgroups.acquire();
    let cgroup = group.as_ref().map(Group::raw_dir);
    let slot = agent.reaper.starting();
    let born = slot.clone();
    // A clone of the request moves to the thread; large ones cost a copy, which is cheaper than sharing every small one.
    let wanted = request.clone();
    let defaults = agent.env.borrow().clone();
    let mut launching = tokio::task::spawn_blocking(move || {
        let result = launch(&wanted, &defaults, child.stdio, cgroup, &born);
        drop(child);
        result
    });
    let (result, stop) = match race(&mut launching, limit.reached(exec)).await {
        Either::Left(result) => (result, None),
        Either::Right(stop) => {
            // The program's file may be on a file system that does not answer: the child waits there and can be killed.
            let born = slot.load(Ordering::Relaxed);
            if born > 0 {
                let _ = sys::kill(born, libc::SIGKILL);
            }
            (launching.await, Some(stop))
        }
    };
    let result = result.unwrap_or_else(|_| {
        Err(Refusal {
            exit_code: 126,
            reason: "the agent could not start it".into(),
        })
    });
    let pid = match result {
        Ok(pid) => pid,
        Err(refusal) => {
            agent.reaper.failed(&slot);
            if let Some(group) = group {
                agent.cgroups.release(group);
            }
            return Err(refusal);
        }
    };
    let exit = agent.reaper.started(&slot, pid);
    let pumps = match connect(agent, exec, request, ours) {
        Ok(pumps) => pumps,
        Err(error) => {
            let _ = sys::kill(-pid, libc::SIGKILL);
            if let Some(group) = group {
                agent.cgroups.release(group);
            }
            return Err(failed("cannot watch the command's streams", error));
        }
    };
    exec.set_started(pid, group.as_ref().map(|group| group.name().to_owned()));
    Ok(Running {
        pid,
        exit,
        group,
        pumps,
        stop,
    })
}

/// Puts the agent's ends into the loop.
fn connect(
    agent: &Rc<Agent>,
    exec: &Rc<Exec>,
    request: &ExecRequest,
    ours: AgentSide,
) -> std::io::Result<Vec<Pump>> {
    let AgentSide {
        stdin,
        stdout,
        stderr,
        terminal,
    } = ours;
    let terminal = terminal
        .map(|fd| sys::watch(fd, Interest::READABLE | Interest::WRITABLE))
        .transpose()?
        .map(Rc::new);
    let mut pumps = Vec::new();
    let mut add = |output, fd, pipe| {
        let keep = request.background == Background::Keep;
        let store = agent.store.clone();
        let pump = Pump {
            exec: exec.clone(),
            store,
            output,
            fd,
            pipe,
            keep,
        };
        tokio::task::spawn_local(pump.clone().run());
        pumps.push(pump);
    };
    for (output, fd) in [(Output::Stdout, stdout), (Output::Stderr, stderr)] {
        match (fd, &terminal) {
            (Some(fd), _) => {
                add(output, Rc::new(sys::watch(fd, Interest::READABLE)?), true);
            }
            (None, Some(terminal)) if output == Output::Stdout => {
                add(output, terminal.clone(), false)
            }
            (None, _) => exec.with_log(output, |log| log.close()),
        }
    }
    exec.set_input(match (terminal, stdin) {
        (Some(terminal), _) => Input::Terminal(terminal),
        (None, Some(stdin)) => Input::Pipe(Rc::new(sys::watch(stdin, Interest::WRITABLE)?)),
        (None, None) => Input::Closed,
    });
    if let Some(input) = request.input.clone() {
        let exec = exec.clone();
        tokio::task::spawn_local(async move {
            exec.feed(&input.0).await;
            exec.feed_end().await;
        });
    }
    Ok(pumps)
}

impl Running {
    /// Waits for the command's end, brings it about at its limit or on request, and takes what it has written.
    async fn finish(
        self,
        agent: &Rc<Agent>,
        exec: &Rc<Exec>,
        request: &ExecRequest,
        limit: &Limit,
    ) -> End {
        let Self {
            pid,
            mut exit,
            group,
            pumps,
            stop,
        } = self;
        let stop = match stop {
            Some(stop) => Ok(stop),
            None => match race(&mut exit, limit.reached(exec)).await {
                Either::Left(exit) => Err(exit),
                Either::Right(stop) => Ok(stop),
            },
        };
        let (exit, stop) = match stop {
            Err(exit) => (exit, None),
            Ok(stop) => {
                let grace = request.grace_ms.unwrap_or(DEFAULT_GRACE_MS);
                let tree = Tree {
                    pid,
                    group: group.as_ref(),
                };
                (
                    tree.end(agent, exit, Duration::from_millis(grace)).await,
                    Some(stop),
                )
            }
        };
        if stop.is_none() && request.background == Background::Kill {
            Tree {
                pid,
                group: group.as_ref(),
            }
            .kill(agent)
            .await;
        }
        if request.tty.is_some() {
            let closed = async {
                loop {
                    let changed = exec.changed.notified();
                    if exec.with_log(Output::Stdout, |log| log.is_closed()) {
                        break;
                    }
                    changed.await;
                }
            };
            let _ = tokio::time::timeout(TERMINAL_END, closed).await;
        }
        pumps.iter().for_each(Pump::drain);
        if let Some(group) = group {
            agent.cgroups.release(group);
        }
        end(exit.ok(), stop)
    }
}

/// A command with all its descendants.
struct Tree<'a> {
    pid: i32,
    group: Option<&'a Group>,
}

impl Tree<'_> {
    /// SIGTERM to all, and SIGKILL to what is left when the command has ended or the grace is over.
    async fn end(
        &self,
        agent: &Agent,
        mut exit: oneshot::Receiver<Exit>,
        grace: Duration,
    ) -> Result<Exit, oneshot::error::RecvError> {
        let early = if grace.is_zero() {
            None
        } else {
            match self.group {
                Some(group) => group.signal(libc::SIGTERM),
                None => drop(sys::kill(-self.pid, libc::SIGTERM)),
            }
            tokio::time::timeout(grace, &mut exit).await.ok()
        };
        self.kill(agent).await;
        match early {
            Some(exit) => exit,
            None => exit.await,
        }
    }

    /// Kills everything that is left and waits until it is gone.
    async fn kill(&self, agent: &Agent) {
        let Some(group) = self.group else {
            let _ = sys::kill(-self.pid, libc::SIGKILL);
            crate::agent::processes::kill_session(self.pid);
            return;
        };
        if group.is_empty() {
            return;
        }
        if group.kill().is_err() {
            group.signal(libc::SIGKILL);
        }
        let gone = async {
            loop {
                // Orphans come to the agent to be reaped, so each death in the group is noticed here.
                let reaped = agent.reaper.reaped.notified();
                if group.is_empty() {
                    break;
                }
                reaped.await;
            }
        };
        let _ = tokio::time::timeout(KILL_LIMIT, gone).await;
    }
}

fn end(exit: Option<Exit>, stop: Option<Stop>) -> End {
    let signal = exit.and_then(|exit| exit.signal());
    let by_signal = |signal| format!("killed by signal {signal}");
    let (state, reason) = match (stop, signal) {
        (Some(Stop::TimedOut(limit)), _) => {
            (State::TimedOut, Some(format!("timed out after {limit} ms")))
        }
        (Some(Stop::Cancelled), _) => (State::Killed, Some("cancelled".into())),
        (None, Some(signal)) => (State::Killed, Some(by_signal(signal))),
        (None, None) => (State::Exited, None),
    };
    let usage = exit.map(|exit| Usage {
        cpu_us: exit.cpu_us,
        max_memory_bytes: exit.max_memory_bytes,
    });
    End {
        state,
        exit_code: exit.and_then(|exit| exit.code()),
        signal,
        reason,
        usage,
    }
}

/// The agent's /dev/null, which commands without input read.
pub fn open_null() -> std::io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(
        "/dev/null",
        flags,
        rustix::fs::Mode::empty(),
    )?)
}
