//! `tine run` in the foreground: one machine for one command, in this process.

use std::fmt::Write as _;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tine::agent::{Agent, AgentError, Hellos, Streams};
use tine::config::ConsoleConfig;
use tine::image::NoImage;
use tine::machine::{Machine, MachineError};
use tine::signals;
use tine::vcpu::Ending;
use tine_guest_agent::exec::Record;

use super::Args;
use super::config::local;
use crate::cli::exit::{self, TIMED_OUT};
use crate::cli::timing::Timing;

/// How long a guest may take to switch itself off in good order.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(60);
/// How long a guest whose agent is gone may take to come to its end.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// How much of the console is shown when a guest ends unasked.
const CONSOLE_LINES: usize = 12;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Image(#[from] NoImage),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("cannot {0}: {1}")]
    Os(&'static str, #[source] io::Error),
    #[error("{ending}, {when}{console}")]
    Ended {
        ending: Ending,
        when: &'static str,
        console: String,
    },
}

/// What happens to a run.
enum Event {
    /// The guest ended.
    Ended(Ending),
    /// The agent announced itself, or could not.
    Running(Result<(), AgentError>),
    /// The command ended, or could not be run.
    Done(Result<Record, AgentError>),
    /// The process was asked to end.
    Signal(i32),
}

/// Runs the command; the result is the status to exit with.
pub fn run(args: Args) -> Result<u8, RunError> {
    let mut timing = Timing::start(args.timing);
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let config = local(&args)?;
    let (events, received) = mpsc::channel();
    let to_run = events.clone();
    signals::block()
        .and_then(|blocked| blocked.forward(move |signal| send(&to_run, Event::Signal(signal))))
        .map_err(|err| RunError::Os("watch for signals", err))?;
    let to_run = events.clone();
    let machine = Machine::assemble(&config, move |ending| send(&to_run, Event::Ended(ending)))?;
    let run = Run {
        machine,
        args,
        deadline,
        events,
        received,
    };
    let result = run.start(&mut timing);
    // The process is the machine, and it ends here: its end releases everything at once, where
    // taking the machine apart would wait for each thread and descriptor in turn.
    std::mem::forget(run);
    result
}

fn send(events: &Sender<Event>, event: Event) {
    // The receiver is gone when the run is over, and then nobody needs to know.
    let _ = events.send(event);
}

/// A machine on its way through a run.
struct Run {
    machine: Machine,
    args: Args,
    deadline: Option<Instant>,
    events: Sender<Event>,
    received: Receiver<Event>,
}

/// How waiting ended.
enum Waited {
    Event(Event),
    /// Leave with this status.
    Leave(u8),
}

impl Run {
    fn start(&self, timing: &mut Timing) -> Result<u8, RunError> {
        let hellos = Hellos::listen(self.machine.vsock())
            .map_err(|err| RunError::Os("listen for the agent", err))?;
        timing.phase("monitor set-up");
        self.machine.resume();
        timing.phase("first guest instruction");
        if self.args.command.is_empty() {
            return self.until_end();
        }
        self.wait_for_agent(hellos)?;
        match self.wait() {
            Waited::Event(Event::Running(result)) => result?,
            Waited::Event(Event::Ended(ending)) => {
                return Err(self.ended(ending, "before its agent answered"));
            }
            Waited::Event(_) => unreachable!("no command has been sent"),
            Waited::Leave(status) => return Ok(status),
        }
        timing.phase("kernel to agent");
        self.run_command()?;
        let record = match self.wait() {
            Waited::Event(Event::Done(Ok(record))) => record,
            Waited::Event(Event::Done(Err(err))) => return self.failed(err),
            Waited::Event(Event::Ended(ending)) => {
                return Err(self.ended(ending, "before the command did"));
            }
            Waited::Event(_) => unreachable!("one hello, one command"),
            Waited::Leave(status) => return Ok(status),
        };
        timing.phase("command");
        self.power_off()?;
        timing.phase("power off");
        Ok(exit::status(&record))
    }

    /// Waits for the guest to end by itself.
    fn until_end(&self) -> Result<u8, RunError> {
        match self.wait() {
            Waited::Event(Event::Ended(Ending::PowerOff | Ending::Reset)) => Ok(0),
            Waited::Event(Event::Ended(ending)) => Err(self.ended(ending, "by itself")),
            Waited::Event(_) => unreachable!("nobody waits for an agent"),
            Waited::Leave(status) => Ok(status),
        }
    }

    fn wait(&self) -> Waited {
        let event = match self.deadline {
            None => self
                .received
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => self
                .received
                .recv_timeout(deadline.saturating_duration_since(Instant::now())),
        };
        match event {
            Ok(Event::Signal(signal)) => Waited::Leave(128 + signal as u8),
            Ok(event) => Waited::Event(event),
            Err(RecvTimeoutError::Timeout) => {
                let limit = self.args.timeout.unwrap_or_default();
                eprintln!("tine: timed out after {limit:?}");
                Waited::Leave(TIMED_OUT)
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("this run holds a sender"),
        }
    }

    fn wait_for_agent(&self, hellos: Hellos) -> Result<(), RunError> {
        let events = self.events.clone();
        spawn("hello", move || {
            match hellos.next() {
                Err(err) => send(&events, Event::Running(Err(err))),
                Ok((_, connection)) => {
                    send(&events, Event::Running(Ok(())));
                    // The agent keeps it open for as long as it lives, and so does this side.
                    let _ = io::copy(&mut &connection, &mut io::sink());
                }
            }
        })
    }

    fn run_command(&self) -> Result<(), RunError> {
        let agent = Agent::new(self.machine.vsock().clone());
        let mut request = self.args.place.request(&self.args.command);
        request.request_id = format!("run-{}", std::process::id());
        request.stdin = self.args.interactive;
        let events = self.events.clone();
        spawn("exec", move || {
            let stdin = request
                .stdin
                .then(|| Box::new(io::stdin()) as Box<dyn io::Read + Send>);
            let (mut stdout, mut stderr) = (io::stdout(), io::stderr());
            let streams = Streams {
                stdin,
                stdout: &mut stdout,
                stderr: &mut stderr,
            };
            let result = agent.exec(&request, streams);
            send(&events, Event::Done(result));
        })
    }

    /// Ends the guest in good order if it has something to lose: a drive that it may write to.
    fn power_off(&self) -> Result<(), RunError> {
        let writable = self
            .args
            .rootfs
            .iter()
            .chain(&self.args.disks)
            .any(|d| !d.read_only);
        if !writable {
            return Ok(());
        }
        let agent = Agent::new(self.machine.vsock().clone());
        agent.power_off()?;
        let patience = Instant::now() + POWER_OFF_PATIENCE;
        loop {
            let left = patience.saturating_duration_since(Instant::now());
            match self.received.recv_timeout(left) {
                Ok(Event::Ended(_)) => return Ok(()),
                Ok(Event::Signal(_)) | Err(_) => {
                    eprintln!("tine: the guest did not power off in good order");
                    return Ok(());
                }
                Ok(Event::Running(_) | Event::Done(_)) => {}
            }
        }
    }

    fn failed(&self, err: AgentError) -> Result<u8, RunError> {
        // A reader that has gone away is how a pipeline ends, and no error: `tine run .. | head`.
        if let AgentError::Output(source) = &err
            && source.kind() == io::ErrorKind::BrokenPipe
        {
            return Ok(128 + libc::SIGPIPE as u8);
        }
        // A guest that dies takes the connection with it, some time before it is at its end; how it
        // ended says more than that the connection broke.
        match self.received.recv_timeout(DEATH_PATIENCE) {
            Ok(Event::Ended(ending)) => Err(self.ended(ending, "before the command did")),
            _ => Err(err.into()),
        }
    }

    fn ended(&self, ending: Ending, when: &'static str) -> RunError {
        let mut console = String::new();
        if self
            .args
            .console
            .as_ref()
            .is_none_or(|to| *to == ConsoleConfig::None)
        {
            for line in self.machine.console_tail().lines(CONSOLE_LINES) {
                let _ = write!(console, "\n  console: {line}");
            }
        }
        RunError::Ended {
            ending,
            when,
            console,
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
    thread
        .map(drop)
        .map_err(|err| RunError::Os("start a thread", err))
}
