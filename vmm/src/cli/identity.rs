//! What of a restored guest becomes another one, as the options and the template say it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use tine_guest_agent::octets::Octets;
use tine_guest_agent::refresh::NewFile;

use super::failure::Failure;
use super::parse::Copied;

/// Reads the files that are to be written into guests.
pub fn read(files: &[Copied]) -> Result<Vec<NewFile>, Failure> {
    files.iter().map(read_one).collect()
}

fn read_one(file: &Copied) -> Result<NewFile, Failure> {
    let failed = |err| Failure::new(format!("cannot read {}: {err}", file.from.display()));
    let content = fs::read(&file.from).map_err(failed)?;
    let mode = fs::metadata(&file.from).map_err(failed)?.permissions();
    Ok(NewFile {
        path: file.to.as_str().into(),
        mode: Some(mode.mode() & 0o777),
        content: content.into(),
    })
}

/// Variables as a guest is told them; none leave those that it has.
pub fn variables(
    all: impl IntoIterator<Item = (String, String)>,
) -> Option<BTreeMap<String, Octets>> {
    let all = all.into_iter();
    let all: BTreeMap<_, _> = all.map(|(name, value)| (name, value.into())).collect();
    (!all.is_empty()).then_some(all)
}
