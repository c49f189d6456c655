//! Taking a snapshot of a machine that runs.

use std::path::PathBuf;
use std::time::Duration;

use super::{absolute, rundir};
use crate::cli::failure::Failure;
use crate::cli::jail::Stage;
use crate::cli::output;
use tine::launch::Pidfd;

/// How long the machine's process may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(clap::Args)]
#[group(id = "take")]
pub struct Args {
    /// End the machine when the snapshot is whole
    #[arg(long)]
    stop: bool,
    /// Memory, devices and disks [the default]
    #[arg(long, conflicts_with = "disk")]
    full: bool,
    /// The disks alone: what comes out of it boots
    #[arg(long)]
    disk: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
    /// The directory to make
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Takes the snapshot.
pub async fn take(args: Args) -> Result<u8, Failure> {
    let machine = rundir::machine(&args.id)?;
    let dir = absolute(&args.dir)?;
    let process = match args.stop {
        true => Pidfd::serving(machine.socket()).await,
        false => None,
    };
    let stage = Stage::open(&args.id, &dir)?;
    let written = stage.as_ref().map_or(dir.clone(), Stage::path);
    let taken = match args.disk {
        false => machine.snapshot(&written, args.stop).await,
        true => machine.snapshot_disks(&written, args.stop).await,
    };
    let mut taken = taken.map_err(|err| Failure::of(&args.id, &err))?;
    if let Some(stage) = stage {
        stage.publish()?;
        taken.path = dir;
    }
    // Its id is free, and its disks are, when this returns.
    if process.is_some_and(|process| !process.has_ended(PATIENCE)) {
        return Err(Failure::new(format!(
            "the snapshot is whole, but the process of machine {} does not end: `tine rm -f {0}` ends it",
            args.id
        )));
    }
    let text = match args.json {
        true => output::pretty(&taken),
        false if args.disk => format!("{} disks\n", taken.id),
        false => format!(
            "{} {} MiB, the machine stood still for {:?}\n",
            taken.id,
            taken.memory_bytes.div_ceil(1 << 20),
            Duration::from_micros(taken.pause_us)
        ),
    };
    output::print(&text)?;
    Ok(0)
}
