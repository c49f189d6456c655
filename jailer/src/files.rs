//! Opening what lies under a name in a directory that others write to: it may be a link to something
//! else, or a FIFO, at which whoever opens or reads it waits for as long as somebody likes.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Opens the regular file at a path, to be read.
///
/// # Errors
///
/// As [`open_at`].
pub fn open(path: &Path) -> io::Result<File> {
    open_at(CWD, path, OFlags::RDONLY, Mode::empty())
}

/// Opens the regular file at a path, to be written anew, and makes it if it is not there.
///
/// # Errors
///
/// As [`open_at`].
pub fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    open_at(CWD, path, flags, Mode::from_raw_mode(0o666))
}

/// Opens the regular file `name` in the directory `dir`. Where the path ends no link is followed, and
/// nobody is waited for. `mode` is that of a file that is made, if `flags` say so.
///
/// # Errors
///
/// When it cannot be opened, or something else has the name; in words that say what.
pub fn open_at(dir: impl AsFd, name: impl Arg, flags: OFlags, mode: Mode) -> io::Result<File> {
    // NONBLOCK means nothing to a regular file.
    let always = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = openat(dir, name, flags | always, mode).map_err(|err| match err {
        Errno::LOOP => other_than_a_file("a symbolic link"),
        Errno::ISDIR => other_than_a_file("a directory"),
        // To be written to, a FIFO that nobody reads says so, too.
        Errno::NXIO => other_than_a_file("a socket, a FIFO or a device"),
        err => err.into(),
    })?;
    let file = File::from(fd);
    match file.metadata()?.file_type() {
        kind if kind.is_file() => Ok(file),
        kind if kind.is_dir() => Err(other_than_a_file("a directory")),
        kind if kind.is_fifo() => Err(other_than_a_file("a FIFO")),
        _ => Err(other_than_a_file("a device")),
    }
}

fn other_than_a_file(what: &str) -> io::Error {
    io::Error::other(format!("it is {what}, and has to be a regular file"))
}

/// Reads the regular file at a path, which has at most `limit` bytes.
///
/// # Errors
///
/// As [`open_at`], when it cannot be read, and when it is longer.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open(path)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::other(format!("it is longer than {limit} bytes"))),
        false => Ok(bytes),
    }
}

/// Reads the end of the regular file at a path, which may be of any length: `most` bytes of it.
///
/// # Errors
///
/// As [`open_at`], and when it cannot be read.
pub fn read_end(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens the directory at a path, which may be led to by a link: to lock it, or to sync its names.
///
/// # Errors
///
/// When it cannot be opened, or is no directory.
pub fn open_dir(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

/// A socket that a path names without a link at its end, to connect to. Another one may have the name
/// by then: it is this one all the same.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// The one at a path.
    ///
    /// # Errors
    ///
    /// When there is nothing, or a symbolic link. Anything else that is no socket is refused by who connects.
    pub fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(CWD, path, flags, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&found)?.st_mode) {
            FileType::Symlink => Err(io::Error::other(
                "it is a symbolic link, and has to be a socket",
            )),
            _ => Ok(Self(found)),
        }
    }

    /// A path that leads to it for as long as this is there.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::mknodat;

    use super::*;

    /// What came of it, on a thread that is left behind where it waits.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, hear) = mpsc::channel();
        std::thread::spawn(move || tell.send(work()));
        let came = hear.recv_timeout(Duration::from_secs(10));
        came.expect("nobody is waited for")
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "content").unwrap();
        fs::create_dir(at("directory")).unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("directory"), at("linked directory")).unwrap();
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let whole = open(&at("file")).and_then(io::read_to_string).unwrap();
        assert_eq!(whole, "content");
        let cases = [
            ("link", "a symbolic link"),
            ("fifo", "a FIFO"),
            ("socket", "a socket"),
        ];
        let ways = [
            OFlags::RDONLY,
            OFlags::RDWR,
            OFlags::WRONLY | OFlags::APPEND,
        ];
        for (name, what) in cases {
            for flags in ways {
                let path = at(name);
                let refused = in_time(move || open_at(CWD, path, flags, Mode::empty()));
                let said = refused.unwrap_err().to_string();
                assert!(said.contains(what), "{name}: {said}");
                assert!(said.contains("a regular file"), "{name}: {said}");
            }
        }
        let said = open(&at("directory")).unwrap_err().to_string();
        assert!(said.contains("a directory"), "{said}");
        for name in ["directory", "linked directory"] {
            open_dir(&at(name)).unwrap();
        }
        for name in ["file", "fifo", "none"] {
            let path = at(name);
            assert!(in_time(move || open_dir(&path)).is_err(), "{name}");
        }
    }

    #[test]
    fn no_more_is_read_than_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "1234").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"1234");
        let said = read(&path, 3).unwrap_err().to_string();
        assert!(said.contains("longer than 3 bytes"), "{said}");
        // One without an end, as far as memory goes.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        assert!(read(&path, 1 << 20).is_err());
        create(&path).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap(), b"");
        file.set_len(1 << 40).unwrap();
        assert_eq!(read_end(&path, 2).unwrap(), [0; 2]);
        fs::write(&path, "1234").unwrap();
        assert_eq!(read_end(&path, 2).unwrap(), b"34");
        assert_eq!(read_end(&path, 9).unwrap(), b"1234");
    }

    #[test]
    fn a_socket_is_that_of_the_name_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let listener = UnixListener::bind(at("socket")).unwrap();
        let socket = Socket::at(&at("socket")).unwrap();
        UnixStream::connect(socket.path()).unwrap();
        // Another one's, by a link.
        symlink(at("socket"), at("link")).unwrap();
        let said = Socket::at(&at("link")).unwrap_err().to_string();
        assert!(said.contains("a symbolic link"), "{said}");
        // What takes the name later is not it.
        fs::rename(at("socket"), at("old")).unwrap();
        fs::rename(at("link"), at("socket")).unwrap();
        UnixStream::connect(socket.path()).unwrap();
        drop(listener);
        let refused = UnixStream::connect(socket.path()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let missing = Socket::at(&at("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
