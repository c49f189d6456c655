//! The bytes of a file, out and in.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONTENT_RANGE, HeaderValue, RANGE};
use tine_guest_agent::files::FileInfo;

use super::params::Params;
use super::{PIECE, Sink, Source, blocking, receive, sized, stream, tree};
use crate::agent::effects::temporary;
use crate::agent::fault::Fault;
use crate::agent::http::{self, Reply};

/// `GET content`.
pub async fn read(request: &Request<Incoming>, params: &Params) -> Reply {
    let path = params.path.clone();
    let (file, metadata) = blocking(move || open(&path)).await?;
    let size = metadata.len();
    let range = request
        .headers()
        .get(RANGE)
        .map(|range| parse_range(range, size))
        .transpose()?;
    let (from, length) = match range {
        Some(range) => range,
        None => (
            params.offset.unwrap_or_default(),
            params.length.unwrap_or(u64::MAX),
        ),
    };
    let path = params.path.clone();
    // Files of /proc say that they are empty and are not: their length is known at their end.
    if size == 0 {
        let reader = Reader::new(file, path, 0, length)?;
        return Ok(http::pieces(stream(reader), "application/octet-stream"));
    }
    let length = length.min(size.saturating_sub(from));
    let reader = Reader::new(file, path, from, length)?;
    let mut response = sized(if range.is_some() { 206 } else { 200 }, length, reader);
    if range.is_some() {
        let value = format!("bytes {from}-{}/{size}", from + length - 1);
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(CONTENT_RANGE, value);
        }
    }
    Ok(response)
}

fn open(path: &Path) -> Result<(File, Metadata), Fault> {
    let failed = |error| tree::failed(&error, path);
    // Opening a pipe must not wait for its other end.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = file.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    check_regular(&metadata, path)?;
    Ok((file, metadata))
}

fn check_regular(metadata: &Metadata, path: &Path) -> Result<(), Fault> {
    if metadata.is_dir() {
        return Err(tree::failed(
            &std::io::Error::from_raw_os_error(libc::EISDIR),
            path,
        ));
    }
    if !metadata.is_file() {
        let message = format_args!("{}: not a regular file", path.display());
        return Err(Fault::new(409, "not_regular", message));
    }
    Ok(())
}

/// Start and length of a `Range` header for one range.
fn parse_range(value: &HeaderValue, size: u64) -> Result<(u64, u64), Fault> {
    let refused = || {
        Fault::new(
            416,
            "bad_range",
            format_args!("no such range in {size} bytes"),
        )
    };
    let text = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix("bytes="));
    let (first, last) = text
        .and_then(|text| text.split_once('-'))
        .ok_or_else(refused)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| refused());
    let (from, to) = match (first, last) {
        ("", last) => (size.saturating_sub(number(last)?), size),
        (first, "") => (number(first)?, size),
        (first, last) => (number(first)?, number(last)?.saturating_add(1).min(size)),
    };
    if from >= to {
        return Err(refused());
    }
    Ok((from, to - from))
}

/// Part of a file.
struct Reader {
    file: File,
    path: PathBuf,
    left: u64,
}

impl Reader {
    fn new(mut file: File, path: PathBuf, from: u64, left: u64) -> Result<Self, Fault> {
        if from > 0 {
            file.seek(SeekFrom::Start(from))
                .map_err(|error| tree::failed(&error, &path))?;
        }
        Ok(Self { file, path, left })
    }
}

impl Source for Reader {
    fn next(&mut self) -> Result<Vec<u8>, Fault> {
        let mut piece = vec![0; self.left.min(PIECE as u64) as usize];
        let count = self
            .file
            .read(&mut piece)
            .map_err(|error| tree::failed(&error, &self.path))?;
        piece.truncate(count);
        self.left -= count as u64;
        Ok(piece)
    }
}

/// `PUT content`.
pub async fn write(params: &Params, incoming: Incoming) -> Reply {
    let wanted = Wanted {
        path: params.path.clone(),
        mode: params.mode,
        owner: (params.uid, params.gid),
        parents: params.parents,
        append: params.append,
        offset: params.offset,
        sync: params.sync,
    };
    if wanted.append && wanted.offset.is_some() {
        return Err(Fault::bad_request(
            "`append` and `offset` exclude each other",
        ));
    }
    let writer = blocking(move || Writer::open(wanted)).await?;
    http::json(200, &receive(writer, incoming).await?)
}

