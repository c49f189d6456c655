//! A machine in the foreground: in this process, for one command or until its guest ends.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tine::agent::{self, Agent, AgentError, Hellos, Streams};
use tine::image::NoImage;
use tine::machine::{Machine, MachineError};
use tine::signals;
use tine::snapshot::LoadError;
use tine::vcpu::Ending;
use tine_guest_agent::exec::Record;
use tine_guest_agent::refresh::Refresh;
use tine_jailer::seccomp::{self, Mode};
use tine_snapshot::WriteError;

use super::boot_template::BootTemplate;
use super::exec::Place;
use super::exit::{self, TIMED_OUT};
use super::timing::Timing;

/// How long a guest may take to switch itself off in good order.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(60);
/// How long a restored guest's agent may take to answer, when there is no other limit.
const REFRESH_PATIENCE: Duration = Duration::from_secs(300);
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
    Snapshot(#[from] LoadError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(
        "its guest has no agent, or has to boot: no other name, variables or files can be given to it"
    )]
    NoAgent,
    #[error("cannot record the working set: {0}")]
    WorkingSet(#[from] WriteError),
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

/// What a machine is run for.
pub struct Job {
    /// The command; none when the machine runs until its guest ends.
    pub command: Vec<std::ffi::OsString>,
    /// Where and as whom.
    pub place: Place,
    /// The command reads this process's standard input.
    pub interactive: bool,
    /// For all of it.
    pub timeout: Option<Duration>,
    /// The guest can write to a drive.
    pub writable: bool,
    /// What was touched of the snapshot is written there when the command has ended.
    pub record: Option<PathBuf>,
    /// The console goes nowhere, so that its last lines are shown when something goes wrong.
    pub show_console: bool,
}

/// How the guest's agent comes to be ready.
pub enum Ready {
    /// It says so when it has started. The template, if any, is made then.
    Hello(Option<BootTemplate>),
    /// It has been told that it goes on as another machine.
    Refresh(Box<Refresh>),
}

/// What a machine calls when its guest ends.
pub type OnEnd = Arc<dyn Fn(Ending) + Send + Sync>;

/// Makes the machine and does the job; the result is the status to exit with.
pub fn run(
    make: impl FnOnce(OnEnd) -> Result<(Machine, Ready), RunError>,
    job: Job,
    timing: &mut Timing,
) -> Result<u8, RunError> {
    let deadline = job.timeout.map(|timeout| Instant::now() + timeout);
    let (events, received) = mpsc::channel();
    // Those of its threads that have to do with the guest are restricted, the others are not.
    seccomp::set_mode(Mode::Filter).map_err(|err| RunError::Os("restrict threads", err))?;
    let to_run = events.clone();
    signals::block()
        .and_then(|blocked| blocked.forward(move |signal| send(&to_run, Event::Signal(signal))))
        .map_err(|err| RunError::Os("watch for signals", err))?;
    let to_run = events.clone();
    // A machine that is given up has had no guest, and calls it for none.
    let (machine, ready) = make(Arc::new(move |ending| send(&to_run, Event::Ended(ending))))?;
    let run = Run {
        machine,
        job,
        deadline,
        events,
        received,
    };
    let result = run.start(ready, timing);
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
    job: Job,
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
    fn start(&self, ready: Ready, timing: &mut Timing) -> Result<u8, RunError> {
        let hellos = Hellos::listen(self.machine.vsock())
            .map_err(|err| RunError::Os("listen for the agent", err))?;
        timing.phase("monitor set-up");
        self.machine.resume();
        timing.phase("first guest instruction");
        let alone = self.job.command.is_empty();
        let template = match ready {
            Ready::Hello(_) if alone => return self.until_end(),
            Ready::Hello(template) => {
                self.wait_for_agent(hellos)?;
                template
            }
            Ready::Refresh(refresh) => {
                self.refresh_agent(*refresh)?;
                None
            }
        };
        match self.wait() {
            Waited::Event(Event::Running(result)) => result?,
            Waited::Event(Event::Ended(ending)) => {
                return Err(self.ended(ending, "before its agent answered"));
            }
            Waited::Event(_) => unreachable!("no command has been sent"),
            Waited::Leave(status) => return Ok(status),
        }
        timing.phase("guest to agent");
        if alone {
            return self.until_end();
        }
        let template = template.and_then(|template| template.make(&self.machine));
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
        self.record_working_set()?;
        self.power_off()?;
        timing.phase("power off");
        if let Some(writing) = template {
            // It is quick, and another boot is not. A panic has been reported by then.
            let _ = writing.join();
        }
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
                let limit = self.job.timeout.unwrap_or_default();
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

    /// Tells the agent of a restored guest that it is another machine.
    fn refresh_agent(&self, refresh: Refresh) -> Result<(), RunError> {
        let vsock = self.machine.vsock().clone();
        let events = self.events.clone();
        let deadline = self.deadline.unwrap_or(Instant::now() + REFRESH_PATIENCE);
        spawn("refresh", move || {
            let told = agent::refresh(&vsock, &refresh, deadline);
            send(&events, Event::Running(told.map(drop)));
        })
    }

    fn run_command(&self) -> Result<(), RunError> {
        let agent = Agent::new(self.machine.vsock().clone());
        let mut request = self.job.place.request(&self.job.command);
        request.request_id = format!("run-{}", std::process::id());
        request.stdin = self.job.interactive;
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

    /// Says what the guest has touched until now.
    fn record_working_set(&self) -> Result<(), RunError> {
        let Some(path) = &self.job.record else {
            return Ok(());
        };
        let touched = self.machine.memory().touched();
        let touched = touched.map_err(|err| RunError::Os("record the working set", err))?;
        // A machine of a snapshot's directory is of one.
        touched.map_or(Ok(()), |set| Ok(set.write(path)?))
    }

    /// Ends the guest in good order if it has something to lose: a drive that it may write to.
    fn power_off(&self) -> Result<(), RunError> {
        if !self.job.writable {
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
        if self.job.show_console {
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
