//! A small file that is replaced whole or not at all, whatever ends the process or the host; and whether
//! a path still names what it named.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::CWD;
use tine_jailer::files;

/// Whether a path, which is followed no further, names an open file or directory.
pub fn is_named(path: &Path, open: &File) -> bool {
    match (fs::symlink_metadata(path), open.metadata()) {
        (Ok(named), Ok(open)) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
        _ => false,
    }
}

/// The name of what [`replace`] writes first, and leaves where its process is killed meanwhile.
pub fn temporary(name: &str) -> String {
    format!(".{name}.new")
}

/// Writes a file of a directory, in the place of an earlier one of its name, and makes it durable.
///
/// # Errors
///
/// Those of the operating system. The earlier file is then as it was, or already replaced.
pub fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(temporary(name));
    let mut file = files::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rustix::fs::renameat(CWD, &temporary, CWD, dir.join(name))?;
    File::open(dir)?.sync_all()
}
