//! Answers that come piece by piece.

use std::io;
use std::marker::PhantomData;

use hyper::body::{Bytes, Incoming};
use serde::de::DeserializeOwned;

use super::error::Error;
use super::http::next_piece;

/// Most bytes of one line.
const MAX_LINE: usize = 64 << 10;

/// The bytes of an answer, as they come. Whoever reads slowly slows the machine down.
#[derive(Debug)]
pub struct Content(Incoming);

impl Content {
    pub(super) fn new(body: Incoming) -> Self {
        Self(body)
    }

    /// The next bytes; `None` at the end. A connection that breaks before it is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        next_piece(&mut self.0).await
    }

    /// All of it, `most` bytes at most.
    pub async fn collect(mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await? {
            if all.len() + piece.len() > most {
                let err = io::Error::from(io::ErrorKind::FileTooLarge);
                return Err(Error::broken(err));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}

/// An answer of JSON lines, as they come; empty lines are signs of life.
#[derive(Debug)]
pub struct Lines<T> {
    content: Content,
    held: Vec<u8>,
    kind: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    pub(super) fn new(body: Incoming) -> Self {
        Self {
            content: Content::new(body),
            held: Vec::new(),
            kind: PhantomData,
        }
    }

    /// The next line; `None` when there are no more.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.held.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let value = serde_json::from_slice(&line);
                return value
                    .map(Some)
                    .map_err(|err| Error::protocol(format!("a line of its answer: {err}")));
            }
            if self.held.len() > MAX_LINE {
                return Err(Error::protocol("a line of its answer is too long"));
            }
            match self.content.next().await? {
                Some(piece) => self.held.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}
