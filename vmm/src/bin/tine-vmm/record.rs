//! What a machine that has ended leaves in its run directory, for its next start: the body of a
//! `PUT /v1/config`, with the files that its disks are in.

use std::path::Path;

use tine::api::saved_config;
use tine::control::settings::Settings;
use tine::replace::replace;

/// The record's name.
const FILE: &str = "machine.json";

/// Writes the record, in the place of an earlier one.
pub fn write(dir: &Path, settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let name = dir.join(FILE);
    let written = replace(dir, FILE, &saved_config(settings)?);
    written.map_err(|err| format!("{}: {err}", name.display()))?;
    Ok(())
}
