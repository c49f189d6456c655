//! What our binary files have in common: a header that begins with what the file is and its version,
//! little-endian numbers, and the words for what is wrong with them.

use std::path::Path;

use crate::error::ReadError;

/// What a kind of file begins with.
pub(crate) struct Kind {
    /// The first bytes.
    pub(crate) magic: [u8; 8],
    /// The newest version, which stands behind them.
    pub(crate) version: u32,
    /// Bytes of the header.
    pub(crate) length: usize,
    /// In messages.
    pub(crate) name: &'static str,
}

impl Kind {
    /// Takes the header off the bytes of a file, when it is one of this kind and of no newer version;
    /// the version is the caller's to look at. What else is in the header may be anything.
    pub(crate) fn split<'a>(
        &self,
        path: &Path,
        bytes: &'a [u8],
    ) -> Result<(&'a [u8], &'a [u8]), ReadError> {
        let wrong = |reason: &str| damaged(path, "header", reason);
        let Some((head, body)) = bytes.split_at_checked(self.length) else {
            return Err(wrong("the file ends within it"));
        };
        if head[..8] != self.magic {
            return Err(wrong(&format!("this is not {}", self.name)));
        }
        let version = u32_at(head, 8);
        if version > self.version {
            return Err(ReadError::Newer {
                path: path.to_owned(),
                found: version.into(),
                known: self.version,
            });
        }
        Ok((head, body))
    }
}

/// Says what is wrong with a part of a file.
pub(crate) fn damaged(
    path: &Path,
    part: impl Into<String>,
    reason: impl Into<String>,
) -> ReadError {
    ReadError::Damaged {
        path: path.to_owned(),
        part: part.into(),
        reason: reason.into(),
    }
}

/// The number at a place, which is there.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

/// The number at a place, which is there.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// The number at a place, which is there.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
