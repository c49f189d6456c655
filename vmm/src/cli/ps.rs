//! `tine ps`: the machines of this user.

use super::failure::Failure;
use super::{machines, output};

/// List machines
#[derive(clap::Args)]
#[command(after_help = "\
STATE is `running` when the machine takes commands. `dead` is a machine whose process has gone
without a word, `failed` one whose guest has crashed. Machines that have ended in good order are
listed with -a; `tine rm` removes what is left of any of them.

Examples:
  tine ps
  tine ps -a --json | jq -r '.[].id'")]
pub struct Args {
    /// Also those that have ended in good order
    #[arg(short, long)]
    all: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Lists the machines.
pub async fn ps(args: Args) -> Result<u8, Failure> {
    let mut machines = machines::all().await?;
    machines.retain(|machine| args.all || !machine.is_over());
    if args.json {
        output::print(&output::pretty(&machines))?;
        return Ok(0);
    }
    let head = ["ID", "STATE", "SINCE", "PID", "REASON"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(machines.into_iter().map(|machine| {
        vec![
            machine.id,
            machine.state,
            machine.since.as_deref().map(seconds).unwrap_or_default(),
            machine.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            output::printable(&machine.reason.unwrap_or_default()),
        ]
    }));
    output::print(&output::table(&rows))?;
    Ok(0)
}

/// A time without what is below a second.
pub fn seconds(time: &str) -> String {
    match time.split_once('.') {
        Some((whole, _)) => format!("{whole}Z"),
        None => time.to_owned(),
    }
}
