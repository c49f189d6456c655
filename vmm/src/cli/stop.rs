//! `tine stop` and `tine start`: a machine whose disks are there next week.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tine::client::Machine;
use tine::control::record;
use tine::image::Image;
use tine_guest_agent::status::ShutdownRequest;
use tine_jailer::files;

use super::failure::Failure;
use super::process::Process;
use super::rundir::{self, SOCKET};
use super::session::Signals;
use super::{jail, output, parse};
use tine::launch::Pidfd;

/// How long a guest may take to end its processes and write its disks, when nothing is said.
const PATIENCE: Duration = Duration::from_secs(60);

/// End a machine in good order, and keep its disks for `tine start`
#[derive(clap::Args)]
#[command(after_help = "\
The guest ends its processes and writes its disks; what is in memory is lost. The machine keeps its
id and its directory until `tine rm`. Memory that is to be there later is what `tine snapshot
--stop` is for.

Example:
  tine stop web")]
pub struct Stop {
    /// How long the guest may take
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Boot a machine that has ended, with the disks that it had
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  tine start web")]
pub struct Start {
    /// The time until it is running
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    /// Do not wait for the guest's agent
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    jail: jail::Choice,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Stops the machine, and returns when its process has ended.
pub async fn stop(args: Stop) -> Result<u8, Failure> {
    let socket = rundir::find(&args.id)?.join(SOCKET);
    let Some(process) = Pidfd::serving(&socket).await else {
        // What has ended is stopped.
        return Ok(0);
    };
    let asked = Machine::at(&socket)
        .shut_down(&ShutdownRequest::default())
        .await;
    asked.map_err(|err| Failure::of(&args.id, &err))?;
    match process.has_ended(args.timeout.unwrap_or(PATIENCE)) {
        true => Ok(0),
        false => Err(Failure::new(format!(
            "machine {}: its guest does not switch itself off: `tine rm -f {0}` ends it",
            args.id
        ))),
    }
}

/// Starts the machine; the result is the status to exit with.
pub async fn start(args: Start) -> Result<u8, Failure> {
    let dir = rundir::find(&args.id)?;
    if rundir::is_served(&dir) {
        return Err(Failure::new(format!("machine {} runs already", args.id)));
    }
    let mut config = read(&args.id, &dir)?;
    let signals = Signals::watch()?;
    let mut files = args.jail.files()?;
    if let Some(files) = &mut files {
        files.show_written(&mut config)?;
    }
    let mut process = Process::again(&args.id, dir, files);
    let bring_up = async |process: &Process, machine: &Machine| {
        process.put(machine, "/v1/config", &config).await?;
        let action = json!({ "action_type": "InstanceStart" });
        process.put(machine, "/actions", &action).await?;
        match args.no_wait {
            true => Ok(()),
            false => process.wait_until_running(machine, args.timeout).await,
        }
    };
    process.bring_up(signals, bring_up).await?;
    output::print(&format!("{}\n", args.id))?;
    Ok(0)
}

/// What the machine's process has left. One that was restored knows no kernel: it boots the built
/// image.
fn read(id: &str, dir: &Path) -> Result<Value, Failure> {
    let path = dir.join(record::FILE);
    let failed = |err: &dyn std::fmt::Display| {
        Failure::new(format!(
            "machine {id} cannot be started again: {}: {err}",
            path.display()
        ))
    };
    let bytes = files::read(&path, record::MAX_LEN).map_err(|err| failed(&err))?;
    let mut config: Value = serde_json::from_slice(&bytes).map_err(|err| failed(&err))?;
    if config["kernel"].is_null() {
        let image = Image::built().map_err(|err| failed(&err))?;
        config["kernel"] = json!(image.kernel);
        config["initrd"] = json!(image.initramfs);
    }
    Ok(config)
}
