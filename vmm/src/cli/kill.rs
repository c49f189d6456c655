//! `tine kill`: the end of a command, or a signal to it.

use super::exec::request_id;
use super::failure::Failure;
use super::{output, rundir};

/// End a command in a machine, or send it a signal
#[derive(clap::Args)]
#[command(after_help = "\
Without -s the command and all its children are told to end, and killed if they do not; this waits
for their end, and prints how it came. With -s the signal goes to the command's process group.

Examples:
  tine kill web build-17
  tine kill -s HUP web main")]
pub struct Args {
    /// Signal to send, by name or number
    #[arg(short, long, value_name = "SIGNAL", value_parser = signal)]
    signal: Option<i32>,
    /// Print the command's record as JSON
    #[arg(long, conflicts_with = "signal")]
    json: bool,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
    /// The name of the request
    #[arg(value_name = "REQUEST_ID", value_parser = request_id)]
    request_id: String,
}

const NAMES: [(&str, i32); 16] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ABRT", libc::SIGABRT),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("WINCH", libc::SIGWINCH),
];

fn signal(text: &str) -> Result<i32, String> {
    if let Ok(number) = text.parse::<i32>() {
        return match (1..=64).contains(&number) {
            true => Ok(number),
            false => Err("signals go from 1 to 64".to_owned()),
        };
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, number)| *number)
        .ok_or_else(|| "give a signal's name or number, such as TERM or 15".to_owned())
}

/// Ends or signals the command.
pub async fn kill(args: Args) -> Result<u8, Failure> {
    let machine = rundir::machine(&args.id)?;
    let failed = |err| Failure::of(&args.id, &err);
    if let Some(signal) = args.signal {
        let sent = machine.signal(&args.request_id, signal).await;
        return sent.map(|()| 0).map_err(failed);
    }
    let record = machine.cancel(&args.request_id).await.map_err(failed)?;
    output::print(&match args.json {
        true => output::pretty(&record),
        false => {
            let state = serde_json::to_value(record.state).unwrap_or_default();
            let state = state.as_str().unwrap_or_default().replace('_', " ");
            format!("{}: {state}\n", args.request_id)
        }
    })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn signals_by_name_and_number() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(signal(text), Ok(15));
        }
        for bad in ["", "0", "65", "-1", "NO"] {
            assert!(signal(bad).is_err(), "{bad:?}");
        }
    }
}
