//! Frames of an upgraded connection: eight header bytes, then the payload.
//!
//! The header is the stream's number, three zero bytes and the payload's length as a big-endian `u32`: what container
//! engines use for attach. A payload is at most [`MAX_PAYLOAD`] bytes, so that a decoder's memory is bounded whatever
//! the other side sends. An empty frame on [`Stream::Stdin`] is the end of the input.

use std::fmt;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 8;

/// Most payload bytes in one frame.
pub const MAX_PAYLOAD: usize = 128 * 1024;

/// Which of a command's streams a frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Host to agent: the command's standard input. Empty means end of file.
    Stdin = 0,
    /// Agent to host: standard output, or everything when the command has a terminal.
    Stdout = 1,
    /// Agent to host: standard error.
    Stderr = 2,
    /// Both ways: JSON, see [`crate::exec::HostControl`] and [`crate::exec::Record`].
    Control = 3,
}

impl Stream {
    /// The stream with this number in a header.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Stdin),
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            3 => Some(Self::Control),
            _ => None,
        }
    }
}

/// One whole frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The stream it belongs to.
    pub stream: Stream,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Why a byte sequence is not frames. The connection cannot go on after any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The stream number is none of the four.
    UnknownStream(u8),
    /// One of the three reserved bytes is not zero.
    Reserved,
    /// The header announces more than [`MAX_PAYLOAD`].
    TooLong(u32),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownStream(number) => write!(f, "frame for unknown stream {number}"),
            Self::Reserved => f.write_str("frame header with reserved bytes set"),
            Self::TooLong(len) => write!(f, "frame of {len} bytes, the limit is {MAX_PAYLOAD}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The header of a frame of `len` payload bytes.
///
/// # Panics
/// If `len` is above [`MAX_PAYLOAD`]: the sender splits what is longer (see [`encode`]).
pub fn header(stream: Stream, len: usize) -> [u8; HEADER_LEN] {
    assert!(len <= MAX_PAYLOAD, "frame payload of {len} bytes");
    let [a, b, c, d] = (len as u32).to_be_bytes();
    [stream as u8, 0, 0, 0, a, b, c, d]
}

/// Appends `payload` to `out` as frames, as many as its length needs. An empty payload becomes one empty frame.
pub fn encode(stream: Stream, payload: &[u8], out: &mut Vec<u8>) {
    if payload.is_empty() {
        out.extend_from_slice(&header(stream, 0));
    }
    for part in payload.chunks(MAX_PAYLOAD) {
        out.extend_from_slice(&header(stream, part.len()));
        out.extend_from_slice(part);
    }
}

/// Takes bytes as they arrive and gives whole frames.
///
/// It holds at most one unfinished frame and what was pushed since: the caller takes every frame before pushing more.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where the first unread byte of `buffer` is.
    start: usize,
}

impl Decoder {
    /// A decoder that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes held that belong to no frame given out yet.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The next whole frame, or `None` until more bytes have come.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let unread = &self.buffer[self.start..];
        let Some((head, rest)) = unread.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let [number, r0, r1, r2, len @ ..] = *head;
        let stream = Stream::from_number(number).ok_or(FrameError::UnknownStream(number))?;
        if [r0, r1, r2] != [0; 3] {
            return Err(FrameError::Reserved);
        }
        let len = u32::from_be_bytes(len);
        if len as usize > MAX_PAYLOAD {
            return Err(FrameError::TooLong(len));
        }
        let Some(payload) = rest.get(..len as usize) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.start += HEADER_LEN + payload.len();
        Ok(Some(Frame { stream, payload }))
    }
}
