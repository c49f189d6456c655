//! Files of the guest: what `/v1/files` takes and answers.
//!
//! Paths are absolute and are bytes; in a query they are percent-encoded.
//!
//! | request | does |
//! |---|---|
//! | `GET content?path=&offset=&length=` | the bytes of a file (also by a `Range` header) |
//! | `PUT content?path=&mode=&uid=&gid=&parents=&append=&offset=&sync=` | writes a file: whole by a temporary name and rename, or appended, or in place from an offset |
//! | `GET stat?path=&follow=` | a [`FileInfo`] |
//! | `GET list?path=` | an array of [`FileInfo`] |
//! | `POST mkdir`, `rename`, `remove`, `symlink`, `chmod` | bodies [`Mkdir`], [`Rename`], [`Remove`], [`Symlink`], [`Chmod`] |
//! | `GET tar?path=` | a directory or file as a tar stream |
//! | `PUT tar?path=` | unpacks a tar stream into a directory |
//! | `GET watch?path=&recursive=` | changes as they happen: one [`WatchEvent`] a line, and empty lines as signs of life |

use serde::{Deserialize, Serialize};

use crate::fields::{FieldError, Fields};
use crate::octets::Octets;

/// What a name in a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Special,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its last name in a list, the path asked for otherwise.
    pub name: Octets,
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content, milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a symbolic link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Octets>,
}

/// What has happened to a watched path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A name has appeared (also by a rename).
    Created,
    /// The content has been changed and the file closed.
    Modified,
    /// Mode, owner or times have changed.
    Attributes,
    /// A name has gone (also by a rename).
    Removed,
    /// More has happened than could be kept: what is known must be read anew.
    Overflow,
}

/// One line of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// What has happened.
    pub change: Change,
    /// To which path; empty for an overflow.
    pub path: Octets,
}

/// The answer to `PUT tar`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Entries of the archive.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $how:ident $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl $name {
            /// Reads a request body.
            pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
                let mut fields = Fields::parse(body)?;
                let request = Self { $($field: bodies!($how fields $field),)* };
                fields.finish()?;
                Ok(request)
            }
        }
    )*};
    (path $fields:ident $field:ident) => {{
        let path: Octets = $fields.required(stringify!($field))?;
        check_path(stringify!($field), &path)?;
        path
    }};
    (required $fields:ident $field:ident) => { $fields.required(stringify!($field))? };
    (optional $fields:ident $field:ident) => { $fields.optional(stringify!($field))? };
    (default $fields:ident $field:ident) => {
        $fields.optional(stringify!($field))?.unwrap_or_default()
    };
}

bodies! {
    /// Makes a directory.
    Mkdir {
        /// The new directory.
        path path: Octets,
        /// Permission bits; 0755 when not given.
        optional mode: Option<u32>,
        /// Makes missing parents too, and is content if it exists.
        default parents: bool,
    }
    /// Gives a file another name.
    Rename {
        /// The old path.
        path from: Octets,
        /// The new path; a file there is replaced.
        path to: Octets,
    }
    /// Removes a file or directory. A symbolic link itself is removed.
    Remove {
        /// What to remove.
        path path: Octets,
        /// Also a directory that is not empty.
        default recursive: bool,
    }
    /// Makes a symbolic link.
    Symlink {
        /// The new link.
        path path: Octets,
        /// What it points to, taken as it stands.
        required target: Octets,
    }
    /// Changes mode and owner.
    Chmod {
        /// The file.
        path path: Octets,
        /// Permission bits.
        optional mode: Option<u32>,
        /// Owner.
        optional uid: Option<u32>,
        /// Group.
        optional gid: Option<u32>,
    }
}

/// Whether `path` is absolute and can be a path at all.
pub fn check_path(field: &str, path: &Octets) -> Result<(), FieldError> {
    if path.0.first() != Some(&b'/') || path.0.contains(&0) {
        return Err(FieldError::new(field, "must be an absolute path"));
    }
    Ok(())
}
