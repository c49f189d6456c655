//! This program once more, in the background: a process of its own, which stays when this one ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tine_jailer::files;

use super::failure::Failure;
use super::output;

/// Lines of the process's own output that a failure shows.
const LINES: usize = 12;

/// Gives this process, which [`start`] has started, a session of its own: in it, it hears nothing of
/// a terminal's keys and end.
pub fn enter() -> Result<(), Failure> {
    let done = rustix::process::setsid().map(drop);
    done.map_err(|err| Failure::new(format!("cannot leave the terminal: {err}")))
}

/// Starts `tine WORDS`, whose messages go to the file `log`, and waits for the line that says that it
/// works; gives that line.
pub fn start(words: &[&str], log: &Path) -> Result<String, Failure> {
    let failed = |err: std::io::Error| {
        Failure::new(format!("cannot start a process in the background: {err}"))
    };
    let messages = files::create(log).map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(words).current_dir("/").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(messages);
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        // Its end, when it ends without a word.
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(failed)?;
    }
    if !line.is_empty() {
        return Ok(line);
    }
    let _ = child.wait();
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<String> = text.lines().map(output::printable).collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    Err(Failure::new(last.strip_prefix("tine: ").unwrap_or(&last)))
}
