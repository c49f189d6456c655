//! `tine logs`: the console of a machine.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use tine_jailer::files;

use super::failure::Failure;
use super::output::Sink;
use super::rundir::{self, CONSOLE};
use super::session::Signals;

/// Bytes moved at once.
const CHUNK: usize = 32 << 10;
/// Between looks for more.
const LOOK: Duration = Duration::from_millis(100);

/// Print the console of a machine
#[derive(clap::Args)]
#[command(after_help = "\
The console of a machine that has ended can be read until `tine rm` removes it. On a terminal,
characters that would move it are replaced; passed on, the bytes are the guest's own.

Examples:
  tine logs web
  tine logs -f -n 20 web")]
pub struct Args {
    /// Go on with what is added, until the machine ends
    #[arg(short, long)]
    follow: bool,
    /// Only this many lines of what is there
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
}

/// Prints the console.
pub async fn logs(args: Args) -> Result<u8, Failure> {
    let dir = rundir::find(&args.id)?;
    let mut signals = Signals::watch()?;
    let id = &args.id;
    // The machine can put anything there, and what root can read may not be the caller's to see.
    let mut file = files::open(&dir.join(CONSOLE)).map_err(|err| match err.kind() {
        io::ErrorKind::NotFound => Failure::new(format!(
            "machine {id} keeps no console here: it was started with --console, or is not \
             started yet"
        )),
        _ => Failure::new(format!("cannot read the console of machine {id}: {err}")),
    })?;
    let failed = |err: io::Error| Failure::new(format!("machine {id}: {err}"));
    if let Some(lines) = args.lines {
        let start = last_lines(&mut file, lines).map_err(failed)?;
        file.seek(SeekFrom::Start(start)).map_err(failed)?;
    }
    let work = copy(&mut file, &dir, args.follow);
    tokio::select! {
        done = work => match done {
            Ok(()) => Ok(0),
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => {
                Err(Failure::signal(libc::SIGPIPE))
            }
            Err(err) => Err(failed(err)),
        },
        number = signals.ending() => Err(Failure::signal(number)),
    }
}

async fn copy(file: &mut File, dir: &Path, follow: bool) -> io::Result<()> {
    let mut out = Sink::stdout();
    let clean = io::stdout().is_terminal();
    let mut buffer = vec![0; CHUNK];
    loop {
        // Looked at before reading, so that what was written last is read.
        let more = follow && rundir::is_served(dir);
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            if clean {
                make_harmless(&mut buffer[..count]);
            }
            out.write_all(&buffer[..count]).await?;
        }
        if !more {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Replaces what would move a terminal; lines and tabs are left.
fn make_harmless(bytes: &mut [u8]) {
    for byte in bytes {
        if byte.is_ascii_control() && !b"\n\r\t".contains(byte) {
            *byte = b'?';
        }
    }
}

/// Where the last `count` lines begin.
fn last_lines(file: &mut File, count: usize) -> io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    let mut at = end;
    let mut seen = 0;
    let mut buffer = vec![0; CHUNK];
    while at > 0 {
        let size = at.min(CHUNK as u64) as usize;
        at -= size as u64;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut buffer[..size])?;
        for (offset, byte) in buffer[..size].iter().enumerate().rev() {
            let place = at + offset as u64;
            // The end of the last line begins no other.
            if *byte == b'\n' && place + 1 != end {
                seen += 1;
            }
            if seen == count && (*byte == b'\n') && place + 1 != end {
                return Ok(place + 1);
            }
        }
    }
    Ok(if count == 0 { end } else { 0 })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_lines_are_found() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a\nbb\nccc\n").unwrap();
        let starts: Vec<u64> = (0..5)
            .map(|count| last_lines(&mut file, count).unwrap())
            .collect();
        assert_eq!(starts, [9, 5, 2, 0, 0]);
        file.write_all(b"half").unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        assert_eq!(last_lines(&mut file, 1).unwrap(), 9);
    }
}