/// How a file is to be written.
struct Wanted {
    path: PathBuf,
    mode: Option<u32>,
    owner: (Option<u32>, Option<u32>),
    parents: bool,
    append: bool,
    offset: Option<u64>,
    sync: bool,
}

/// A file being written.
struct Writer {
    file: File,
    wanted: Wanted,
    /// The temporary name that is to become the path; gone once it has.
    temporary: Option<PathBuf>,
}

impl Writer {
    fn open(mut wanted: Wanted) -> Result<Self, Fault> {
        if wanted.parents
            && let Some(parent) = wanted.path.parent()
        {
            std::fs::create_dir_all(parent).map_err(|error| tree::failed(&error, parent))?;
        }
        // A symbolic link is written through, as every program does.
        if let Ok(real) = wanted.path.canonicalize() {
            wanted.path = real;
        }
        let path = &wanted.path;
        let failed = |error| tree::failed(&error, path);
        let old = path.metadata().ok();
        if let Some(old) = &old {
            check_regular(old, path)?;
        }
        let mut options = OpenOptions::new();
        options.mode(wanted.mode.unwrap_or(0o644));
        if wanted.append {
            let file = options
                .append(true)
                .create(true)
                .open(path)
                .map_err(failed)?;
            return Ok(Self {
                file,
                wanted,
                temporary: None,
            });
        }
        if let Some(offset) = wanted.offset {
            let mut file = options
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(failed)?;
            file.seek(SeekFrom::Start(offset)).map_err(failed)?;
            return Ok(Self {
                file,
                wanted,
                temporary: None,
            });
        }
        if path.file_name().is_none() {
            return Err(failed(std::io::Error::from_raw_os_error(libc::EISDIR)));
        }
        let temporary = temporary(path);
        let file = options
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(failed)?;
        if let Some(old) = old {
            // What is replaced keeps its mode and owner unless the request says otherwise.
            wanted.mode.get_or_insert(old.mode() & 0o7777);
            wanted.owner.0.get_or_insert(old.uid());
            wanted.owner.1.get_or_insert(old.gid());
        }
        Ok(Self {
            file,
            wanted,
            temporary: Some(temporary),
        })
    }
}

impl Sink for Writer {
    type Outcome = FileInfo;

    fn take(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.file
            .write_all(bytes)
            .map_err(|error| tree::failed(&error, &self.wanted.path))
    }

    fn finish(mut self) -> Result<FileInfo, Fault> {
        let path = self.wanted.path.clone();
        let failed = |error| tree::failed(&error, &path);
        let (uid, gid) = self.wanted.owner;
        if uid.is_some() || gid.is_some() {
            fchown(&self.file, uid, gid).map_err(failed)?;
        }
        // After the owner, whose change takes the set-id bits away.
        if let Some(mode) = self.wanted.mode {
            self.file
                .set_permissions(PermissionsExt::from_mode(mode))
                .map_err(failed)?;
        }
        if self.wanted.sync {
            self.file.sync_all().map_err(failed)?;
        }
        if let Some(temporary) = &self.temporary {
            std::fs::rename(temporary, &path).map_err(failed)?;
            self.temporary = None;
        }
        tree::stat(&path, true)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let parse = |text: &str, size| {
            parse_range(&HeaderValue::from_str(text).unwrap(), size).map_err(|fault| fault.status)
        };
        assert_eq!(parse("bytes=0-0", 10), Ok((0, 1)));
        assert_eq!(parse("bytes=5-", 10), Ok((5, 5)));
        assert_eq!(parse("bytes=-3", 10), Ok((7, 3)));
        assert_eq!(parse("bytes=-30", 10), Ok((0, 10)));
        assert_eq!(parse("bytes=8-99999999999999999999", 10), Err(416));
        assert_eq!(parse("bytes=8-18446744073709551615", 10), Ok((8, 2)));
        assert_eq!(parse("bytes=10-", 10), Err(416));
        assert_eq!(parse("bytes=5-4", 10), Err(416));
        assert_eq!(parse("bytes=0-1,3-4", 10), Err(416));
        assert_eq!(parse("lines=1-2", 10), Err(416));
    }
}
