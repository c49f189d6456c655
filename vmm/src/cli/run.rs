//! `tine run`: one machine for one command.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::process;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tine::agent::{Agent, AgentError, Hellos, Streams};
use tine::config::{ConsoleConfig, MachineConfig};
use tine::image::{Image, NoImage};
use tine::machine::{Machine, MachineError};
use tine::vcpu::Ending;
use tine_devices::virtio::block::BlockConfig;
use tine_guest_agent::exec::{ExecRequest, Record, State};
use tine_guest_agent::octets::Octets;

use super::timing::Timing;
use super::{parse, signals};

/// How long a guest may take to switch itself off in good order.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(60);
/// As `timeout(1)` does it.
const STATUS_TIMED_OUT: u8 = 124;
/// How much of the console is shown when a guest ends unasked.
const CONSOLE_LINES: usize = 12;

/// Boot a machine, run a command in it, and remove it
#[derive(clap::Args)]
#[command(after_help = "\
Without a COMMAND the machine runs until its guest ends by itself.

Examples:
  tine run -- uname -a
  echo hi | tine run -i -- cat
  tine run --memory 512M --rootfs debian.ext4 -w /root -- sh -c 'apt list | wc -l'
  tine run --kernel guest.elf --console stdout")]
pub struct Args {
    /// Kernel to boot (ELF or bzImage) [default: the built image]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Initial RAM disk [default: the built image's, when a COMMAND is given]
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Words for the kernel's command line
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        allow_hyphen_values = true
    )]
    cmdline: String,
    /// Number of vCPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    vcpus: u8,
    /// Memory, with a unit (K, M, G); a bare number is MiB
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse::size)]
    memory: u64,
    /// Attach a raw disk image; the guest finds them as vda, vdb, ... (behind the root drive)
    #[arg(long = "disk", value_name = "PATH[,ro]", value_parser = parse::drive)]
    disks: Vec<parse::Drive>,
    /// Disk image to take as the guest's root file system
    #[arg(long, value_name = "PATH[,ro]", value_parser = parse::drive)]
    rootfs: Option<parse::Drive>,
    /// Where the guest's console goes
    #[arg(long, value_name = "none|stdout|FILE", default_value = "none", value_parser = parse::console)]
    console: ConsoleConfig,
    /// End everything after this time (status 124)
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    /// Set a variable for the command; without a value, pass it on
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = parse::variable)]
    env: Vec<(String, String)>,
    /// Directory to run the command in
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// User to run the command as
    #[arg(short, long, value_name = "USER|UID[:GID]")]
    user: Option<String>,
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Print to standard error how long each phase took
    #[arg(long)]
    timing: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

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
    let config = config(&args)?;
    let (events, received) = mpsc::channel();
    let to_run = events.clone();
    signals::forward(move |signal| send(&to_run, Event::Signal(signal)))
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

fn config(args: &Args) -> Result<MachineConfig, RunError> {
    let with_command = !args.command.is_empty();
    let built = match (&args.kernel, &args.initrd) {
        (Some(_), Some(_)) => None,
        (Some(_), None) if !with_command => None,
        _ => Some(Image::built()?),
    };
    let built = built.as_ref();
    let kernel = args
        .kernel
        .clone()
        .or_else(|| built.map(|image| image.kernel.clone()));
    let mut config = MachineConfig::new(kernel.unwrap_or_default());
    config.initrd = args
        .initrd
        .clone()
        .or_else(|| built.map(|image| image.initramfs.clone()));
    config.cmdline = args.cmdline.clone();
    config.vcpus = args.vcpus;
    config.memory = args.memory;
    config.console = args.console.clone();
    config.root_drive = args.rootfs.as_ref().map(|_| 0);
    for (number, drive) in args.rootfs.iter().chain(&args.disks).enumerate() {
        let id = match (number, &args.rootfs) {
            (0, Some(_)) => "root".to_owned(),
            (number, _) => format!("disk{number}"),
        };
        let mut block = BlockConfig::new(id, drive.path.clone());
        block.read_only = drive.read_only;
        config.drives.push(block);
    }
    Ok(config)
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
        Ok(status(&record))
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
                Waited::Leave(STATUS_TIMED_OUT)
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
        let request = request(&self.args);
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
        // A guest that died takes the connection with it; how it died says more.
        match self.received.recv_timeout(Duration::from_millis(100)) {
            Ok(Event::Ended(ending)) => Err(self.ended(ending, "before the command did")),
            _ => Err(err.into()),
        }
    }

    fn ended(&self, ending: Ending, when: &'static str) -> RunError {
        let mut console = String::new();
        if self.args.console == ConsoleConfig::None {
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

fn request(args: &Args) -> ExecRequest {
    use std::os::unix::ffi::OsStringExt;
    ExecRequest {
        request_id: format!("run-{}", process::id()),
        argv: args
            .command
            .iter()
            .map(|word| Octets(word.clone().into_vec()))
            .collect(),
        env: args
            .env
            .iter()
            .map(|(name, value)| (name.clone(), Octets(value.clone().into_bytes())))
            .collect(),
        cwd: args
            .workdir
            .as_ref()
            .map(|dir| Octets(dir.clone().into_bytes())),
        user: args.user.clone(),
        stdin: args.interactive,
        ..Default::default()
    }
}

/// The exit status that a shell would give.
fn status(record: &Record) -> u8 {
    if let (State::Failed, Some(reason)) = (record.state, &record.reason) {
        eprintln!("tine: {reason}");
    }
    match (record.exit_code, record.signal) {
        (_, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (Some(code), None) => code as u8,
        (None, None) => 1,
    }
}
