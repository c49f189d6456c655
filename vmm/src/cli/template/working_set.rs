//! What machines of a version touch first, recorded once, before it is published: a machine of it is
//! started whose shell does nothing. From a disk, those that come later start the quicker for it.

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use tine_snapshot::WorkingSet;
use tokio::process::Command;

use crate::cli::failure::Failure;
use crate::cli::session::Signals;

/// How long it may take, in the words of an option.
const LIMIT: &str = "60s";

/// Records it into the snapshot in the directory `snapshot`. Where that fails, a guest without a shell say,
/// it is told on standard error: the template is as good, and starts as it would.
///
/// # Errors
///
/// When this process is asked to end.
pub async fn record(snapshot: &Path, name: &str) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    let recorded = tokio::select! {
        recorded = started(snapshot) => recorded,
        number = signals.ending() => return Err(Failure::signal(number)),
    };
    if let Err(why) = recorded {
        eprintln!("tine: template {name}: nothing of it is going to be read ahead: {why}");
    }
    Ok(())
}

async fn started(snapshot: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|err| err.to_string())?;
    let mut command = Command::new(program);
    command.args(["restore", "--timeout", LIMIT, "--record-working-set"]);
    command.arg(snapshot.join(WorkingSet::OWN)).arg(snapshot);
    command.args(["--", "sh", "-c", ":"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // Dropped before its end, it is ended.
    let output = command.kill_on_drop(true).output().await;
    let output = output.map_err(|err| err.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(reason(output.status, &output.stderr)),
    }
}

/// The last that it said, or else how it ended.
fn reason(status: ExitStatus, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    match said.trim().lines().last() {
        Some(line) => line.trim_start_matches("tine: ").to_owned(),
        None => format!("its first machine ended with {status}"),
    }
}
