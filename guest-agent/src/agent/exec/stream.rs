//! A command seen live over an upgraded connection: frames of output to the host, input and control from it.
//!
//! Each attached connection reads the logs through cursors of its own. When the connection ends, the command goes on;
//! another one can attach and gets what is kept.

use std::cell::Cell;
use std::rc::Rc;

use tine_guest_agent::exec::{AttachRequest, HostControl, STDIN_TOLD, StdinTaken};
use tine_guest_agent::frame::{self, Decoder, HEADER_LEN, Stream};

use super::{Exec, Output};
use crate::agent::conn::Conn;
use crate::agent::race;

/// Payload bytes put into one output frame.
const CHUNK: usize = 32 * 1024;

/// Bytes read from the host at once; input that the command does not take holds up further reading.
const INPUT_CHUNK: usize = 16 * 1024;

/// Serves one attached connection until the command has ended and everything was said, or the connection breaks.
pub async fn serve(exec: Rc<Exec>, conn: Conn, early: &[u8], from: AttachRequest) {
    // Attached before anything is awaited, so that nothing the command writes from here on is missed.
    let readers = Readers::attach(&exec, from);
    // And before the offset of the input is told, which nobody else changes any more then.
    let owner = if from.take_stdin {
        exec.take_stdin()
    } else {
        exec.stdin_owner()
    };
    let input = Feed {
        exec: &exec,
        owner,
        sent: Cell::new(false),
    };
    race(readers.write(&conn, &input), input.read(&conn, early)).await;
}

/// The cursors of one connection; detached when dropped.
struct Readers<'a> {
    exec: &'a Exec,
    stdout: u32,
    stderr: u32,
    offsets: [u64; 2],
}

impl<'a> Readers<'a> {
    fn attach(exec: &'a Exec, from: AttachRequest) -> Self {
        let (stdout, at_stdout) =
            exec.with_log(Output::Stdout, |log| log.attach(from.stdout_offset));
        let (stderr, at_stderr) =
            exec.with_log(Output::Stderr, |log| log.attach(from.stderr_offset));
        Self {
            exec,
            stdout,
            stderr,
            offsets: [at_stdout, at_stderr],
        }
    }

    /// Writes frames until the final record is out.
    async fn write(&self, conn: &Conn, input: &Feed<'_>) {
        let exec = self.exec;
        let mut out = Vec::new();
        let mut announced = false;
        let mut told = 0;
        loop {
            let changed = exec.changed.notified();
            // What a command that failed to start says is its record alone.
            if !announced && let Some(mut started) = exec.started() {
                [started.stdout_offset, started.stderr_offset] = self.offsets;
                told = started.stdin_offset.unwrap_or_default();
                control(&started, &mut out);
                announced = true;
            }
            if input.sent.get() && exec.stdin_taken() / STDIN_TOLD != told / STDIN_TOLD {
                told = exec.stdin_taken();
                let taken = StdinTaken { stdin_offset: told };
                control(&taken, &mut out);
            }
            let running = exec.is_running();
            let more = self.take(Output::Stdout, self.stdout, &mut out)
                | self.take(Output::Stderr, self.stderr, &mut out);
            if !running && !more {
                control(&exec.record(false), &mut out);
            }
            if out.is_empty() {
                changed.await;
                continue;
            }
            if conn.write_all(&out).await.is_err() || (!running && !more) {
                return;
            }
            out.clear();
        }
    }

    /// Moves some output to `out` as a frame. Returns whether there is more.
    fn take(&self, output: Output, reader: u32, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        let (count, more) = self.exec.with_log(output, |log| {
            (log.read(reader, CHUNK, out), !log.is_read(reader))
        });
        if count == 0 {
            out.truncate(start);
            return more;
        }
        let stream = if output == Output::Stdout {
            Stream::Stdout
        } else {
            Stream::Stderr
        };
        out[start..start + HEADER_LEN].copy_from_slice(&frame::header(stream, count));
        self.exec.room.notify_waiters();
        more
    }
}

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        self.exec
            .with_log(Output::Stdout, |log| log.detach(self.stdout));
        self.exec
            .with_log(Output::Stderr, |log| log.detach(self.stderr));
        self.exec.room.notify_waiters();
    }
}

fn control(message: &impl serde::Serialize, out: &mut Vec<u8>) {
    // Plain data always serialises.
    let json = serde_json::to_vec(message).unwrap_or_default();
    frame::encode(Stream::Control, &json, out);
}

/// The other direction of one connection.
struct Feed<'a> {
    exec: &'a Exec,
    /// It may feed the command for as long as this is the owner.
    owner: u32,
    /// It has sent input, and so wants to know how much of it was taken.
    sent: Cell<bool>,
}

impl Feed<'_> {
    /// Takes input and control until the connection is unusable. An orderly end of the host's half is no reason to
    /// stop: the command may have more to say.
    async fn read(&self, conn: &Conn, early: &[u8]) {
        let mut decoder = Decoder::new();
        decoder.push(early);
        let mut buffer = vec![0; INPUT_CHUNK];
        loop {
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => self.act(frame).await,
                    Ok(None) => break,
                    // The rest cannot be understood; the connection ends and the command goes on.
                    Err(_) => return,
                }
            }
            match conn.read(&mut buffer).await {
                Ok(0) => std::future::pending().await,
                Ok(count) => decoder.push(&buffer[..count]),
                Err(_) => return,
            }
        }
    }

    async fn act(&self, frame: frame::Frame) {
        let exec = self.exec;
        match frame.stream {
            Stream::Stdin if frame.payload.is_empty() => exec.feed_end_from(self.owner).await,
            Stream::Stdin => {
                self.sent.set(true);
                exec.feed_from(self.owner, &frame.payload).await;
            }
            Stream::Control => match serde_json::from_slice(&frame.payload) {
                Ok(HostControl::Resize(size)) => exec.resize(size).await,
                Ok(HostControl::Signal(signal)) if (1..=64).contains(&signal) => {
                    let _ = exec.signal(signal);
                }
                // Newer than this agent, or nonsense: nothing here depends on it.
                _ => {}
            },
            Stream::Stdout | Stream::Stderr => {}
        }
    }
}
