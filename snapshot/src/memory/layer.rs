//! One layer of a memory: its file, open, and its index, once somebody needs it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::index::Index;
use crate::checksum::Checksum;
use crate::dir::read_bounded;
use crate::error::ReadError;
use crate::manifest::MemoryLayer;

/// A layer whose files have the right lengths, and of which the trailer was checked.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(super) path: PathBuf,
    pub(super) file: File,
    index: OnceLock<Index>,
    /// Where the index comes from; none if it was there from the start.
    unread: Option<Unread>,
    /// The numbers of the chunks that the index has checksums of, once somebody asks for one.
    stored: OnceLock<Vec<u64>>,
}

/// An index that was not read yet, and what is known of it.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Of the whole memory.
    pub(crate) size: u64,
    pub(crate) wanted: MemoryLayer,
}

impl Layer {
    pub(crate) fn new(path: PathBuf, file: File, unread: Unread) -> Self {
        Self {
            path,
            file,
            index: OnceLock::new(),
            unread: Some(unread),
            stored: OnceLock::new(),
        }
    }

    pub(crate) fn with_index(path: PathBuf, file: File, index: Index) -> Self {
        Self {
            path,
            file,
            index: OnceLock::from(index),
            unread: None,
            stored: OnceLock::new(),
        }
    }

    /// The index. The first call reads and checks it.
    pub(super) fn index(&self) -> Result<&Index, ReadError> {
        match (self.index.get(), &self.unread) {
            (None, Some(unread)) => {
                let index = unread.read()?;
                Ok(self.index.get_or_init(|| index))
            }
            (index, _) => Ok(index.expect("given where there is none to read")),
        }
    }

    /// The place of a chunk's checksum, if the layer stores anything of it.
    pub(super) fn place(&self, chunk: u64) -> Result<Option<usize>, ReadError> {
        let index = self.index()?;
        let stored = self.stored.get_or_init(|| index.stored_chunks().collect());
        Ok(stored.binary_search(&chunk).ok())
    }
}

impl Unread {
    fn read(&self) -> Result<Index, ReadError> {
        let (path, wanted) = (&self.path, &self.wanted);
        let bytes = read_bounded(path, &self.file, wanted.index_length)?;
        let index = Index::decode(path, &bytes)?;
        if index.id != wanted.id {
            return Err(ReadError::OtherLayer {
                path: path.clone(),
                found: index.id,
                wanted: wanted.id,
            });
        }
        let fits = Checksum::of(&bytes) == wanted.index_checksum
            && index.size == self.size
            && index.stored_bytes() == wanted.stored_bytes;
        if fits {
            return Ok(index);
        }
        Err(ReadError::Damaged {
            path: path.clone(),
            part: "content".to_owned(),
            reason: "it is not the index that the manifest describes".to_owned(),
        })
    }
}
