//! `tine fork`: copies of a machine that runs.

use serde_json::json;
use tine::launch::Handed;

use super::copies::{self, Options, Origin};
use super::failure::Failure;
use super::{jail, parse, process, rundir};

/// Make copies of a machine that runs, with all its processes, and print their ids
#[derive(clap::Args)]
#[command(after_help = "\
The machine stands still for some milliseconds and goes on. Each copy goes on from the same moment,
with memory and disks of its own: what is not changed is shared. A copy has its own id, host name
(the id), machine id, clock and random numbers, and connections of before are gone. A command that
was sent to the machine under a request id counts as sent to the copies, too.

The copies do not need the machine: it can be removed while they run.

Examples:
  tine fork -n 8 --name try web
  tine fork -e BRANCH=fix-1 --file key.pem:/root/key.pem web")]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Set a variable for later commands in the copies; without a value, pass it on
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = parse::variable)]
    env: Vec<(String, String)>,
    #[command(flatten)]
    jail: jail::Choice,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Makes the copies; the result is the status to exit with.
pub async fn fork(args: Args) -> Result<u8, Failure> {
    let dir = rundir::find(&args.id)?;
    // As a jail shows it: nothing in there is a link that the machine made.
    let dir = dir
        .canonicalize()
        .map_err(|err| Failure::new(format!("cannot open {}: {err}", dir.display())))?;
    let machine = rundir::machine(&args.id)?;
    let failed = |err| Failure::of(&args.id, &err);
    let status = machine.status().await.map_err(failed)?;
    let agent = status
        .more
        .get("agent")
        .is_some_and(|agent| !agent.is_null());
    let told = !args.env.is_empty() || !args.options.files.is_empty();
    if told && !agent {
        return Err(Failure::new(format!(
            "machine {} has no agent that variables and files could be given to",
            args.id
        )));
    }
    // Before the machine stands still for it.
    copies::check_room(args.options.count)?;
    let mut files = args.jail.files()?;
    let patience = args.options.timeout.unwrap_or(process::PATIENCE);
    let handed = Handed::out_of(&machine, &dir, args.options.count, patience).await;
    let handed = handed.map_err(failed)?;
    if let Some(files) = &mut files {
        // By its name: what it is there for ends with it.
        files.add(handed.socket().into(), true);
    }
    let origin = Origin {
        layers: handed.layers().map(Into::into),
        files,
        request: json!({ "fork": handed.socket() }),
        agent,
        env: args.env,
    };
    let made = copies::make(&args.options, origin).await;
    drop(handed);
    copies::print(&made?, args.options.json)
}
