//! What one connection to a command has under way, in each direction.

use std::io;

use tine_guest_agent::exec::HostControl;
use tine_guest_agent::frame::{self, Decoder, Stream};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::net::unix::ReadHalf;

/// One output stream.
pub struct Pipe {
    /// Where it goes; nowhere when nobody reads it any more.
    pub to: Option<DuplexStream>,
    /// Bytes taken off connections so far.
    pub offset: u64,
}

/// A frame's payload on its way to the reader.
pub struct Pending {
    pub output: usize,
    pub bytes: Vec<u8>,
    pub written: usize,
}

/// What is true of one connection only.
#[derive(Default)]
pub struct Passage {
    /// The agent has said that the command runs.
    pub started: bool,
    /// Frames that are to be written.
    pub out: Vec<u8>,
    /// Nothing can be written any more.
    closed: bool,
}

impl Passage {
    pub fn control(&mut self, control: &HostControl) {
        // Plain data always serialises.
        let json = serde_json::to_vec(control).unwrap_or_default();
        self.frame(Stream::Control, &json);
    }

    /// Input; empty is its end.
    pub fn input(&mut self, bytes: &[u8]) {
        self.frame(Stream::Stdin, bytes);
    }

    fn frame(&mut self, stream: Stream, payload: &[u8]) {
        if !self.closed {
            frame::encode(stream, payload, &mut self.out);
        }
    }

    /// Nothing more can be written.
    pub fn deaf(&mut self) {
        self.closed = true;
        self.out.clear();
    }
}

/// Moves some of what is pending to its reader.
pub async fn deliver(outputs: &mut [Pipe; 2], pending: &mut Option<Pending>) {
    let Some(next) = pending else { return };
    let pipe = &mut outputs[next.output].to;
    let wrote = match pipe {
        Some(to) => to.write(&next.bytes[next.written..]).await,
        None => Ok(next.bytes.len()),
    };
    match wrote {
        Ok(count) => next.written += count,
        // Nobody reads it any more.
        Err(_) => {
            *pipe = None;
            next.written = next.bytes.len();
        }
    }
    if next.written >= next.bytes.len() {
        *pending = None;
    }
}

/// Takes what has come, without waiting. An error when the connection is over.
pub fn take(from: &ReadHalf<'_>, decoder: &mut Decoder) -> io::Result<()> {
    let mut buffer = [0; 4096];
    match from.try_read(&mut buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            decoder.push(&buffer[..count]);
            Ok(())
        }
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(err) => Err(err),
    }
}
