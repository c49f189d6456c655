//! The query of a request about a file.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use hyper::Uri;
use tine_guest_agent::fields::FieldError;
use tine_guest_agent::files::check_path;
use tine_guest_agent::octets::Octets;

use crate::agent::fault::Fault;
use crate::agent::routes::percent_decode;

/// What the query says.
#[derive(Debug, Default)]
pub struct Params {
    pub path: PathBuf,
    pub offset: Option<u64>,
    pub length: Option<u64>,
    /// Permission bits, in octal.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub parents: bool,
    pub append: bool,
    pub sync: bool,
    pub follow: bool,
    pub recursive: bool,
}

impl Params {
    /// Reads a query. Unknown names are refused, as a misspelt one would be ignored otherwise.
    pub fn of(uri: &Uri) -> Result<Self, Fault> {
        let mut params = Self {
            follow: true,
            ..Self::default()
        };
        for pair in uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, raw) = pair.split_once('=').unwrap_or((pair, "1"));
            let decoded = percent_decode(raw);
            let text = String::from_utf8_lossy(&decoded);
            match name {
                "path" => params.path = PathBuf::from(OsString::from_vec(decoded)),
                "offset" => params.offset = Some(number(name, &text, 10)?),
                "length" => params.length = Some(number(name, &text, 10)?),
                "mode" => {
                    let mode = number(name, &text, 8)?;
                    if mode > 0o7777 {
                        return Err(FieldError::new(name, "is above 7777").into());
                    }
                    params.mode = Some(mode as u32);
                }
                "uid" => params.uid = Some(id(name, &text)?),
                "gid" => params.gid = Some(id(name, &text)?),
                "parents" => params.parents = flag(name, &text)?,
                "append" => params.append = flag(name, &text)?,
                "sync" => params.sync = flag(name, &text)?,
                "follow" => params.follow = flag(name, &text)?,
                "recursive" => params.recursive = flag(name, &text)?,
                _ => return Err(FieldError::new(name, "is not known").into()),
            }
        }
        check_path("path", &octets(&params.path))?;
        Ok(params)
    }
}

/// A path as the protocol carries it.
pub fn octets(path: &Path) -> Octets {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().into()
}

/// A path from the protocol.
pub fn path(octets: &Octets) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(&octets.0))
}

fn number(name: &str, text: &str, radix: u32) -> Result<u64, Fault> {
    u64::from_str_radix(text, radix)
        .map_err(|_| FieldError::new(name, format_args!("`{text}` is not a number")).into())
}

fn id(name: &str, text: &str) -> Result<u32, Fault> {
    let number = number(name, text, 10)?;
    // The last one means "leave it" to the system.
    match u32::try_from(number) {
        Ok(id) if id != u32::MAX => Ok(id),
        _ => Err(FieldError::new(name, "is too large").into()),
    }
}

fn flag(name: &str, text: &str) -> Result<bool, Fault> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(FieldError::new(name, "must be true or false").into()),
    }
}
