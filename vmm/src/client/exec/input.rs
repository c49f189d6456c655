//! A command's input on its way: read from its user, sent, and kept until the agent says that the command has been given
//! it, so that a new connection can go on where the last one got to.

use std::collections::VecDeque;

use tine_guest_agent::exec::{STDIN_TOLD, Started};
use tokio::io::{AsyncReadExt, DuplexStream};

use super::passage::Passage;
use crate::client::error::Error;

/// Most bytes kept: as many as a guest's vsock holds for one connection.
const WINDOW: usize = 4 * STDIN_TOLD as usize;
/// Bytes sent at once.
pub const CHUNK: usize = 32 << 10;

/// The input.
pub struct Input {
    stdin: Option<DuplexStream>,
    /// What may have to be sent (again).
    kept: VecDeque<u8>,
    /// The place of `kept` in the whole input, where the agent tells how much it took.
    taken: Option<u64>,
    /// A connection has begun.
    begun: bool,
    /// The user's input has ended.
    ended: bool,
    /// Bytes were sent of which nobody will know whether they arrived.
    unknown: bool,
}

impl Input {
    pub fn new(stdin: Option<DuplexStream>) -> Self {
        Self {
            stdin,
            kept: VecDeque::new(),
            taken: None,
            begun: false,
            ended: false,
            unknown: false,
        }
    }

    /// Another connection can take over without losing or doubling input.
    pub fn can_go_on(&self) -> bool {
        !self.unknown
    }

    /// The next connection has to say that it takes the input over from this one.
    pub fn is_counted(&self) -> bool {
        self.stdin_was_used() && self.taken.is_some()
    }

    fn stdin_was_used(&self) -> bool {
        self.stdin.is_some() || self.ended
    }

    /// There is room for more.
    pub fn has_room(&self) -> bool {
        self.kept.len() < WINDOW
    }

    /// Reads some of it; 0 at its end.
    pub async fn read(&mut self, buffer: &mut [u8]) -> usize {
        let most = buffer.len().min(WINDOW.saturating_sub(self.kept.len()));
        match &mut self.stdin {
            Some(stdin) => stdin.read(&mut buffer[..most]).await.unwrap_or(0),
            None => std::future::pending().await,
        }
    }

    /// Keeps what was read; nothing is its end.
    pub fn keep(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        if bytes.is_empty() {
            self.ended = true;
            self.stdin = None;
        }
    }

    /// The last `count` bytes that were kept are sent, or the end if there are none.
    pub fn send(&mut self, count: usize, passage: &mut Passage) {
        let from = self.kept.len() - count;
        let bytes: Vec<u8> = self.kept.range(from..).copied().collect();
        match bytes.as_slice() {
            [] => passage.input(b""),
            // The agent takes whole frames: on a line that breaks often, large ones would never arrive.
            bytes => bytes.chunks(CHUNK).for_each(|part| passage.input(part)),
        }
        self.sent();
    }

    /// How much of it the command is known to have been given.
    pub fn progress(&self) -> Option<u64> {
        self.taken
    }

    fn sent(&mut self) {
        if self.taken.is_none() && !self.kept.is_empty() {
            self.unknown = true;
            self.kept.clear();
        }
    }

    /// A connection has begun: sends what the command has not been given, and the end.
    pub fn begin(&mut self, started: &Started, passage: &mut Passage) -> Result<(), Error> {
        match (self.taken, started.stdin_offset) {
            (Some(_), Some(offset)) => self.taken(offset)?,
            (None, offset) if !self.begun => self.taken = offset,
            (None, _) => {}
            (Some(_), None) => return Err(Error::protocol("it no longer tells of input")),
        }
        self.begun = true;
        if !self.kept.is_empty() {
            self.send(self.kept.len(), passage);
        }
        if self.ended {
            passage.input(b"");
        }
        Ok(())
    }

    /// The command has been given this much of the whole input.
    pub fn taken(&mut self, offset: u64) -> Result<(), Error> {
        let Some(taken) = &mut self.taken else {
            return Ok(());
        };
        let more = offset.checked_sub(*taken);
        let more = more.and_then(|more| usize::try_from(more).ok());
        match more.filter(|more| *more <= self.kept.len()) {
            Some(more) => {
                self.kept.drain(..more);
                *taken = offset;
                Ok(())
            }
            // Somebody else feeds the command too, and which bytes were taken is not known.
            None if offset > *taken => {
                self.taken = None;
                self.sent();
                self.unknown = true;
                Ok(())
            }
            None => Err(Error::protocol("it takes back that it took input")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(offset: Option<u64>) -> Started {
        Started {
            stdin_offset: offset,
            ..Default::default()
        }
    }

    fn give(input: &mut Input, bytes: &[u8], passage: &mut Passage) {
        input.keep(bytes);
        input.send(bytes.len(), passage);
    }

    #[test]
    fn what_was_not_taken_is_sent_again_and_no_more() {
        let (_user, stdin) = tokio::io::duplex(1);
        let mut input = Input::new(Some(stdin));
        let mut passage = Passage::default();
        // The command was fed by somebody before.
        input.begin(&started(Some(100)), &mut passage).unwrap();
        assert!(passage.out.is_empty());
        give(&mut input, b"abc", &mut passage);
        give(&mut input, b"def", &mut passage);
        input.taken(102).unwrap();
        assert!(input.can_go_on() && input.is_counted());
        let mut next = Passage::default();
        input.begin(&started(Some(104)), &mut next).unwrap();
        assert_eq!(next.out, [&[0, 0, 0, 0, 0, 0, 0, 2][..], b"ef"].concat());
        input.keep(b"");
        input.send(0, &mut next);
        // The end is told again, too.
        let mut last = Passage::default();
        input.begin(&started(Some(106)), &mut last).unwrap();
        assert_eq!(last.out, [0; 8]);
        assert!(input.taken(105).is_err(), "it goes back");
    }

    #[test]
    fn without_word_of_what_was_taken_nothing_is_guessed() {
        for (first, told) in [(None, None), (Some(0), Some(9))] {
            let (_user, stdin) = tokio::io::duplex(1);
            let mut input = Input::new(Some(stdin));
            let mut passage = Passage::default();
            input.begin(&started(first), &mut passage).unwrap();
            assert!(input.can_go_on());
            give(&mut input, b"abc", &mut passage);
            if let Some(told) = told {
                input.taken(told).unwrap();
            }
            assert!(!input.can_go_on() && !input.is_counted());
            assert!(input.has_room());
            give(&mut input, b"more", &mut passage);
            assert!(passage.out.ends_with(b"more"));
        }
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let (_user, stdin) = tokio::io::duplex(1);
        let mut input = Input::new(Some(stdin));
        let mut passage = Passage::default();
        input.begin(&started(Some(0)), &mut passage).unwrap();
        for _ in 0..WINDOW / CHUNK {
            assert!(input.has_room());
            give(&mut input, &[0; CHUNK], &mut passage);
        }
        assert!(!input.has_room());
        input.taken(STDIN_TOLD).unwrap();
        assert!(input.has_room());
    }
}
