//! The log of `tine-vmm`: lines in a file, a FIFO or on standard output.
//!
//! Off until told where to write, so that a start pays nothing for it. A line that cannot be
//! written is lost: a machine does not stop for its log.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::SystemTime;

use serde::Serialize;
use tine_devices::bus::lock;

use crate::clock::rfc3339;

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// Nothing is.
    Off,
    /// Something could not be done.
    Error,
    /// Something is not as it should be.
    Warning,
    /// What happens.
    Info,
    /// What happens, in detail.
    Debug,
    /// Everything.
    Trace,
}

impl FromStr for Level {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Ok(match word.to_ascii_lowercase().as_str() {
            "off" => Level::Off,
            "error" => Level::Error,
            "warn" | "warning" => Level::Warning,
            "info" => Level::Info,
            "debug" => Level::Debug,
            "trace" => Level::Trace,
            _ => {
                return Err(format!(
                    "{word:?} is none of Off, Error, Warning, Info, Debug, Trace"
                ));
            }
        })
    }
}

/// The most important levels that are written, as a number.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Off as u8);
static SINK: Mutex<Sink> = Mutex::new(Sink {
    out: None,
    show_level: false,
});
static ID: OnceLock<String> = OnceLock::new();

struct Sink {
    out: Option<File>,
    show_level: bool,
}

/// Says whose log it is.
pub fn set_id(id: &str) {
    let _ = ID.set(id.to_owned());
}

/// Sets what is given; what was set before stays. The first call switches the log on.
pub fn configure(
    path: Option<&Path>,
    level: Option<Level>,
    show_level: Option<bool>,
) -> io::Result<()> {
    let out = path.map(open).transpose()?;
    let mut sink = lock(&SINK);
    if out.is_some() {
        sink.out = out;
    }
    sink.show_level = show_level.unwrap_or(sink.show_level);
    let now = LEVEL.load(Ordering::Relaxed);
    let level = level.map(|level| level as u8);
    let level = level.unwrap_or(if now == 0 { Level::Info as u8 } else { now });
    LEVEL.store(level, Ordering::Relaxed);
    Ok(())
}

/// Opens a file or FIFO for appending; a FIFO that nobody reads is an error, not a wait.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Whether lines of this level are written.
pub fn is_on(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes a line.
pub fn log(level: Level, words: impl std::fmt::Display) {
    if !is_on(level) {
        return;
    }
    let id = ID.get().map_or("", String::as_str);
    let thread = thread::current();
    let thread = thread.name().unwrap_or("?");
    let time = rfc3339(SystemTime::now());
    let mut sink = lock(&SINK);
    let line = match sink.show_level {
        true => format!("{time} [{id}:{thread}:{level:?}] {words}\n"),
        false => format!("{time} [{id}:{thread}] {words}\n"),
    };
    let _ = match &mut sink.out {
        Some(file) => file.write_all(line.as_bytes()),
        None => match io::stdout().as_fd().try_clone_to_owned() {
            Ok(stdout) => File::from(stdout).write_all(line.as_bytes()),
            Err(err) => Err(err),
        },
    };
}
