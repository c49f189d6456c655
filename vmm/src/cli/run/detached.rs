//! `tine run -d`: a machine in a process of its own, which stays when this one ends.

use serde_json::json;
use tine::config::ConsoleConfig;

use super::config::{keep_console, local};
use super::{Args, Failure};
use crate::cli::output;
use crate::cli::process::{MAIN, Process};
use crate::cli::rundir::{CONSOLE, SOCKET};
use crate::cli::session::Signals;
use crate::cli::timing::Timing;

/// Starts the machine; the result is the status to exit with.
pub async fn start(args: Args) -> Result<u8, Failure> {
    let mut timing = Timing::start(args.timing);
    let mut config = local(&args).map_err(|err| Failure::new(err.to_string()))?;
    config
        .check()
        .map_err(|err| Failure::new(err.to_string()))?;
    if config.console == ConsoleConfig::Stdout {
        return Err(Failure::usage(
            "a machine that stays has no standard output: leave --console out, and use `tine logs`",
        ));
    }
    let signals = Signals::watch()?;
    let mut files = args.jail.files()?;
    if let Some(files) = &mut files {
        files.show_machine(&mut config)?;
    }
    let mut process = Process::prepare(args.name.clone(), files)?;
    keep_console(
        &mut config,
        args.console.is_some(),
        &process.dir.join(CONSOLE),
    );
    let bring_up = async |process: &Process, machine: &_| {
        timing.phase("process");
        process.boot(machine, &config).await?;
        timing.phase("first guest instruction");
        if args.no_wait {
            return Ok(());
        }
        let (limit, command) = (args.timeout, &args.command);
        process
            .run_when_running(machine, limit, &args.place, command, &mut timing)
            .await
    };
    process.bring_up(signals, bring_up).await?;
    output::print(&words(&process, args.json, !args.command.is_empty()))?;
    Ok(0)
}

/// What is printed of a machine that stays.
pub fn words(process: &Process, json: bool, main: bool) -> String {
    if !json {
        return format!("{}\n", process.id);
    }
    output::pretty(&json!({
        "id": process.id,
        "run_dir": process.dir,
        "socket": process.dir.join(SOCKET),
        "pid": process.pid(),
        "request_id": main.then_some(MAIN),
    }))
}
