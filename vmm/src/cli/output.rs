//! Writing what commands and machines say: bytes as they are to whoever reads them, text for
//! people without what would move their terminal.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::stdio;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Most bytes that a pipe with any room at all takes without waiting.
const PIECE: usize = 4096;

/// One of the process's outputs, written to without ever waiting in the system: signals and input
/// are served while a slow reader holds it up.
pub struct Sink {
    fd: BorrowedFd<'static>,
    /// Made when there is no room for the first time.
    watched: Option<AsyncFd<BorrowedFd<'static>>>,
}

impl Sink {
    /// Standard output.
    pub fn stdout() -> Self {
        Self::of(stdio::stdout())
    }

    /// Standard error.
    pub fn stderr() -> Self {
        Self::of(stdio::stderr())
    }

    fn of(fd: BorrowedFd<'static>) -> Self {
        Self { fd, watched: None }
    }

    /// Writes everything.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.room().await?;
            match rustix::io::write(self.fd, &bytes[..bytes.len().min(PIECE)]) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                // Somebody else who has it open does not want to wait, and took the room.
                Err(Errno::AGAIN) => tokio::task::yield_now().await,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    async fn room(&mut self) -> io::Result<()> {
        if has_room(self.fd)? {
            return Ok(());
        }
        if self.watched.is_none() {
            // SAFETY: it is one of the process's standard descriptors, which nobody closes.
            let watched = unsafe { AsyncFd::register_with_interest(self.fd, Interest::WRITABLE) };
            self.watched = Some(watched?);
        }
        while let Some(watched) = &self.watched {
            let mut ready = watched.writable().await?;
            if has_room(self.fd)? {
                break;
            }
            ready.clear_ready();
        }
        Ok(())
    }
}

fn has_room(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Prints to standard output. A reader that has gone away is how a pipeline ends, and no error.
pub fn print(text: &str) -> Result<(), super::failure::Failure> {
    use io::Write as _;
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Ok(()),
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => {
            Err(super::failure::Failure::signal(libc::SIGPIPE))
        }
        Err(err) => Err(super::failure::Failure::new(format!("cannot print: {err}"))),
    }
}

/// A value as indented JSON with a line's end.
pub fn pretty(value: &impl serde::Serialize) -> String {
    // Plain data always serialises.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

/// Text of a guest as a line that moves no terminal.
pub fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "\u{fffd}")
}

/// Rows as columns, each as wide as its widest. What is in them may be a guest's text.
pub fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["ID", "STATE"]), row(["long-id", "x"])]);
        assert_eq!(text, "ID       STATE\nlong-id  x\n");
        let text = table(&[row(["a\x1b[2J", "b\nc"])]);
        assert_eq!(text, "a\u{fffd}[2J  b\u{fffd}c\n");
    }

    #[test]
    fn guests_move_no_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
