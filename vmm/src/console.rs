//! Where the guest's console bytes go, and the tail of them that is kept for error messages.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tine_devices::bus::lock;
use tine_devices::rate::{Bucket, BucketConfig};

use crate::config::ConsoleConfig;

/// How much of the console is kept, in bytes.
const TAIL: usize = 8 << 10;

/// The last bytes that the guest wrote to its console.
#[derive(Debug, Clone, Default)]
pub struct ConsoleTail(Arc<Kept>);

#[derive(Debug, Default)]
struct Kept {
    bytes: Mutex<VecDeque<u8>>,
    dropped: AtomicU64,
}

impl ConsoleTail {
    /// Bytes that went nowhere, because of a limit.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// The last `count` lines, as text; what is not UTF-8 or would move a terminal is replaced.
    pub fn lines(&self, count: usize) -> Vec<String> {
        let bytes: Vec<u8> = lock(&self.0.bytes).iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let clean = |line: &str| {
            line.trim_end()
                .replace(|c: char| c.is_control(), "\u{fffd}")
        };
        let mut lines: Vec<String> = text.lines().map(clean).filter(|l| !l.is_empty()).collect();
        lines.drain(..lines.len().saturating_sub(count));
        lines
    }

    fn push(&self, bytes: &[u8]) {
        let mut tail = lock(&self.0.bytes);
        tail.extend(bytes);
        let over = tail.len().saturating_sub(TAIL);
        tail.drain(..over);
    }
}

/// The writer behind a machine's serial port.
pub(crate) struct Console {
    out: Option<File>,
    /// Bytes beyond it are dropped: the guest must not wait for its console.
    limit: Option<Bucket>,
    tail: ConsoleTail,
}

impl Console {
    /// Opens what `config` names; `limit` is one of bytes.
    pub fn open(config: &ConsoleConfig, limit: Option<&BucketConfig>) -> io::Result<Self> {
        let out = match config {
            ConsoleConfig::None => None,
            // A descriptor of its own and no buffer: what the guest wrote is out when it goes on.
            ConsoleConfig::Stdout => Some(File::from(
                std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?,
            )),
            ConsoleConfig::File(path) => Some(create(path)?),
        };
        Ok(Self {
            out,
            limit: limit.and_then(|limit| Bucket::new(limit, Instant::now())),
            tail: ConsoleTail::default(),
        })
    }

    /// What is kept.
    pub fn tail(&self) -> ConsoleTail {
        self.tail.clone()
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tail.push(bytes);
        let len = bytes.len() as u64;
        if let Some(limit) = &mut self.limit {
            if !limit.wait(len, Instant::now()).is_zero() {
                self.tail.0.dropped.fetch_add(len, Ordering::Relaxed);
                return Ok(bytes.len());
            }
            limit.take(len);
        }
        match &mut self.out {
            Some(out) => out.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates or empties a file. A FIFO is opened without waiting for a reader, and loses what does
/// not fit into it.
fn create(path: &std::path::Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).read(true).write(true);
    options.custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_printable() {
        let mut console = Console::open(&ConsoleConfig::None, None).unwrap();
        for line in 0..2000 {
            writeln!(console, "line {line}\r").unwrap();
        }
        console.write_all(b"\x1b[31mred\xff").unwrap();
        assert_eq!(
            console.tail().lines(2),
            ["line 1999", "\u{fffd}[31mred\u{fffd}"]
        );
        assert!(lock(&console.tail.0.bytes).len() <= TAIL);
    }

    #[test]
    fn what_goes_beyond_the_limit_is_dropped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console");
        let limit = BucketConfig {
            size: 10,
            one_time_burst: Some(3),
            refill_time: 3_600_000,
        };
        let config = ConsoleConfig::File(path.clone());
        let mut console = Console::open(&config, Some(&limit)).unwrap();
        for byte in b"0123456789abcdefghij" {
            console.write_all(&[*byte]).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"0123456789abc");
        assert_eq!(console.tail().dropped(), 7);
        assert_eq!(console.tail().lines(1), ["0123456789abcdefghij"]);
    }

    #[test]
    fn a_fifo_without_a_reader_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let mut console = Console::open(&ConsoleConfig::File(path), None).unwrap();
        console.write_all(b"x").unwrap();
    }
}
