//! What a machine that has ended leaves in its run directory, for its next start: the body of a
//! `PUT /v1/config`, with the files that its disks are in.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use tine::api::saved_config;
use tine::control::settings::Settings;

/// The record's name.
const FILE: &str = "machine.json";

/// Writes the record, in the place of an earlier one.
pub fn write(dir: &Path, settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let failed = |err: std::io::Error| format!("{}: {err}", dir.join(FILE).display());
    let partial = dir.join(".machine.json");
    let mut file = File::create(&partial).map_err(failed)?;
    file.write_all(&saved_config(settings)?).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&partial, dir.join(FILE)).map_err(failed)?;
    Ok(())
}
