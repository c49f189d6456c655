//! A small file that is replaced whole or not at all, whatever ends the process or the host; and whether
//! a path still names what it named.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
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
    // By the same call as other files get their names, so that no filter has to allow two.
    renameat_with(CWD, &temporary, CWD, dir.join(name), RenameFlags::empty())?;
    File::open(dir)?.sync_all()
}
