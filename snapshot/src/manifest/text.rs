//! The manifest as text: JSON whose last member is a checksum over everything before it.

use std::path::Path;

use serde::Deserialize;

use super::{FORMAT, Form, Manifest, VERSION};
use crate::checksum::Checksum;
use crate::error::ReadError;

/// What stands around the checksum at the end of the file. Fixed to the byte, so that no byte of
/// the file can change unseen.
const BEFORE: &str = ",\n  \"checksum\": \"";
const AFTER: &str = "\"\n}\n";
const DIGITS: usize = 16;

/// The two members that are read before any other: they say whether the rest can be understood.
#[derive(Deserialize)]
struct Probe {
    format: String,
    version: u64,
}

impl Manifest {
    /// The file's bytes.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let json = serde_json::to_string_pretty(self).expect("maps with names, and no others");
        let body = json.strip_suffix("\n}").expect("an object with members");
        let sum = Checksum::of(body.as_bytes());
        format!("{body}{BEFORE}{sum}{AFTER}").into_bytes()
    }

    /// Reads a manifest and checks all that it says for itself.
    ///
    /// # Errors
    ///
    /// [`ReadError::Newer`] or [`ReadError::Damaged`], naming `path`.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ReadError> {
        Self::parse_as(Form::Directory, path, bytes)
    }

    pub(crate) fn parse_as(form: Form, path: &Path, bytes: &[u8]) -> Result<Self, ReadError> {
        let damaged = |part: &str, reason: String| ReadError::Damaged {
            path: path.to_owned(),
            part: part.to_owned(),
            reason,
        };
        let whole = whole(bytes);
        let body = match &whole {
            // Nothing but the version is known of a later format, not even how its checksum stands.
            Err(_) => bytes.to_vec(),
            Ok(body) => [body, b"\n}".as_slice()].concat(),
        };
        if let Ok(probe) = serde_json::from_slice::<Probe>(&body)
            && probe.format == FORMAT
            && probe.version > u64::from(VERSION)
        {
            return Err(ReadError::Newer {
                path: path.to_owned(),
                found: probe.version,
                known: VERSION,
            });
        }
        whole.map_err(|reason| damaged("checksum", reason))?;
        let manifest: Self =
            serde_json::from_slice(&body).map_err(|err| damaged("content", err.to_string()))?;
        manifest
            .check(form)
            .map_err(|wrong| damaged(&wrong.field, wrong.reason))?;
        Ok(manifest)
    }
}

/// What the checksum is over, if it is there and fits.
fn whole(bytes: &[u8]) -> Result<&[u8], String> {
    let missing = || {
        "the file does not end in its checksum: it was cut off or edited; a manifest cannot be \
         changed by hand"
            .to_owned()
    };
    let tail = BEFORE.len() + DIGITS + AFTER.len();
    let at = bytes.len().checked_sub(tail).ok_or_else(missing)?;
    let (body, tail) = bytes.split_at(at);
    let stored = std::str::from_utf8(tail)
        .ok()
        .and_then(|tail| tail.strip_prefix(BEFORE)?.strip_suffix(AFTER))
        .and_then(Checksum::parse)
        .ok_or_else(missing)?;
    let found = Checksum::of(body);
    if found == stored {
        return Ok(body);
    }
    Err(format!(
        "{found} over the file's bytes, where {stored} is written: they are damaged or were edited"
    ))
}
