//! One request to the agent and its answer, with bounds on what a hostile one can say.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tine_devices::virtio::vsock::VsockHandle;
use tine_guest_agent::{AGENT_PORT, MAX_JSON_BODY};

use super::{AgentError, protocol};

/// Most bytes of an answer's head.
const MAX_HEAD: usize = 16 << 10;
/// Most header lines of an answer.
const MAX_HEADERS: usize = 32;

pub(super) struct Head {
    pub(super) status: u16,
    content_length: Option<usize>,
}

/// One request and the head of its answer.
pub(super) struct Call {
    pub(super) stream: UnixStream,
    pub(super) head: Head,
    /// What came in the same read as the head.
    pub(super) early: Vec<u8>,
    deadline: Option<Instant>,
}

impl Call {
    /// Sends a request. With a deadline, an answer that is not whole by then is an error of the kind `TimedOut`.
    pub(super) fn send(
        vsock: &VsockHandle,
        method: &str,
        path: &str,
        upgrade: Option<&str>,
        body: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Self, AgentError> {
        let stream = vsock.connect(AGENT_PORT).map_err(AgentError::Connect)?;
        let connection = match upgrade {
            Some(protocol) => format!("Connection: Upgrade\r\nUpgrade: {protocol}\r\n"),
            None => "Connection: close\r\n".to_owned(),
        };
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: agent\r\n{connection}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        let mut timed = Timed {
            stream: &stream,
            deadline,
        };
        timed.write_all(&request).map_err(AgentError::Broken)?;
        let (head, early) = read_head(&mut timed)?;
        Ok(Self {
            stream,
            head,
            early,
            deadline,
        })
    }

    /// The whole body of an answer that is no upgrade.
    pub(super) fn body(&mut self) -> Result<Vec<u8>, AgentError> {
        let len = self
            .head
            .content_length
            .ok_or_else(|| protocol("an answer without length"))?;
        if len > MAX_JSON_BODY {
            return Err(protocol(format!("an answer of {len} bytes")));
        }
        let mut body = std::mem::take(&mut self.early);
        body.truncate(len);
        let rest = (len - body.len()) as u64;
        let timed = Timed {
            stream: &self.stream,
            deadline: self.deadline,
        };
        timed
            .take(rest)
            .read_to_end(&mut body)
            .map_err(AgentError::Broken)?;
        match body.len() == len {
            true => Ok(body),
            false => Err(AgentError::Broken(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// A stream that ends at a deadline, however slowly its peer goes on.
struct Timed<'a> {
    stream: &'a UnixStream,
    deadline: Option<Instant>,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(deadline) = self.deadline else {
            return Ok(None);
        };
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// What the system calls "would block" where a time limit was set.
fn timed_out(err: io::Error) -> io::Error {
    match err.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => err,
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_write_timeout(Some(left))?;
        }
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read_head(stream: &mut impl Read) -> Result<(Head, Vec<u8>), AgentError> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return Err(AgentError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(len) => bytes.extend_from_slice(&part[..len]),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(AgentError::Broken(err)),
        }
        if let Some((head, len)) = parse_head(&bytes)? {
            return Ok((head, bytes.split_off(len)));
        }
        if bytes.len() > MAX_HEAD {
            return Err(protocol("the head of its answer is too long"));
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, AgentError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let len = match answer
        .parse(bytes)
        .map_err(|err| protocol(err.to_string()))?
    {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(len) => len,
    };
    let length = answer
        .headers
        .iter()
        .find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let content_length = match length {
        None => None,
        Some(header) => {
            let text = std::str::from_utf8(header.value).ok().map(str::trim);
            let number = text.and_then(|text| text.parse().ok());
            Some(number.ok_or_else(|| protocol("its answer has a malformed length"))?)
        }
    };
    let status = answer
        .code
        .ok_or_else(|| protocol("its answer has no status"))?;
    Ok(Some((
        Head {
            status,
            content_length,
        },
        len,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_head_is_found_wherever_it_is_cut() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        for len in 0..whole.len() - 2 {
            assert!(parse_head(&whole[..len]).unwrap().is_none(), "{len}");
        }
        let (head, len) = parse_head(whole).unwrap().unwrap();
        assert_eq!(
            (head.status, head.content_length, &whole[len..]),
            (200, Some(2), &b"hi"[..])
        );
    }

    #[test]
    fn lies_are_errors() {
        for bad in [
            &b"HTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
            b"\xff\xff\xff",
        ] {
            assert!(
                parse_head(bad).is_err(),
                "{:?}",
                String::from_utf8_lossy(bad)
            );
        }
    }

    #[test]
    fn an_endless_head_is_cut_off() {
        let (mut host, mut guest) = UnixStream::pair().unwrap();
        let flood = thread::spawn(move || {
            let _ = guest.write_all(b"HTTP/1.1 200 OK\r\n");
            while guest.write_all(b"X-Flood: yes\r\n").is_ok() {}
        });
        assert!(matches!(read_head(&mut host), Err(AgentError::Protocol(_))));
        drop(host);
        flood.join().unwrap();
    }

    #[test]
    fn a_dripping_answer_ends_at_the_deadline() {
        let (host, mut guest) = UnixStream::pair().unwrap();
        let drip = thread::spawn(move || {
            let pause = Duration::from_millis(10);
            while guest.write_all(b"H").is_ok() {
                thread::sleep(pause);
            }
        });
        let begun = Instant::now();
        let deadline = Some(begun + Duration::from_millis(100));
        let mut timed = Timed {
            stream: &host,
            deadline,
        };
        let mut all = Vec::new();
        let err = timed.read_to_end(&mut all).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_millis(100));
        drop(host);
        drip.join().unwrap();
    }
}
