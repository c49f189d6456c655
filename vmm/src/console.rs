//! Where the guest's console bytes go, and the tail of them that is kept for error messages.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tine_devices::bus::lock;

use crate::config::ConsoleConfig;

/// How much of the console is kept, in bytes.
const TAIL: usize = 8 << 10;

/// The last bytes that the guest wrote to its console.
#[derive(Debug, Clone, Default)]
pub struct ConsoleTail(Arc<Mutex<VecDeque<u8>>>);

impl ConsoleTail {
    /// The last `count` lines, as text; what is not UTF-8 or would move a terminal is replaced.
    pub fn lines(&self, count: usize) -> Vec<String> {
        let bytes: Vec<u8> = lock(&self.0).iter().copied().collect();
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
        let mut tail = lock(&self.0);
        tail.extend(bytes);
        let over = tail.len().saturating_sub(TAIL);
        tail.drain(..over);
    }
}

/// The writer behind a machine's serial port.
pub(crate) struct Console {
    out: Option<File>,
    tail: ConsoleTail,
}

impl Console {
    /// Opens what `config` names.
    pub fn open(config: &ConsoleConfig) -> io::Result<Self> {
        let out = match config {
            ConsoleConfig::None => None,
            // A descriptor of its own and no buffer: what the guest wrote is out when it goes on.
            ConsoleConfig::Stdout => Some(File::from(
                std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?,
            )),
            ConsoleConfig::File(path) => Some(File::create(path)?),
        };
        Ok(Self {
            out,
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
        match &mut self.out {
            Some(out) => out.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_printable() {
        let mut console = Console::open(&ConsoleConfig::None).unwrap();
        for line in 0..2000 {
            writeln!(console, "line {line}\r").unwrap();
        }
        console.write_all(b"\x1b[31mred\xff").unwrap();
        assert_eq!(
            console.tail().lines(2),
            ["line 1999", "\u{fffd}[31mred\u{fffd}"]
        );
        assert!(lock(&console.tail.0).len() <= TAIL);
    }
}
