//! `tine events`: what happens to a machine.

use tine::client::Event;

use super::failure::Failure;
use super::ps::seconds;
use super::session::Signals;
use super::{output, rundir};

/// Follow what happens to a machine
#[derive(clap::Args)]
#[command(after_help = "\
The first line is the state that the machine is in. Ends with the machine.

Examples:
  tine events web
  tine events --json web | jq 'select(.event == \"exec\")'")]
pub struct Args {
    /// Print a JSON object a line
    #[arg(long)]
    json: bool,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Follows the events until the machine ends.
pub async fn events(args: Args) -> Result<u8, Failure> {
    let machine = rundir::machine(&args.id)?;
    let mut signals = Signals::watch()?;
    let failed = |err| Failure::of(&args.id, &err);
    let follow = async {
        let mut events = machine.events().await.map_err(failed)?;
        while let Some(event) = events.next().await.map_err(failed)? {
            output::print(&match args.json {
                // Plain data always serialises.
                true => serde_json::to_string(&event).unwrap_or_default() + "\n",
                false => line(&event),
            })?;
        }
        Ok(0)
    };
    tokio::select! {
        done = follow => done,
        number = signals.ending() => Err(Failure::signal(number)),
    }
}

fn line(event: &Event) -> String {
    let at = event.at.as_deref().map(seconds).unwrap_or_default();
    let state = event.text("state").unwrap_or_default();
    let mut words = vec![at, event.event.clone(), state.to_owned()];
    for (name, value) in &event.more {
        match value {
            serde_json::Value::Null => {}
            _ if name == "state" => {}
            serde_json::Value::String(text) => words.push(format!("{name}={text}")),
            value => words.push(format!("{name}={value}")),
        }
    }
    output::printable(words.join(" ").trim()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let text = r#"{"event":"exec","at":"2026-01-02T03:04:05.678Z","request_id":"a\u001b",
            "state":"exited","exit_code":0,"signal":null}"#;
        let event = serde_json::from_str(text).unwrap();
        assert_eq!(
            line(&event),
            "2026-01-02T03:04:05Z exec exited exit_code=0 request_id=a\u{fffd}\n"
        );
    }
}
