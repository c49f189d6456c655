//! The seam between a connection, which is waited for, and a thread that reads or writes files.

use std::io::{self, Read, Write};

use tine::client::{Bytes, Content, Error};
use tokio::sync::mpsc;

/// Bytes handed over at once.
const PIECE: usize = 64 << 10;
/// Pieces that are under way.
const PIECES: usize = 4;

/// From a thread that writes to a connection.
pub fn to_connection() -> (PieceWriter, mpsc::Receiver<io::Result<Bytes>>) {
    let (sender, receiver) = mpsc::channel(PIECES);
    let held = Vec::with_capacity(PIECE);
    (PieceWriter { sender, held }, receiver)
}

/// Gathers what is written and hands it over.
pub struct PieceWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    held: Vec<u8>,
}

impl PieceWriter {
    /// Hands over the rest. Without this the other side takes what it has for incomplete.
    pub fn finish(mut self) -> io::Result<()> {
        self.hand_over()
    }

    /// Breaks off.
    pub fn fail(self, err: io::Error) {
        // A connection that has gone needs no breaking off.
        let _ = self.sender.blocking_send(Err(err));
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.held, Vec::with_capacity(PIECE));
        let sent = self.sender.blocking_send(Ok(piece.into()));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE - self.held.len());
        self.held.extend_from_slice(&bytes[..count]);
        if self.held.len() == PIECE {
            self.hand_over()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From a connection to a thread that reads.
pub fn from_connection() -> (mpsc::Sender<Bytes>, PieceReader) {
    let (sender, receiver) = mpsc::channel(PIECES);
    let held = Bytes::new();
    (sender, PieceReader { receiver, held })
}

/// Reads what is handed over, to its end.
pub struct PieceReader {
    receiver: mpsc::Receiver<Bytes>,
    held: Bytes,
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.held.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.held = piece,
                None => return Ok(0),
            }
        }
        let piece = self.held.split_to(self.held.len().min(buffer.len()));
        buffer[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

/// Hands an answer over until its end, or until nobody wants more.
pub async fn hand_over(mut content: Content, to: mpsc::Sender<Bytes>) -> Result<(), Error> {
    while let Some(piece) = content.next().await? {
        if to.send(piece).await.is_err() {
            break;
        }
    }
    Ok(())
}
