//! Where machines are found: a directory for each, named by its id, in one place per user.
//!
//! In a machine's directory are its socket (`api.sock`), its console (`console.log`), its
//! process's own output (`vmm.log`) and its usage records. The place itself belongs to the user
//! alone: whoever can write to a machine's socket is in command of it. Beside the directory of a machine
//! in a jail is the note of what it was shown (`.ID.shown`).

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tine::client::Machine;
use tine::launch::is_id;
pub use tine::launch::{CONSOLE, LOG, SOCKET};
use tine_jailer::files::Socket;

use super::failure::Failure;
use super::jail;

/// Name of the program that is a machine.
pub const PROGRAM: &str = "tine-vmm";
/// In a machine's directory while somebody brings it up, who holds the directory's lock meanwhile: where
/// nobody holds that any more, the process was left behind.
pub const BEGUN: &str = "begun";
/// Longest path of a socket: `sun_path` without its NUL.
const MAX_SOCKET_PATH: usize = 107;

/// An id as it is given: 1 to 64 of `a-z0-9_-`.
pub fn id(text: &str) -> Result<String, String> {
    match is_id(text) {
        true => Ok(text.to_owned()),
        false => Err("a machine's id is 1 to 64 of a-z, 0-9, `_` and `-`".to_owned()),
    }
}

/// An id that nobody has given.
pub fn new_id() -> String {
    tine::client::new_request_id()[..8].to_owned()
}

/// The place of this user's machines.
pub fn root() -> Result<PathBuf, Failure> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(dir) = set("TINE_RUN_DIR") {
        return std::path::absolute(dir)
            .map_err(|err| Failure::new(format!("cannot use TINE_RUN_DIR: {err}")));
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/run/tine".into());
    }
    match set("XDG_RUNTIME_DIR") {
        Some(dir) => Ok(Path::new(&dir).join("tine")),
        None => Err(Failure::new(
            "there is no place for machines: set XDG_RUNTIME_DIR or TINE_RUN_DIR to a directory",
        )),
    }
}

/// Makes the place, if it is not there.
pub fn make_root() -> Result<PathBuf, Failure> {
    let root = root()?;
    if let Some(parent) = root.parent() {
        fs::create_dir_all(parent).map_err(|err| failed(parent, err))?;
    }
    match DirBuilder::new().mode(0o700).create(&root) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|err| failed(&root, err))?,
    }
    check_private(&root)?;
    Ok(root)
}

fn failed(what: &Path, err: io::Error) -> Failure {
    Failure::new(format!("cannot make {}: {err}", what.display()))
}

/// Whether a socket can have this path.
pub fn check_socket(path: &Path) -> Result<(), Failure> {
    let len = path.as_os_str().len();
    match len > MAX_SOCKET_PATH {
        false => Ok(()),
        true => Err(Failure::new(format!(
            "the path of the machine's socket would have {len} bytes, and the system takes \
             {MAX_SOCKET_PATH}: give a shorter name, or set TINE_RUN_DIR to a shorter path"
        ))),
    }
}

/// Makes the place, if it is not there, and a new directory in it for the machine `id`.
pub fn create(id: &str) -> Result<PathBuf, Failure> {
    let dir = make_root()?.join(id);
    check_socket(&dir.join(SOCKET))?;
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => Ok(dir),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            Err(Failure::new(match is_served(&dir) {
                true => format!(
                    "there is a machine {id} already: give another --name, or remove it with \
                     `tine rm -f {id}`"
                ),
                false => format!(
                    "there was a machine {id}, and its directory is still there: give another \
                     --name, or remove it with `tine rm {id}`"
                ),
            }))
        }
        Err(err) => Err(failed(&dir, err)),
    }
}

/// Removes a machine's directory, and what is noted beside it.
///
/// # Errors
///
/// When there is none, or something of it stays; the note does then, too.
pub fn remove(dir: &Path) -> io::Result<()> {
    let removed = fs::remove_dir_all(dir);
    // It may have been left by who was killed between the two.
    jail::note::forget(dir)?;
    removed
}

/// What others could write to would let them command our machines.
fn check_private(root: &Path) -> Result<(), Failure> {
    let meta = fs::metadata(root)
        .map_err(|err| Failure::new(format!("cannot use {}: {err}", root.display())))?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    if meta.is_dir() && ours && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "machines cannot be kept in {}: it must be a directory of yours that nobody else can \
         write to",
        root.display()
    )))
}

/// Whether a process answers at the directory's socket.
pub fn is_served(dir: &Path) -> bool {
    let socket = Socket::at(&dir.join(SOCKET));
    match socket.and_then(|socket| UnixStream::connect(socket.path())) {
        Ok(_) => true,
        // So many wait for it that no more are let in.
        Err(err) => err.kind() == io::ErrorKind::WouldBlock,
    }
}

/// The ids of all machines that have a directory, sorted.
pub fn all() -> Result<Vec<String>, Failure> {
    let root = root()?;
    let entries = match fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => {
            let root = root.display();
            return Err(Failure::new(format!("cannot read {root}: {err}")));
        }
    };
    let mut ids: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| id(entry.file_name().to_str()?).ok())
        .collect();
    ids.sort();
    Ok(ids)
}

/// The directory of the machine `id`, which has to be there.
pub fn find(id: &str) -> Result<PathBuf, Failure> {
    let dir = root()?.join(id);
    if dir.is_dir() {
        return Ok(dir);
    }
    let all = all()?;
    Err(Failure::new(match all.as_slice() {
        [] => format!("there is no machine {id}, nor any other: `tine run -d` starts one"),
        all => format!("there is no machine {id}: there are {}", all.join(", ")),
    }))
}

/// The machine `id`, which has to be known here.
pub fn machine(id: &str) -> Result<Machine, Failure> {
    Ok(Machine::at(find(id)?.join(SOCKET)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        for good in ["a", "0", "web-1", "_x", &"a".repeat(64), &new_id()] {
            assert_eq!(id(good).as_deref(), Ok(good));
        }
        for bad in ["", "A", "a b", "..", "a/b", "ä", &"a".repeat(65)] {
            assert!(id(bad).is_err(), "{bad:?}");
        }
    }
}
