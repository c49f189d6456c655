//! A small file that is replaced whole or not at all, whatever ends the process or the host.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::CWD;

/// Writes a file of a directory, in the place of an earlier one of its name, and makes it durable.
///
/// # Errors
///
/// Those of the operating system. The earlier file is then as it was, or already replaced.
pub fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rustix::fs::renameat(CWD, &temporary, CWD, dir.join(name))?;
    File::open(dir)?.sync_all()
}
