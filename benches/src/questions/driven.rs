//! Guests that drive a virtio device by themselves (`bare/`), and what is seen of them from outside:
//! when their signs come, and what the monitor's threads spend meanwhile.
//!
//! A guest polls, in ring 3, and asks for no interrupts: its vCPU never sleeps, and what is left is the
//! monitor's way, not a guest kernel's, which software KVM would interpret.

use std::fs;
use std::io::{PipeReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::api::Process;
use crate::guest::SIGN;

/// Reads and writes a drive.
pub const BLOCK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/block.elf"));

/// Sends and takes what a port of the host gives it.
pub const VSOCK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vsock.elf"));

/// Sends frames, or sends back those that come.
pub const NET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/net.elf"));

/// Where a guest's arguments are: behind this.
const MARK: &[u8] = b"tineargs";

/// Writes the guest with its arguments to `dir`.
pub fn write(guest: &[u8], arguments: &[u32], dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut file = guest.to_vec();
    let at = file.windows(MARK.len()).position(|window| window == MARK);
    let at = at.context("the guest takes no arguments")? + MARK.len();
    for (argument, place) in arguments.iter().zip(file[at..].chunks_exact_mut(4)) {
        place.copy_from_slice(&argument.to_le_bytes());
    }
    let path = dir.join(name).with_extension("elf");
    fs::write(&path, file).context("cannot write a guest")?;
    Ok(path)
}

/// What was seen between two signs.
pub struct Seen {
    /// How long it took.
    pub took: Duration,
    /// What all threads but the vCPU's spent.
    pub spent: Duration,
}

/// Lets the guest give its first sign, which ends its warm-up, and looks at the `signs` after it.
pub fn watch(process: &Process, console: &mut PipeReader, signs: usize) -> anyhow::Result<Seen> {
    let mut heard = wait_for(process, console, 1)?;
    let (begin, before) = (Instant::now(), spent(process)?);
    while heard < 1 + signs {
        heard += wait_for(process, console, 1 + signs - heard)?;
    }
    let took = begin.elapsed();
    Ok(Seen {
        took,
        spent: spent(process)?.saturating_sub(before),
    })
}

/// Processor time so far of all threads but the vCPU's.
pub fn spent(process: &Process) -> anyhow::Result<Duration> {
    Ok(process.time()?.saturating_sub(process.vcpu_time()?))
}

/// Waits for the guest's next sign.
pub fn wait_for_sign(process: &Process, console: &mut PipeReader) -> anyhow::Result<()> {
    wait_for(process, console, 1).map(drop)
}

/// Some signs, at most so many.
fn wait_for(process: &Process, console: &mut PipeReader, most: usize) -> anyhow::Result<usize> {
    let mut bytes = vec![0; most];
    loop {
        let len = console.read(&mut bytes).context("cannot read a console")?;
        ensure!(
            len > 0,
            process.complaint("its guest has given up, or it ended")
        );
        let signs = bytes[..len].iter().filter(|byte| **byte == SIGN).count();
        if signs > 0 {
            return Ok(signs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_put_behind_the_mark() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(BLOCK, &[0x0403_0201, 7], dir.path(), "x").unwrap();
        let file = fs::read(path).unwrap();
        let at = file.windows(8).position(|window| window == MARK).unwrap() + 8;
        assert_eq!(file[at..at + 8], [1, 2, 3, 4, 7, 0, 0, 0]);
        assert_eq!(file.len(), BLOCK.len());
        assert!(write(b"no mark", &[], dir.path(), "x").is_err());
    }
}
