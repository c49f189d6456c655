//! The console of the bare-metal guest `speaking`: the letters from A to Z and a line feed, over and
//! over. So what a guest says after a restore has to go on where it stopped before.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Error;

/// Waits until at least `count` bytes are in the file, and returns all that are.
pub fn wait(path: &Path, count: usize) -> Result<Vec<u8>, Error> {
    let start = Instant::now();
    loop {
        let bytes = std::fs::read(path).unwrap_or_default();
        if bytes.len() >= count {
            return Ok(bytes);
        }
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("{} of {count} bytes of console", bytes.len()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What comes after a byte.
pub fn after(byte: u8) -> u8 {
    match byte {
        b'Z' => b'\n',
        b'\n' => b'A',
        letter => letter + 1,
    }
}

/// Checks that each byte is the one after the one before.
pub fn check(bytes: &[u8]) -> Result<(), Error> {
    match bytes.windows(2).position(|pair| pair[1] != after(pair[0])) {
        Some(at) => {
            let around = &bytes[at.saturating_sub(30)..bytes.len().min(at + 30)];
            Err(format!("out of order: {:?}", String::from_utf8_lossy(around)).into())
        }
        None => Ok(()),
    }
}
