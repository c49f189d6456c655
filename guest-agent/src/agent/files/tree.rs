//! Names: look, list, make, rename, remove.

use std::fs::{Metadata, ReadDir};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tine_guest_agent::files::{Chmod, FileInfo, FileKind, Mkdir, Remove, Rename, Symlink};
use tine_guest_agent::octets::Octets;

use super::params::{octets, path};
use super::{PIECE, Source};
use crate::agent::fault::Fault;

/// An error about a path.
pub fn failed(error: &io::Error, path: &Path) -> Fault {
    Fault::io(error, &path.to_string_lossy())
}

/// What is at a path; a symbolic link is followed if asked.
pub fn stat(path: &Path, follow: bool) -> Result<FileInfo, Fault> {
    let metadata = if follow {
        path.metadata()
    } else {
        path.symlink_metadata()
    };
    let metadata = metadata.map_err(|error| failed(&error, path))?;
    Ok(info(octets(path), path, &metadata))
}

fn info(name: Octets, path: &Path, metadata: &Metadata) -> FileInfo {
    let kind = kind(metadata);
    let target = (kind == FileKind::Symlink)
        .then(|| std::fs::read_link(path).ok())
        .flatten();
    FileInfo {
        name,
        kind,
        size: metadata.len(),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        modified_ms: metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000,
        target: target.map(|target| octets(&target)),
    }
}

fn kind(metadata: &Metadata) -> FileKind {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => FileKind::File,
        () if kind.is_dir() => FileKind::Directory,
        () if kind.is_symlink() => FileKind::Symlink,
        () => FileKind::Special,
    }
}

/// Whether a file is a socket, which archives cannot hold.
pub fn is_socket(metadata: &Metadata) -> bool {
    metadata.file_type().is_socket()
}

/// A directory's entries as a JSON array, made piece by piece, as there may be millions.
pub struct List {
    path: PathBuf,
    entries: Option<ReadDir>,
    begun: bool,
}

impl List {
    pub fn new(path: &Path) -> Result<Self, Fault> {
        let entries = path.read_dir().map_err(|error| failed(&error, path))?;
        Ok(Self {
            path: path.to_owned(),
            entries: Some(entries),
            begun: false,
        })
    }
}

impl Source for List {
    fn next(&mut self) -> Result<Vec<u8>, Fault> {
        let mut piece = Vec::new();
        let Some(entries) = &mut self.entries else {
            return Ok(piece);
        };
        while piece.len() < PIECE / 2 {
            let entry = match entries.next() {
                Some(entry) => entry.map_err(|error| failed(&error, &self.path))?,
                None => {
                    piece.extend_from_slice(if self.begun { b"]" } else { b"[]" });
                    self.entries = None;
                    break;
                }
            };
            // It may have gone since it was listed.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            piece.push(if self.begun { b',' } else { b'[' });
            self.begun = true;
            let name = octets(Path::new(&entry.file_name()));
            let info = info(name, &entry.path(), &metadata);
            piece.extend(serde_json::to_vec(&info).unwrap_or_default());
        }
        Ok(piece)
    }
}

/// Makes a directory.
pub fn mkdir(wanted: &Mkdir) -> Result<(), Fault> {
    let path = path(&wanted.path);
    let mode = wanted.mode.unwrap_or(0o755);
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(mode).recursive(wanted.parents);
    let result = builder.create(path).and_then(|()| {
        // The mode asked for is meant as it stands, whatever the file mode mask.
        if wanted.mode.is_some() {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
        }
        Ok(())
    });
    result.map_err(|error| failed(&error, path))
}

/// Gives a file another name.
pub fn rename(wanted: &Rename) -> Result<(), Fault> {
    let from = path(&wanted.from);
    std::fs::rename(from, path(&wanted.to)).map_err(|error| failed(&error, from))
}

/// Removes a file, an empty directory, or all below a directory.
pub fn remove(wanted: &Remove) -> Result<(), Fault> {
    let path = path(&wanted.path);
    let metadata = path
        .symlink_metadata()
        .map_err(|error| failed(&error, path))?;
    let result = match (metadata.is_dir(), wanted.recursive) {
        (false, _) => std::fs::remove_file(path),
        (true, false) => std::fs::remove_dir(path),
        (true, true) => std::fs::remove_dir_all(path),
    };
    result.map_err(|error| failed(&error, path))
}

/// Makes a symbolic link.
pub fn symlink(wanted: &Symlink) -> Result<(), Fault> {
    let link = path(&wanted.path);
    std::os::unix::fs::symlink(path(&wanted.target), link).map_err(|error| failed(&error, link))
}

/// Changes mode and owner.
pub fn chmod(wanted: &Chmod) -> Result<(), Fault> {
    let path = path(&wanted.path);
    let change = || {
        if wanted.uid.is_some() || wanted.gid.is_some() {
            chown(path, wanted.uid, wanted.gid)?;
        }
        match wanted.mode {
            Some(mode) => std::fs::set_permissions(path, PermissionsExt::from_mode(mode & 0o7777)),
            None => Ok(()),
        }
    };
    change().map_err(|error| failed(&error, path))
}
