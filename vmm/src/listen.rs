//! The socket file: a dead one is replaced, a live one is refused by name.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Longest path of a socket: `sun_path` without its NUL.
const MAX_PATH: usize = 107;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path does not fit.
    #[error(
        "the socket path {} has {len} bytes, and the system takes {MAX_PATH}: use a shorter one",
        path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        len: usize,
    },
    /// Somebody serves it.
    #[error(
        "the socket {} is in use by a running process: end that one or use another path",
        .0.display()
    )]
    InUse(PathBuf),
    /// It is no socket.
    #[error("{} exists and is not a socket: remove it or use another path", .0.display())]
    NotASocket(PathBuf),
    /// Something is there already.
    #[error("{} exists: remove it or use another path", .0.display())]
    Exists(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
}

/// A socket file of our own, which is removed in the end.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Device and inode: a file that somebody else put there is left alone.
    file: (u64, u64),
    listener: Option<UnixListener>,
}

impl Socket {
    /// Listens at `path`. Clients that connect from now on wait for their answer.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        Self::bind_or(path, replace)
    }

    /// The same, and nothing is replaced: to find out whether a socket is dead takes a call that a
    /// process with a guest may not make.
    pub fn bind_new(path: &Path) -> Result<Self, ListenError> {
        Self::bind_or(path, |path| Err(ListenError::Exists(path.into())))
    }

    fn bind_or(
        path: &Path,
        there: impl FnOnce(&Path) -> Result<UnixListener, ListenError>,
    ) -> Result<Self, ListenError> {
        let len = path.as_os_str().len();
        if len > MAX_PATH {
            return Err(ListenError::TooLong {
                path: path.into(),
                len,
            });
        }
        let failed = |source| ListenError::Bind {
            path: path.into(),
            source,
        };
        let listener = match UnixListener::bind(path) {
            Err(err) if err.kind() == io::ErrorKind::AddrInUse => there(path)?,
            bound => bound.map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let meta = std::fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            path: path.into(),
            file: (meta.dev(), meta.ino()),
            listener: Some(listener),
        })
    }

    /// The listening socket, once.
    pub fn take_listener(&mut self) -> io::Result<UnixListener> {
        self.listener
            .take()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.file);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Replaces a socket that nobody serves. Of several processes that try at the same time one wins:
/// they hold a lock on the directory meanwhile.
fn replace(path: &Path) -> Result<UnixListener, ListenError> {
    let failed = |source| ListenError::Bind {
        path: path.into(),
        source,
    };
    let meta = std::fs::symlink_metadata(path).map_err(failed)?;
    if !meta.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let dir = File::open(dir).map_err(failed)?;
    flock(dir.as_fd(), FlockOperation::LockExclusive).map_err(|err| failed(err.into()))?;
    match UnixStream::connect(path) {
        Ok(_) => return Err(ListenError::InUse(path.into())),
        Err(err) if err.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)?;
        }
        // Another one has removed it, and will serve it.
        Err(err) if err.kind() == io::ErrorKind::NotFound => {}
        // So many wait for an answer there that no more are let in.
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
            return Err(ListenError::InUse(path.into()));
        }
        Err(err) => return Err(failed(err)),
    }
    match UnixListener::bind(path) {
        Err(err) if err.kind() == io::ErrorKind::AddrInUse => Err(ListenError::InUse(path.into())),
        bound => bound.map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let first = Socket::bind(&path).unwrap();
        let refused = Socket::bind(&path).unwrap_err();
        assert!(matches!(refused, ListenError::InUse(_)));
        assert!(refused.to_string().contains("api.sock"));
        let refused = Socket::bind_new(&path).unwrap_err();
        assert!(matches!(refused, ListenError::Exists(_)));
        drop(first);
        assert!(!path.exists());
        drop(Socket::bind_new(&path).unwrap());
    }

    #[test]
    fn a_socket_left_behind_by_a_dead_process_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(
            Socket::bind(&path),
            Err(ListenError::NotASocket(_))
        ));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_path_over_the_limit_is_refused_before_anything_is_made() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(103)));
        let refused = Socket::bind(&path).unwrap_err();
        assert!(matches!(refused, ListenError::TooLong { len: 108, .. }));
    }
}
