//! `tine exec`: a command in a running machine.

use std::time::Duration;

use tine::client::{Exec, ExecRequest, Machine, TtySize, argv, new_request_id};
use tine_guest_agent::exec::check_request_id;

use super::failure::Failure;
use super::session::{self, Ended, Signals};
use super::terminal::{self, Raw};
use super::{exit, output, parse, rundir};

/// Run a command in a running machine
#[derive(clap::Args)]
#[command(after_help = "\
The exit status is the command's own; 128 and the signal's number when it was killed, 124 when its
time was up, 127 or 126 when it could not be started, 1 when Tine could not do what was asked.

A request id names the command: a machine runs it once, however often the same command is sent with
it, and each time answers with the first one's output and status. When the connection breaks, the
command goes on and tine attaches to it again.

With -t, ctrl-p ctrl-q leaves the command running: `tine attach` comes back to it. Without -t,
SIGINT, SIGTERM and SIGHUP go to the command.

Examples:
  tine exec web -- ps aux
  tine exec -t web -- sh
  tar c src | tine exec -i web -- tar x -C /work
  tine exec --request-id build-17 --timeout 10m web -- make")]
pub struct Args {
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal, and pass input to it
    #[arg(short, long)]
    tty: bool,
    /// Name of the request [default: a new one]
    #[arg(long, value_name = "REQUEST_ID", value_parser = request_id)]
    request_id: Option<String>,
    /// End the command and its children after this time (status 124)
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    place: Place,
    /// Print the command's record as JSON in the end, and pass nothing through
    #[arg(long, conflicts_with_all = ["interactive", "tty"])]
    json: bool,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

/// Where and as whom a command runs.
#[derive(Default, clap::Args)]
pub struct Place {
    /// Set a variable for the command; without a value, pass it on
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = parse::variable)]
    pub env: Vec<(String, String)>,
    /// Directory to run the command in
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// User to run the command as
    #[arg(short, long, value_name = "USER|UID[:GID]")]
    pub user: Option<String>,
}

impl Place {
    /// A request for a command at this place.
    pub fn request(&self, command: &[std::ffi::OsString]) -> ExecRequest {
        let env = self.env.iter();
        ExecRequest {
            argv: argv(command),
            env: env
                .map(|(name, value)| (name.clone(), value.as_str().into()))
                .collect(),
            cwd: self.workdir.as_deref().map(Into::into),
            user: self.user.clone(),
            ..Default::default()
        }
    }
}

/// A request id as it is given.
pub fn request_id(text: &str) -> Result<String, String> {
    match check_request_id(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(err) => Err(err.message),
    }
}

/// Runs the command; the result is the status to exit with.
pub async fn exec(args: Args) -> Result<u8, Failure> {
    let machine = rundir::machine(&args.id)?;
    let mut request = args.place.request(&args.command);
    request.request_id = args.request_id.unwrap_or_else(new_request_id);
    request.timeout_ms = args.timeout.map(|limit| limit.as_millis() as u64);
    if args.json {
        let record = machine.run(request).await;
        let record = record.map_err(|err| Failure::of(&args.id, &err))?;
        output::print(&output::pretty(&record))?;
        return Ok(exit::status(&record));
    }
    request.stdin = args.interactive && !args.tty;
    request.tty = args.tty.then(terminal::size);
    run(&args.id, &machine, request).await
}

async fn run(id: &str, machine: &Machine, request: ExecRequest) -> Result<u8, Failure> {
    let (name, tty) = (request.request_id.clone(), request.tty);
    let mut signals = Signals::watch()?;
    let exec = tokio::select! {
        exec = machine.exec(request) => exec.map_err(|err| Failure::of(id, &err))?,
        number = signals.ending() => return Err(Failure::signal(number)),
    };
    follow(id, &name, exec, signals, tty).await
}

/// Follows a command from here to its end; the result is the status to exit with.
pub async fn follow(
    id: &str,
    request_id: &str,
    exec: Exec,
    signals: Signals,
    tty: Option<TtySize>,
) -> Result<u8, Failure> {
    let raw = match tty {
        Some(_) => Raw::enter()
            .map_err(|err| Failure::new(format!("cannot set up the terminal: {err}")))?,
        None => None,
    };
    let ended = session::join(exec, signals, raw.as_ref(), tty.is_some()).await;
    drop(raw);
    let again = format!("`tine attach {id} {request_id}` attaches again");
    match ended.map_err(|err| Failure::of(id, &err))? {
        Ended::Record(record) => Ok(exit::status(&record)),
        Ended::Detached => {
            eprintln!("tine: detached, and the command goes on: {again}");
            Ok(0)
        }
        Ended::Signal(number) => {
            eprintln!("tine: told to end, and the command goes on: {again}");
            Err(Failure::signal(number))
        }
    }
}
