//! `tine inspect`: all that is known of one machine.

use serde_json::{Value, json};
use tine::client::Machine;

use super::failure::Failure;
use super::machines::Known;
use super::rundir::{CONSOLE, SOCKET};
use super::{output, rundir};

/// Show what is known of a machine
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tine inspect web
  tine inspect --json web | jq .execs")]
pub struct Args {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Shows the machine.
pub async fn inspect(args: Args) -> Result<u8, Failure> {
    let dir = rundir::find(&args.id)?;
    let machine = Machine::at(dir.join(SOCKET));
    let known = Known::look(args.id, dir).await;
    let value = describe(&machine, &known).await;
    output::print(&match args.json {
        true => output::pretty(&value),
        false => {
            let mut rows = Vec::new();
            flatten("", &value, &mut rows);
            output::table(&rows)
        }
    })?;
    Ok(0)
}

async fn describe(machine: &Machine, known: &Known) -> Value {
    let mut value = match &known.status {
        Some(status) => json!(status),
        None => json!({}),
    };
    let own = json!(known);
    for (name, field) in own.as_object().into_iter().flatten() {
        value[name] = field.clone();
    }
    value["socket"] = json!(machine.socket());
    value["console_log"] = json!(known.run_dir.join(CONSOLE));
    // Only an agent knows of commands.
    if known
        .status
        .as_ref()
        .is_some_and(|status| status.is_running())
    {
        if let Ok(records) = machine.records().await {
            let records = records.iter().map(|record| {
                json!({
                    "request_id": record.request_id,
                    "state": record.state,
                    "exit_code": record.exit_code,
                    "signal": record.signal,
                    "started_at": record.started_at,
                    "ended_at": record.ended_at,
                })
            });
            value["execs"] = records.collect();
        }
        if let Ok(health) = machine.health().await {
            value["health"] = json!(health);
        }
    }
    value
}

/// A line for each value, named by the way to it.
fn flatten(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    let below = |key: &str| match name {
        "" => key.to_owned(),
        name => format!("{name}.{key}"),
    };
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                flatten(&below(key), field, rows);
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                flatten(&below(&number.to_string()), item, rows);
            }
        }
        Value::Null => {}
        Value::String(text) => rows.push(vec![name.to_owned(), output::printable(text)]),
        value => rows.push(vec![name.to_owned(), value.to_string()]),
    }
}
