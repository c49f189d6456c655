//! Clients of the listening socket until they have sent their `CONNECT` line.
//!
//! A client can be slow, silent or wrong without cost to others: it holds one descriptor and a
//! line's worth of memory, for a bounded time, and when there are too many the oldest goes.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;

use super::muxer::{Client, PORT_ANY};
use super::reactor::{Reactor, Token};
use super::stream::{peek_bytes, receive_bytes};
use super::{Limits, MAX_CLIENTS};

/// The longest line is `CONNECT 4294967295` with its end; this leaves room for blanks.
const MAX_LINE_LEN: usize = 32;

/// All clients that are still to send their line, oldest first.
pub struct Clients {
    waiting: BTreeMap<Token, Waiting>,
    limits: Limits,
}

struct Waiting {
    stream: UnixStream,
    line: [u8; MAX_LINE_LEN],
    len: usize,
}

enum Progress {
    Incomplete,
    Port(u32),
    Over,
}

impl Clients {
    /// No clients.
    pub fn new(limits: Limits) -> Self {
        Self {
            waiting: BTreeMap::new(),
            limits,
        }
    }

    /// Takes a new client.
    pub fn add(&mut self, reactor: &mut Reactor, stream: UnixStream) {
        if self.waiting.len() == MAX_CLIENTS
            && let Some((oldest, _)) = self.waiting.pop_first()
        {
            reactor.clear_deadline(oldest);
        }
        let token = reactor.new_token();
        if reactor.watch(&stream, token).is_err() {
            return;
        }
        reactor.set_deadline(token, self.limits.client);
        let waiting = Waiting {
            stream,
            line: [0; MAX_LINE_LEN],
            len: 0,
        };
        self.waiting.insert(token, waiting);
    }

    /// Whether `token` is one of these clients.
    pub fn contains(&self, token: Token) -> bool {
        self.waiting.contains_key(&token)
    }

    /// Reads on from a client; returns it when its line is complete.
    pub fn on_ready(&mut self, reactor: &mut Reactor, token: Token) -> Option<Client> {
        let progress = self.waiting.get_mut(&token)?.read();
        if matches!(progress, Progress::Incomplete) {
            return None;
        }
        reactor.clear_deadline(token);
        let stream = self.waiting.remove(&token)?.stream;
        match progress {
            Progress::Port(port) => Some(Client {
                stream,
                port,
                token: Some(token),
            }),
            _ => None,
        }
    }

    /// Closes a client whose deadline has passed.
    pub fn on_deadline(&mut self, token: Token) {
        self.waiting.remove(&token);
    }

    /// Closes all.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

impl Waiting {
    /// Reads up to the end of the line, and nothing behind it: that is for the guest.
    fn read(&mut self) -> Progress {
        loop {
            let room = &mut self.line[self.len..];
            let seen = match peek_bytes(&self.stream, room) {
                Ok(0) => return Progress::Over,
                Ok(seen) => seen,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Progress::Incomplete,
                Err(_) => return Progress::Over,
            };
            let end = room[..seen].iter().position(|byte| *byte == b'\n');
            let take = end.map_or(seen, |end| end + 1);
            if receive_bytes(&self.stream, &mut room[..take]).ok() != Some(take) {
                return Progress::Over;
            }
            self.len += take;
            if end.is_some() {
                return match parse(&self.line[..self.len]) {
                    Some(port) => Progress::Port(port),
                    None => Progress::Over,
                };
            }
            if self.len == MAX_LINE_LEN {
                return Progress::Over;
            }
        }
    }
}

fn parse(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let command = words.next()?;
    let port = words.next()?;
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if !command.eq_ignore_ascii_case("connect") || words.next().is_some() || !digits {
        return None;
    }
    port.parse().ok().filter(|port| *port != PORT_ANY)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_connect_line_names_a_port() {
        assert_eq!(parse(b"CONNECT 52\n"), Some(52));
        assert_eq!(parse(b"connect 4294967294\r\n"), Some(4_294_967_294));
        assert_eq!(parse(b"CONNECT  0 \n"), Some(0));
    }

    #[test]
    fn another_line_names_none() {
        for line in [
            "\n",
            "CONNECT\n",
            "CONNECT \n",
            "CONNECT -1\n",
            "CONNECT +1\n",
            "CONNECT 1 2\n",
            "CONNECT 4294967295\n",
            "CONNECT 4294967296\n",
            "CONNECT 0x10\n",
            "CONNECT52\n",
            "GET / HTTP/1.1\n",
            "CONNECT \u{661}\n",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(parse(b"CONNECT \xff\n"), None);
    }
}
