//! An archive's entries as they are meant, with what stands before them about them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use tar::{EntryType, Header, PaxExtensions};

use super::UnpackError;
use super::blocks::Blocks;
use super::place::Attributes;

/// Most bytes of what describes an entry.
const MAX_META: u64 = 1 << 20;
/// Longest path.
const MAX_PATH: usize = 4096;

/// One entry.
#[derive(Debug)]
pub struct Entry {
    /// Its path as it stands.
    pub path: Vec<u8>,
    /// Where a link points.
    pub link: Vec<u8>,
    /// What it is.
    pub kind: EntryType,
    /// Bytes of content.
    pub size: u64,
    /// Mode, owner, times.
    pub attributes: Attributes,
}

impl Entry {
    /// The path below the place.
    pub fn relative(&self) -> Result<PathBuf, UnpackError> {
        let refuse = |what: &str| {
            let path: String = String::from_utf8_lossy(&self.path)
                .chars()
                .take(200)
                .collect();
            Err(UnpackError::Refused(format!("a path {what}: {path:?}")))
        };
        if self.path.len() > MAX_PATH {
            return refuse("that is too long");
        }
        if self.path.contains(&0) {
            return refuse("with a NUL byte");
        }
        let mut clean = PathBuf::new();
        for part in Path::new(OsStr::from_bytes(&self.path)).components() {
            match part {
                Component::Normal(part) => clean.push(part),
                Component::CurDir => {}
                _ => return refuse("that leads out of the directory"),
            }
        }
        Ok(clean)
    }
}

/// What stands before an entry about it.
#[derive(Debug, Default)]
pub struct Meta(HashMap<String, Vec<u8>>);

impl Meta {
    /// Takes an entry that is about the next one; `false` when it is one itself.
    pub fn take<R: Read>(
        &mut self,
        header: &Header,
        blocks: &mut Blocks<R>,
    ) -> Result<bool, UnpackError> {
        let name = match header.entry_type() {
            EntryType::XHeader => "",
            EntryType::GNULongName => "path",
            EntryType::GNULongLink => "linkpath",
            // It holds comments; its content is skipped.
            EntryType::XGlobalHeader => return Ok(true),
            EntryType::GNUSparse => {
                return Err(UnpackError::Refused("a sparse file's map".to_owned()));
            }
            _ => return Ok(false),
        };
        let mut bytes = Vec::new();
        let read = blocks.take(MAX_META + 1).read_to_end(&mut bytes);
        read.map_err(UnpackError::Archive)?;
        if bytes.len() as u64 > MAX_META {
            let what = "a description of a file that is too long";
            return Err(UnpackError::Refused(what.to_owned()));
        }
        if !name.is_empty() {
            let end = bytes.iter().position(|byte| *byte == 0);
            bytes.truncate(end.unwrap_or(bytes.len()));
            self.0.insert(name.to_owned(), bytes);
            return Ok(true);
        }
        for record in PaxExtensions::new(&bytes) {
            let record = record.map_err(UnpackError::Archive)?;
            if let Ok(key @ ("path" | "linkpath" | "size" | "uid" | "gid" | "mtime")) = record.key()
            {
                self.0.insert(key.to_owned(), record.value_bytes().to_vec());
            }
        }
        Ok(true)
    }

    /// The entry of a head, with what stood before it.
    pub fn entry<R: Read>(
        &mut self,
        header: &Header,
        blocks: &mut Blocks<R>,
    ) -> Result<Entry, UnpackError> {
        let mut told = std::mem::take(&mut self.0);
        let kind = match header.entry_type() {
            // Old archives have it so.
            EntryType::Regular if header.path_bytes().ends_with(b"/") => EntryType::Directory,
            kind => kind,
        };
        let number = |told: Option<Vec<u8>>, value: std::io::Result<u64>| match told {
            None => value.map_err(UnpackError::Archive),
            Some(text) => {
                let whole = text.split(|byte| *byte == b'.').next().unwrap_or_default();
                let number = std::str::from_utf8(whole).ok().and_then(|t| t.parse().ok());
                // A time before 1970 is as good as then.
                Ok(number.unwrap_or_default())
            }
        };
        if let Some(size) = told.remove("size") {
            blocks.announce(number(Some(size), Ok(0))?);
        }
        let mode = header.mode().map_err(UnpackError::Archive)?;
        Ok(Entry {
            kind,
            size: blocks.left(),
            attributes: Attributes {
                mode: mode & 0o7777,
                uid: number(told.remove("uid"), header.uid())? as u32,
                gid: number(told.remove("gid"), header.gid())? as u32,
                modified: number(told.remove("mtime"), header.mtime())?,
            },
            path: match told.remove("path") {
                Some(path) => path,
                None => header.path_bytes().into_owned(),
            },
            link: match told.remove("linkpath") {
                Some(link) => link,
                None => header.link_name_bytes().unwrap_or_default().into_owned(),
            },
        })
    }
}
