//! `tine attach`: the streams of a command that was started before.

use tine::client::Attach;

use super::exec::{follow, request_id};
use super::failure::Failure;
use super::session::Signals;
use super::{rundir, terminal};

/// Attach to a command that was started before
#[derive(clap::Args)]
#[command(after_help = "\
First comes the output that the machine still keeps, then what the command goes on to say. A
command that has ended gives its kept output and its exit status.

With -t, ctrl-p ctrl-q leaves the command running. Without -t, SIGINT, SIGTERM and SIGHUP go to the
command.

Examples:
  tine attach web build-17
  tine attach -t web shell")]
pub struct Args {
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// The command has a terminal: show it on the one here, and pass input to it
    #[arg(short, long)]
    tty: bool,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
    /// The name of the request
    #[arg(value_name = "REQUEST_ID", value_parser = request_id)]
    request_id: String,
}

/// Attaches; the result is the status to exit with.
pub async fn attach(args: Args) -> Result<u8, Failure> {
    let machine = rundir::machine(&args.id)?;
    let mut signals = Signals::watch()?;
    let how = Attach {
        stdin: args.interactive || args.tty,
        terminal: args.tty,
        ..Default::default()
    };
    let failed = |err| Failure::of(&args.id, &err);
    let mut exec = tokio::select! {
        exec = machine.attach(&args.request_id, how) => exec.map_err(failed)?,
        number = signals.ending() => return Err(Failure::signal(number)),
    };
    let size = args.tty.then(terminal::size);
    if let Some(size) = size {
        exec.control().resize(size).await;
    }
    if let Some(started) = exec.started().await {
        let missing = started.stdout_offset.saturating_add(started.stderr_offset);
        if missing > 0 {
            eprintln!("tine: the first {missing} bytes of its output are not kept any more");
        }
    }
    follow(&args.id, &args.request_id, exec, signals, size).await
}
