//! The listening socket and its file.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::VsockError;
use super::stream::connect_to;

/// The longest path in a socket address.
const MAX_PATH_LEN: usize = 107;

/// A listening socket, whose file goes when it does.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file that we made: another's is not ours to remove.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at `path`. A socket file that nobody listens on any more is replaced.
    pub fn bind(path: &Path) -> Result<Self, VsockError> {
        let len = path.as_os_str().as_bytes().len();
        if len > MAX_PATH_LEN {
            let path = path.to_owned();
            return Err(VsockError::PathTooLong { path, len });
        }
        let failed = |source| VsockError::Listen {
            path: path.to_owned(),
            source,
        };
        let socket = match UnixListener::bind(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path)
            }
            other => other,
        };
        let socket = socket.map_err(failed)?;
        let mut listener = Self {
            socket,
            path: path.to_owned(),
            file: None,
        };
        listener.file = identity(path);
        listener.socket.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Takes a waiting client.
    pub fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.socket.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Where a guest's connections to host port `port` go.
    pub fn path_of_port(&self, port: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        path.into()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.file.is_some() && self.file == identity(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

fn remove_stale(path: &Path) -> Result<(), VsockError> {
    let failed = |source| VsockError::Listen {
        path: path.to_owned(),
        source,
    };
    let file = fs::symlink_metadata(path).map_err(failed)?;
    if !file.file_type().is_socket() {
        return Err(VsockError::NotASocket(path.to_owned()));
    }
    match connect_to(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        // Connected, or too many wait already, or it is of another type: someone is there.
        _ => Err(VsockError::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_ours_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.sock");
        let live = UnixListener::bind(&path).unwrap();
        let refused = Listener::bind(&path).err().expect("refused").to_string();
        assert!(refused.contains("v.sock") && refused.contains("in use"));
        drop(refused);
        UnixStream::connect(&path).unwrap();
        drop(live);
    }

    #[test]
    fn a_file_that_is_no_socket_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::write(&path, "kept").unwrap();
        assert!(matches!(
            Listener::bind(&path),
            Err(VsockError::NotASocket(_))
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    }

    #[test]
    fn a_path_that_fits_no_address_is_refused_up_front() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(103)));
        assert!(matches!(
            Listener::bind(&path),
            Err(VsockError::PathTooLong { len: 108, .. })
        ));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let refused = Listener::bind(Path::new("/nonexistent/v.sock")).err();
        let message = refused.expect("refused").to_string();
        assert!(message.contains("/nonexistent/v.sock"), "{message}");
    }

    #[test]
    fn a_file_that_took_our_place_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.sock");
        let listener = Listener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(other);
    }
}
