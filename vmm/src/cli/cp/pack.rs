//! A file or directory here as a tar stream.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

/// Why an archive was not made.
#[derive(Debug)]
pub struct PackError {
    /// What could not be read; nothing when it was the writing that failed.
    pub path: Option<PathBuf>,
    /// Why.
    pub source: io::Error,
}

/// Writes what is at `path` to `out`, under `name`; without a name what is in the directory
/// `path`. Returns how many special files were left out.
pub fn pack(path: &Path, name: Option<&Path>, out: impl Write) -> Result<u64, PackError> {
    let mut pack = Pack {
        archive: Builder::new(out),
        left_out: 0,
    };
    // What was named is followed if it is a link.
    let meta = fs::metadata(path).map_err(about(path))?;
    match name {
        Some(name) => pack.add(path, name, &meta)?,
        None => pack.directory(path, Path::new(""))?,
    }
    pack.archive.finish().map_err(writing)?;
    Ok(pack.left_out)
}

struct Pack<W: Write> {
    archive: Builder<W>,
    left_out: u64,
}

fn about(path: &Path) -> impl FnOnce(io::Error) -> PackError + '_ {
    |source| PackError {
        path: Some(path.to_owned()),
        source,
    }
}

fn writing(source: io::Error) -> PackError {
    PackError { path: None, source }
}

impl<W: Write> Pack<W> {
    fn add(&mut self, path: &Path, name: &Path, meta: &Metadata) -> Result<(), PackError> {
        let kind = meta.file_type();
        if kind.is_dir() {
            let mut header = header(meta, EntryType::Directory);
            self.append(&mut header, name, path, io::empty())?;
            self.directory(path, name)
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(about(path))?;
            let mut header = header(meta, EntryType::Symlink);
            let appended = self.archive.append_link(&mut header, name, target);
            appended.map_err(writing)
        } else if kind.is_file() {
            self.file(path, name)
        } else {
            self.left_out += 1;
            Ok(())
        }
    }

    fn directory(&mut self, path: &Path, name: &Path) -> Result<(), PackError> {
        let entries = fs::read_dir(path).map_err(about(path))?;
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(about(path))?.file_name());
        }
        // The same archive each time.
        names.sort();
        for entry in names {
            let path = path.join(&entry);
            match fs::symlink_metadata(&path) {
                Ok(meta) => self.add(&path, &name.join(&entry), &meta)?,
                // It has gone since it was listed.
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => return Err(about(&path)(err)),
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, name: &Path) -> Result<(), PackError> {
        // Opening a pipe that took the file's place must not wait.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(about(path))?;
        let meta = file.metadata().map_err(about(path))?;
        if !meta.is_file() {
            self.left_out += 1;
            return Ok(());
        }
        let mut header = header(&meta, EntryType::Regular);
        header.set_size(meta.len());
        let mut exact = Exact {
            file,
            left: meta.len(),
            failed: false,
        };
        let appended = self.archive.append_data(&mut header, name, &mut exact);
        appended.map_err(|err| match exact.failed {
            true => about(path)(err),
            false => writing(err),
        })
    }

    fn append(
        &mut self,
        header: &mut Header,
        name: &Path,
        path: &Path,
        data: impl Read,
    ) -> Result<(), PackError> {
        let appended = self.archive.append_data(header, name, data);
        appended.map_err(|err| match err.kind() {
            io::ErrorKind::BrokenPipe => writing(err),
            _ => about(path)(err),
        })
    }
}

fn header(meta: &Metadata, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(meta.mode() & 0o7777);
    header.set_uid(meta.uid().into());
    header.set_gid(meta.gid().into());
    header.set_mtime(meta.mtime().max(0) as u64);
    header.set_size(0);
    header
}

/// Exactly as many bytes of a file as were announced, whatever happens to it.
struct Exact {
    file: File,
    left: u64,
    /// It was the file that could not be read.
    failed: bool,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.left.min(buffer.len() as u64) as usize;
        let count = self.file.read(&mut buffer[..most]);
        self.failed = count.is_err();
        let count = count?;
        if count == 0 && most > 0 {
            self.failed = true;
            return Err(io::Error::other("it became shorter while it was copied"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}
