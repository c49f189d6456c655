//! What a machine that has ended leaves in its run directory, for its next start: the body of a
//! `PUT /v1/config`, with the files that its disks are in.

use std::io;
use std::path::Path;

use super::settings::Settings;
use crate::api::saved_config;
use crate::replace::replace;

/// The record's name.
pub const FILE: &str = "machine.json";
/// Longer than one is, in bytes: a machine of as many drives and layers as there can be.
pub const MAX_LEN: u64 = 16 << 20;

/// Writes the record into `dir`, in the place of an earlier one.
///
/// # Errors
///
/// Those of the operating system, with the file's name.
pub fn write(dir: &Path, settings: &Settings) -> io::Result<()> {
    let config = saved_config(settings)?;
    replace(dir, FILE, &config).map_err(|err| {
        let name = dir.join(FILE);
        io::Error::new(err.kind(), format!("{}: {err}", name.display()))
    })
}

/// Writes the record if the machine had an earlier life, so that a killed process leaves none which
/// names files that are gone, or that are part of a snapshot by now.
pub(super) fn rewrite(dir: &Path, settings: &Settings) -> io::Result<()> {
    match dir.join(FILE).exists() {
        true => write(dir, settings),
        false => Ok(()),
    }
}
