//! A tar stream of a hostile guest into a place here. Nothing is made or changed outside the
//! place, whatever the archive says: no link is followed, no path goes up, and what announces
//! itself as large is bounded before it is kept.

mod blocks;
mod entry;
mod place;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tar::EntryType;

use self::blocks::Blocks;
use self::entry::{Entry, Meta};
use self::place::{Attributes, Place};
use crate::cli::failure::Failure;

/// Where an archive goes.
#[derive(Debug)]
pub enum Into {
    /// Its one file gets this path.
    File(PathBuf),
    /// What it has goes into this directory, which is made if it is not there.
    Directory(PathBuf),
}

/// An archive on its way here.
pub struct Unpack {
    place: Place,
    /// The name of the one file.
    single: Option<PathBuf>,
    /// The top directory was made for this, and gets its attributes.
    made: bool,
    /// Directories that are being filled, outermost first, with what they are to be in the end.
    open: Vec<(PathBuf, Attributes)>,
    left_out: u64,
}

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive cannot be read.
    #[error("the archive is broken: {0}")]
    Archive(#[source] io::Error),
    /// It has what it must not have.
    #[error("the machine sent {0}")]
    Refused(String),
    /// A file cannot be made.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Unpack {
    /// Opens the place. With `archive` owners and all mode bits are kept.
    pub fn new(into: Into, archive: bool) -> Result<Self, Failure> {
        let failed = |path: &Path, err: io::Error| {
            Failure::new(format!("cannot copy to {}: {err}", path.display()))
        };
        let (directory, single, made) = match into {
            Into::File(path) => {
                let name = path.file_name().map(PathBuf::from);
                let Some(name) = name else {
                    let path = path.display();
                    return Err(Failure::new(format!(
                        "cannot copy to {path}: it has no name"
                    )));
                };
                let parent = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent,
                    _ => Path::new("."),
                };
                (parent.to_owned(), Some(name), false)
            }
            Into::Directory(path) => {
                let made = match std::fs::create_dir(&path) {
                    Ok(()) => true,
                    Err(err) if err.kind() == io::ErrorKind::AlreadyExists => false,
                    Err(err) => return Err(failed(&path, err)),
                };
                (path, None, made)
            }
        };
        let place = Place::open(&directory, archive).map_err(|err| failed(&directory, err))?;
        Ok(Self {
            place,
            single,
            made,
            open: Vec::new(),
            left_out: 0,
        })
    }

    /// Unpacks to the archive's end. Returns how many special files were left out.
    pub fn run(mut self, reader: impl Read) -> Result<u64, UnpackError> {
        let mut blocks = Blocks::new(reader);
        let mut meta = Meta::default();
        while let Some(header) = blocks.next_head().map_err(UnpackError::Archive)? {
            if !meta.take(&header, &mut blocks)? {
                let entry = meta.entry(&header, &mut blocks)?;
                self.add(&entry, &mut blocks)?;
            }
        }
        self.close(None)?;
        match &self.single {
            Some(name) if !self.made => Err(UnpackError::Refused(format!(
                "an archive without the file {}",
                name.display()
            ))),
            _ => Ok(self.left_out),
        }
    }

    fn add(&mut self, head: &Entry, content: &mut impl Read) -> Result<(), UnpackError> {
        if let Some(name) = self.single.clone() {
            if self.made || head.kind != EntryType::Regular {
                let what = "something else than the one file that was asked for";
                return Err(UnpackError::Refused(what.to_owned()));
            }
            self.made = true;
            return self.place.file(&name, head, content);
        }
        let path = head.relative()?;
        self.close(Some(&path))?;
        match head.kind {
            EntryType::Directory if path.as_os_str().is_empty() => {
                if self.made {
                    self.open.push((path, head.attributes));
                }
            }
            EntryType::Directory => {
                self.place.directory(&path)?;
                self.open.push((path, head.attributes));
            }
            // The top directory is no file.
            _ if path.as_os_str().is_empty() => {
                return Err(UnpackError::Refused("a file without a name".to_owned()));
            }
            EntryType::Regular | EntryType::Continuous => self.place.file(&path, head, content)?,
            EntryType::Symlink => self.place.symlink(&path, head)?,
            EntryType::Link => {
                return Err(UnpackError::Refused(format!(
                    "a second name for a file, {}, which Tine's agent never does",
                    path.display()
                )));
            }
            _ => self.left_out += 1,
        }
        Ok(())
    }

    /// Gives directories that `next` is not in what they are to be: only now, as filling them
    /// changes their times, and needs the right to write.
    fn close(&mut self, next: Option<&Path>) -> Result<(), UnpackError> {
        while let Some((path, attributes)) = self.open.last() {
            if next.is_some_and(|next| next.starts_with(path) && next != path) {
                return Ok(());
            }
            self.place.finish_directory(path, *attributes)?;
            self.open.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
