//! A command's streams over a machine's socket, frame by frame.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;
use tine_guest_agent::STREAM_UPGRADE;
use tine_guest_agent::frame::{self, Decoder, Stream};

/// The bytes of a request that upgrades its connection.
pub fn upgrade(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: {STREAM_UPGRADE}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// All that came over a stream.
#[derive(Debug, Default)]
pub struct Whole {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The last control frame; nothing when the connection ended before there was one.
    pub record: Value,
}

impl Whole {
    /// Feeds standard input on a connection that was asked to be upgraded.
    pub fn feed(stream: &mut UnixStream, input: &[u8]) {
        let mut frames = Vec::new();
        frame::encode(Stream::Stdin, input, &mut frames);
        frame::encode(Stream::Stdin, b"", &mut frames);
        stream.write_all(&frames).expect("the input is taken");
    }

    /// Reads to the connection's end.
    pub fn read(stream: &mut UnixStream) -> Self {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
            head.push(byte[0]);
        }
        let mut whole = Self::default();
        if !head.starts_with(b"HTTP/1.1 101 ") {
            return whole;
        }
        let mut decoder = Decoder::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            while let Some(frame) = decoder.next_frame().expect("frames") {
                match frame.stream {
                    Stream::Stdout => whole.stdout.extend(frame.payload),
                    Stream::Stderr => whole.stderr.extend(frame.payload),
                    _ => whole.record = serde_json::from_slice(&frame.payload).expect("JSON"),
                }
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return whole,
                Ok(count) => decoder.push(&buffer[..count]),
            }
        }
    }
}
