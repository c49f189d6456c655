//! Commands: the state of each, and what the parts of this module do with it.
//!
//! `store` admits a request at most once, `run` takes a command from start to end, `launch` turns a request into a
//! process (with `child`, the only unsafe part), `io` moves its bytes, `log` keeps them, `stream` shows them live.

pub mod api;
pub mod child;
pub mod io;
pub mod launch;
pub mod log;
pub mod run;
pub mod store;
pub mod stream;
pub mod users;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::SystemTime;

use tine_guest_agent::exec::{
    DEFAULT_OUTPUT_LIMIT, ExecRequest, Record, Started, State, Usage, spell,
};
use tokio::sync::Notify;

use self::log::Log;
use super::clock;
use super::sys::{self, Watched};

/// Bytes kept of each stream of a command that was started as a stream and says nothing else: enough to replay what
/// a broken connection has missed.
const STREAM_KEPT: u64 = 64 * 1024;

/// One of a command's output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Stdout = 0,
    Stderr = 1,
}

/// One accepted command, running or ended.
pub struct Exec {
    pub id: String,
    /// Of the request, to tell a repeated one from a different one.
    pub digest: u128,
    outcome: RefCell<Outcome>,
    logs: [RefCell<Log>; 2],
    /// Output bytes over all records, this one included until it is dropped.
    held: Rc<Cell<usize>>,
    dropped: Cell<bool>,
    /// Accepted before the machine was restored or forked.
    pub inherited: Cell<bool>,
    input: RefCell<Input>,
    /// Bytes of input that the command was given, or would not take any more.
    stdin_taken: Cell<u64>,
    /// How often a connection has taken the input over.
    stdin_owner: Cell<u32>,
    /// Output has come, or the state has changed.
    pub changed: Notify,
    /// A reader has gone on or away.
    pub room: Notify,
    /// Somebody wants the command ended.
    pub cancel: Notify,
}

/// Where what the host sends goes.
#[derive(Default)]
enum Input {
    /// Not known yet: the command is being started.
    #[default]
    Pending,
    /// Standard input's pipe.
    Pipe(Rc<Watched>),
    /// The master side of the command's terminal.
    Terminal(Rc<Watched>),
    /// The command takes no input, or no more.
    Closed,
}

#[derive(Default)]
struct Outcome {
    state: State,
    /// While it runs.
    pid: Option<i32>,
    /// The process's number from the start on, for telling.
    told_pid: Option<i32>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    reason: Option<String>,
    started: Option<SystemTime>,
    ended: Option<SystemTime>,
    usage: Option<Usage>,
    group: Option<String>,
}

/// How a command came to its end.
pub struct End {
    pub state: State,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub reason: Option<String>,
    pub usage: Option<Usage>,
}

impl Exec {
    /// A command that has been accepted and not been started. `streamed`: its submitter reads it live.
    pub fn new(request: &ExecRequest, streamed: bool, held: Rc<Cell<usize>>) -> Self {
        let default = if streamed {
            STREAM_KEPT
        } else {
            DEFAULT_OUTPUT_LIMIT
        };
        let limit = request.output_limit.unwrap_or(default) as usize;
        let log = || {
            RefCell::new(if streamed {
                Log::tail(limit)
            } else {
                Log::head(limit)
            })
        };
        Self {
            id: request.request_id.clone(),
            digest: request.digest(),
            outcome: RefCell::default(),
            logs: [log(), log()],
            held,
            dropped: Cell::new(false),
            inherited: Cell::new(false),
            input: RefCell::default(),
            stdin_taken: Cell::new(0),
            stdin_owner: Cell::new(0),
            changed: Notify::new(),
            room: Notify::new(),
            cancel: Notify::new(),
        }
    }

    /// Does something with a log and keeps account of the memory it holds.
    pub fn with_log<T>(&self, output: Output, act: impl FnOnce(&mut Log) -> T) -> T {
        let mut log = self.logs[output as usize].borrow_mut();
        let before = log.held();
        let result = act(&mut log);
        if !self.dropped.get() {
            self.held.set(self.held.get() + log.held() - before);
        }
        result
    }

    /// The record is no longer kept; who still reads it does so outside the account.
    fn set_dropped(&self) {
        let held: usize = self.logs.iter().map(|log| log.borrow().held()).sum();
        self.held.set(self.held.get() - held);
        self.dropped.set(true);
    }

    /// It has not ended.
    pub fn is_running(&self) -> bool {
        self.outcome.borrow().state == State::Running
    }

    /// The process exists.
    pub fn set_started(&self, pid: i32, group: Option<String>) {
        let mut outcome = self.outcome.borrow_mut();
        outcome.pid = Some(pid);
        outcome.told_pid = Some(pid);
        outcome.group = group;
        outcome.started = Some(SystemTime::now());
        drop(outcome);
        self.changed.notify_waiters();
    }

    /// The command is over, one way or the other.
    pub fn set_ended(&self, end: End) {
        self.input.replace(Input::Closed);
        for log in &self.logs {
            log.borrow_mut().close();
        }
        let mut outcome = self.outcome.borrow_mut();
        outcome.state = end.state;
        outcome.exit_code = end.exit_code;
        outcome.signal = end.signal;
        outcome.reason = end.reason;
        outcome.usage = end.usage;
        outcome.pid = None;
        let now = SystemTime::now();
        outcome.started.get_or_insert(now);
        outcome.ended = Some(now);
        drop(outcome);
        self.changed.notify_waiters();
    }

    /// Asks for its end. Nothing happens to one that has ended.
    pub fn cancel(&self) {
        self.cancel.notify_one();
    }

    /// The process group's leader, while it is not reaped.
    pub fn pid(&self) -> Option<i32> {
        self.outcome.borrow().pid
    }

    /// Name of its control group, for telling whose a process is.
    pub fn group(&self) -> Option<String> {
        self.outcome.borrow().group.clone()
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, signal: i32) -> std::io::Result<()> {
        match self.pid() {
            Some(pid) => sys::kill(-pid, signal),
            None => Err(rustix::io::Errno::SRCH.into()),
        }
    }

    /// What is said when it has been started, if it has; the output's offsets are the stream's own.
    pub fn started(&self) -> Option<Started> {
        let pid = self.outcome.borrow().told_pid? as u32;
        let request_id = self.id.clone();
        Some(Started {
            state: State::Running,
            request_id,
            pid,
            stdin_offset: Some(self.stdin_taken.get()),
            ..Started::default()
        })
    }

    /// What is known of it now. `output`: with the bytes kept.
    pub fn record(&self, output: bool) -> Record {
        let outcome = self.outcome.borrow();
        let mut record = Record {
            request_id: self.id.clone(),
            state: outcome.state,
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            reason: outcome.reason.clone(),
            started_at: outcome.started.map(clock::rfc3339),
            ended_at: outcome.ended.map(clock::rfc3339),
            usage: outcome.usage,
            inherited: self.inherited.get(),
            ..Record::default()
        };
        if output {
            let (bytes, more) = self.with_log(Output::Stdout, |log| log.kept());
            (record.stdout, record.stdout_encoding) = spell(&bytes);
            record.stdout_truncated = more;
            let (bytes, more) = self.with_log(Output::Stderr, |log| log.kept());
            (record.stderr, record.stderr_encoding) = spell(&bytes);
            record.stderr_truncated = more;
        }
        record
    }

    /// Waits until it has ended.
    pub async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.is_running() {
                return;
            }
            changed.await;
        }
    }
}
