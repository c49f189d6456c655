//! Machines out of a snapshot that stay, each in a process of its own.

use std::path::{Path, PathBuf};

use serde_json::json;
use tine::client::Machine as Client;
use tine::config::ConsoleConfig;
use tine::image::Image;
use tine_snapshot::Snapshot;

use super::{Args, booting, is_disks_alone};
use crate::cli::copies::{self, Options, Origin};
use crate::cli::failure::Failure;
use crate::cli::foreground::RunError;
use crate::cli::process::Process;
use crate::cli::run::config::keep_console;
use crate::cli::rundir::{self, CONSOLE};
use crate::cli::session::Signals;
use crate::cli::timing::Timing;
use crate::cli::{jail, output, run};

/// Makes one, and prints its id.
pub(super) async fn one(mut args: Args) -> Result<u8, Failure> {
    let mut timing = Timing::start(args.timing);
    let mut snapshot = std::path::absolute(&args.dir)
        .map_err(|err| Failure::new(format!("{}: {err}", args.dir.display())))?;
    if args.console == Some(ConsoleConfig::Stdout) {
        return Err(Failure::usage(
            "a machine that stays has no standard output: leave --console out, and use `tine logs`",
        ));
    }
    let signals = Signals::watch()?;
    let id = args.name.take().unwrap_or_else(rundir::new_id);
    let identity = args.identity(Some(&id))?;
    let mut template = args.template.take();
    let mut files = args.jail.files()?;
    if let Some(files) = &mut files {
        snapshot = show_snapshot(files, &snapshot, &mut args.console)?;
    }
    let working_set = working_set(&args, files.as_mut())?;
    let mut process = Process::prepare(Some(id), files)?;
    let console = match &args.console {
        None => Some(process.dir.join(CONSOLE)),
        Some(ConsoleConfig::File(file)) => Some(file.clone()),
        Some(_) => None,
    };
    let bring_up = async |process: &Process, machine: &_| {
        timing.phase("process");
        if let Some(console) = &console {
            let serial = json!({ "serial_out_path": console });
            process.put(machine, "/serial", &serial).await?;
        }
        if is_disks_alone(&snapshot) {
            if !identity.is_empty() {
                return Err(process.failure(&RunError::NoAgent.to_string()));
            }
            let booting = booting(&snapshot, None, &process.dir);
            let (mut config, _) = booting.map_err(|err| process.failure(&err.to_string()))?;
            if let Some(console) = &console {
                let file = console.as_path();
                keep_console(&mut config, false, file);
            }
            process.boot(machine, &config).await?;
            timing.phase("first guest instruction");
            return ready(process, machine, &args, &mut timing).await;
        }
        let mut request = json!({ "snapshot": snapshot, "working_set": working_set });
        identity.put_into_request(&mut request);
        process.put(machine, "/v1/restore", &request).await?;
        // Its files are open.
        drop(template.take());
        timing.phase("vCPU running");
        ready(process, machine, &args, &mut timing).await
    };
    process.bring_up(signals, bring_up).await?;
    output::print(&run::words(&process, args.json, !args.command.is_empty()))?;
    Ok(0)
}

/// Makes as many as are asked for.
pub(super) async fn many(args: Args) -> Result<u8, Failure> {
    let mut snapshot = std::path::absolute(&args.dir)
        .map_err(|err| Failure::new(format!("{}: {err}", args.dir.display())))?;
    let opened = Snapshot::open(&snapshot);
    let opened = opened.map_err(|err| Failure::new(err.to_string()))?;
    let environment = args.template.iter();
    let environment = environment.flat_map(|opened| opened.record.environment.clone());
    let mut files = args.jail.files()?;
    if let Some(files) = &mut files {
        snapshot = show_snapshot(files, &snapshot, &mut None)?;
    }
    let working_set = working_set(&args, files.as_mut())?;
    let origin = Origin {
        layers: None,
        files,
        request: json!({ "snapshot": snapshot, "working_set": working_set }),
        agent: opened.manifest().machine.config["agent"] == true,
        env: environment.chain(args.place.env).collect(),
    };
    let options = Options {
        count: args.count.unwrap_or(1),
        name: args.name,
        files: args.files,
        no_wait: args.no_wait,
        json: args.json,
        timeout: args.timeout,
    };
    let made = copies::make(&options, origin).await?;
    copies::print(&made, args.json)
}

/// Shows in a jail what a snapshot's machine is made of, and where its console goes. Gives the
/// snapshot's path there.
pub fn show_snapshot(
    files: &mut jail::Files,
    snapshot: &Path,
    console: &mut Option<ConsoleConfig>,
) -> Result<PathBuf, Failure> {
    let plain = files.show(snapshot, false)?;
    // What else is wrong with a snapshot is found out by who opens it.
    if let Ok(opened) = Snapshot::open(snapshot) {
        jail::refuse_network(&opened.manifest().machine.config["interfaces"])?;
    }
    if is_disks_alone(snapshot) {
        let image = Image::built().map_err(|err| Failure::new(err.to_string()))?;
        files.show(&image.kernel, false)?;
        files.show(&image.initramfs, false)?;
    }
    if let Some(ConsoleConfig::File(file)) = console {
        files.show_console(file)?;
    }
    Ok(plain)
}

/// The path of the working set that is given, as another process has it.
fn working_set(args: &Args, files: Option<&mut jail::Files>) -> Result<Option<PathBuf>, Failure> {
    let Some(file) = &args.working_set else {
        return Ok(None);
    };
    let shown = match files {
        Some(files) => files.show(file, false)?,
        None => std::path::absolute(file)
            .map_err(|err| Failure::new(format!("{}: {err}", file.display())))?,
    };
    Ok(Some(shown))
}

/// Waits until the machine is running, and starts its command.
async fn ready(
    process: &Process,
    machine: &Client,
    args: &Args,
    timing: &mut Timing,
) -> Result<(), Failure> {
    if args.no_wait {
        return Ok(());
    }
    let (limit, command) = (args.timeout, &args.command);
    process
        .run_when_running(machine, limit, &args.place, command, timing)
        .await
}
