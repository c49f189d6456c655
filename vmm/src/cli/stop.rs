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
use super::jail::{self, Files, Note};
use super::process::Process;
use super::rundir::{self, SOCKET};
use super::session::Signals;
use super::{output, parse};
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
    let signals = Signals::watch()?;
    let jail = args.jail.files()?;
    let (config, files) = admit(&args.id, &dir, jail.as_ref())?;
    let dir = match &files {
        // As the record is going to be read again: by plain paths.
        Some(_) => dir.canonicalize().map_err(|err| cannot(&args.id, &err))?,
        None => dir,
    };
    let mut process = Process::again(&args.id, dir, jail.and(files));
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

/// What the machine's process has left.
fn read(id: &str, dir: &Path) -> Result<Value, Failure> {
    let path = dir.join(record::FILE);
    let failed = |err: &dyn std::fmt::Display| cannot(id, &format!("{}: {err}", path.display()));
    let bytes = files::read(&path, record::MAX_LEN).map_err(|err| failed(&err))?;
    match serde_json::from_slice(&bytes).map_err(|err| failed(&err))? {
        config @ Value::Object(_) => Ok(config),
        _ => Err(failed(&"it is not an object")),
    }
}

/// The machine's record, and what is shown to it of what that names. One that was in a jail may have been
/// taken over by its guest and have named what it likes: it gets what it had, with a jail or, this
/// time, without. No files where no jail was ever involved.
fn admit(id: &str, dir: &Path, jail: Option<&Files>) -> Result<(Value, Option<Files>), Failure> {
    let note = Note::of(dir)?;
    if note.is_some() {
        // Its last process may be on its way out. Nothing changes any more after that.
        jail::discard(dir)?;
    }
    let mut config = read(id, dir)?;
    let mut files = jail.cloned().unwrap_or_default();
    // One that was restored knows no kernel: it boots the built image, whatever it says of that.
    let image = match config["kernel"].is_null() {
        true => Some(Image::built().map_err(|err| cannot(id, &err))?),
        false => None,
    };
    if image.is_some() {
        config["initrd"] = Value::Null;
    }
    match (&note, jail) {
        (Some(note), _) => {
            // As it is called in a jail.
            let own = dir.canonicalize().map_err(|err| cannot(id, &err))?;
            let admitted = note.admit(&mut files, &config, &own);
            admitted.map_err(|failure| cannot(id, &failure.words))?;
        }
        (None, Some(_)) => files.show_written(&mut config)?,
        (None, None) => {}
    }
    if let Some(image) = image {
        config["kernel"] = json!(files.show(&image.kernel, false)?);
        config["initrd"] = json!(files.show(&image.initramfs, false)?);
    }
    match note.is_some() || jail.is_some() {
        true => files.note(dir).map(|()| (config, Some(files))),
        false => Ok((config, None)),
    }
}

fn cannot(id: &str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("machine {id} cannot be started again: {why}"))
}
