//! A directory as a tar stream, made while it is read: memory does not depend on what is in it.

use std::fs::{File, Metadata, OpenOptions, ReadDir};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::tar_format::{BLOCK, Head, padding};
use super::tree::{failed, is_socket};
use super::{PIECE, Source};
use crate::agent::fault::Fault;

/// A walk through a tree.
pub struct Pack {
    /// Directories under way, each with its name in the archive.
    stack: Vec<(ReadDir, Vec<u8>)>,
    /// The file whose content is being sent, and how much of it is to come, with the zeros behind it.
    file: Option<(File, u64, usize, PathBuf)>,
    /// What is to be sent first.
    begun: Vec<u8>,
    ended: bool,
}

impl Pack {
    /// A directory's content, or one file under its own name.
    pub fn new(path: &Path) -> Result<Self, Fault> {
        let mut pack = Self {
            stack: Vec::new(),
            file: None,
            begun: Vec::new(),
            ended: false,
        };
        let metadata = path.metadata().map_err(|error| failed(&error, path))?;
        let mut out = Vec::new();
        if metadata.is_dir() {
            head(b"./".to_vec(), &metadata, path).write(&mut out);
            let entries = path.read_dir().map_err(|error| failed(&error, path))?;
            pack.stack.push((entries, Vec::new()));
        } else {
            let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
            pack.add(name, path, &mut out)?;
        }
        pack.begun = out;
        Ok(pack)
    }

    /// Begins an entry.
    fn add(&mut self, name: Vec<u8>, path: &Path, out: &mut Vec<u8>) -> Result<(), Fault> {
        let metadata = match path.symlink_metadata() {
            // It has gone since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result.map_err(|error| failed(&error, path))?,
        };
        if is_socket(&metadata) {
            return Ok(());
        }
        if metadata.is_dir() {
            let mut name = name;
            name.push(b'/');
            head(name.clone(), &metadata, path).write(out);
            let entries = path.read_dir().map_err(|error| failed(&error, path))?;
            self.stack.push((entries, name));
        } else if metadata.is_file() {
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(path)
                .map_err(|error| failed(&error, path))?;
            let metadata = file.metadata().map_err(|error| failed(&error, path))?;
            let head = head(name, &metadata, path);
            head.write(out);
            self.file = Some((file, head.size, padding(head.size), path.to_owned()));
        } else {
            head(name, &metadata, path).write(out);
        }
        Ok(())
    }

    /// Sends some of the current file: exactly as much in the end as its head has said, whatever happens to it.
    fn content(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Some((file, left, pad, path)) = &mut self.file else {
            return Ok(());
        };
        let start = out.len();
        let most = (*left).min(PIECE as u64) as usize;
        out.resize(start + most, 0);
        let count = file
            .read(&mut out[start..])
            .map_err(|error| failed(&error, path))?;
        // It has become shorter: zeros take the place of what is missing.
        let count = if count == 0 { most } else { count };
        out.truncate(start + count);
        *left -= count as u64;
        if *left == 0 {
            out.resize(out.len() + *pad, 0);
            self.file = None;
        }
        Ok(())
    }
}

impl Source for Pack {
    fn next(&mut self) -> Result<Vec<u8>, Fault> {
        let mut out = std::mem::take(&mut self.begun);
        while out.len() < PIECE / 2 && !self.ended {
            if self.file.is_some() {
                self.content(&mut out)?;
                continue;
            }
            let Some((entries, prefix)) = self.stack.last_mut() else {
                out.resize(out.len() + 2 * BLOCK, 0);
                self.ended = true;
                break;
            };
            match entries.next() {
                None => drop(self.stack.pop()),
                Some(Err(error)) => {
                    return Err(failed(
                        &error,
                        Path::new(std::ffi::OsStr::from_bytes(prefix)),
                    ));
                }
                Some(Ok(entry)) => {
                    let name = [prefix.as_slice(), entry.file_name().as_bytes()].concat();
                    self.add(name, &entry.path(), &mut out)?;
                }
            }
        }
        Ok(out)
    }
}

fn head(path: Vec<u8>, metadata: &Metadata, at: &Path) -> Head {
    let kind = metadata.file_type();
    let mut head = Head {
        path,
        kind: b'0',
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid().into(),
        gid: metadata.gid().into(),
        mtime: metadata.mtime().max(0) as u64,
        ..Head::default()
    };
    match () {
        () if kind.is_dir() => head.kind = b'5',
        () if kind.is_symlink() => {
            head.kind = b'2';
            let target = std::fs::read_link(at).unwrap_or_default();
            head.link = target.as_os_str().as_bytes().to_vec();
        }
        () if kind.is_char_device() || kind.is_block_device() => {
            head.kind = if kind.is_char_device() { b'3' } else { b'4' };
            let device = metadata.rdev();
            head.device = (rustix::fs::major(device), rustix::fs::minor(device));
        }
        () if kind.is_fifo() => head.kind = b'6',
        () => head.size = metadata.len(),
    }
    head
}
