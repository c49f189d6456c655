//! `tine pause` and `tine resume`: a machine's vCPUs stand still, and go on.

use serde_json::json;

use super::failure::Failure;
use super::rundir;

/// Take a machine's vCPUs out of guest code until `tine resume`
#[derive(clap::Args)]
#[command(after_help = "\
The guest keeps its memory and disks and uses no processor time. Its own clock goes on.

Example:
  tine pause web")]
pub struct Pause {
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Let a paused machine go on
#[derive(clap::Args)]
pub struct Resume {
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Pauses the machine.
pub async fn pause(args: Pause) -> Result<u8, Failure> {
    change(&args.id, "Paused").await
}

/// Resumes the machine.
pub async fn resume(args: Resume) -> Result<u8, Failure> {
    change(&args.id, "Resumed").await
}

async fn change(id: &str, state: &str) -> Result<u8, Failure> {
    let machine = rundir::machine(id)?;
    let changed = machine.patch("/vm", &json!({ "state": state })).await;
    changed.map(|()| 0).map_err(|err| Failure::of(id, &err))
}
