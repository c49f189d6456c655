//! The host's side of the conversation with the agent in a guest.
//!
//! The guest is not trusted: what it sends is bounded before it is kept, and a lie of its ends in
//! an error for the one who asked, nothing else.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use tine_devices::virtio::vsock::{VsockHandle, VsockListener};
use tine_guest_agent::error::ErrorBody;
use tine_guest_agent::exec::{ExecRequest, Record, State};
use tine_guest_agent::frame::{self, Decoder, Stream};
use tine_guest_agent::hello::{Hello, MAX_HELLO};
use tine_guest_agent::status::{ShutdownAction, ShutdownRequest};
use tine_guest_agent::{AGENT_PORT, HELLO_PORT, MAX_JSON_BODY, PROTOCOL_VERSION, STREAM_UPGRADE};

/// Most bytes of an answer's head.
const MAX_HEAD: usize = 16 << 10;
/// Most header lines of an answer.
const MAX_HEADERS: usize = 32;

/// What went wrong between the host and the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agent cannot be reached.
    #[error("cannot reach the guest's agent: {0}")]
    Connect(#[source] io::Error),
    /// The connection broke.
    #[error("the connection to the guest's agent broke: {0}")]
    Broken(#[source] io::Error),
    /// The agent said something that it must not.
    #[error("the guest's agent does not keep to the protocol: {0}")]
    Protocol(String),
    /// The agent refused.
    #[error("the guest's agent refused ({status}): {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// What the command printed cannot be passed on.
    #[error("cannot write the command's output: {0}")]
    Output(#[source] io::Error),
}

fn protocol(what: impl Into<String>) -> AgentError {
    AgentError::Protocol(what.into())
}

/// Waits for agents that announce themselves.
pub struct Hellos(VsockListener);

impl Hellos {
    /// Listens for the agent of a machine; do this before the guest runs.
    pub fn listen(vsock: &VsockHandle) -> io::Result<Self> {
        Ok(Self(vsock.listen(HELLO_PORT)?))
    }

    /// Waits for the next agent to announce itself. An exec sent from then on is accepted. The
    /// connection stays open for as long as the agent lives.
    pub fn next(&self) -> Result<(Hello, UnixStream), AgentError> {
        let gone = || AgentError::Connect(io::ErrorKind::NotConnected.into());
        let stream = self.0.accept(Duration::MAX).ok_or_else(gone)?;
        let mut line = Vec::new();
        let mut bounded = BufReader::new(&stream).take(MAX_HELLO as u64);
        bounded
            .read_until(b'\n', &mut line)
            .map_err(AgentError::Broken)?;
        let hello: Hello = serde_json::from_slice(&line)
            .map_err(|err| protocol(format!("its greeting is malformed: {err}")))?;
        if hello.protocol != PROTOCOL_VERSION {
            return Err(protocol(format!(
                "it speaks version {}, this monitor {PROTOCOL_VERSION}: rebuild the guest image",
                hello.protocol
            )));
        }
        Ok((hello, stream))
    }
}

/// A way to the agent of a running machine.
#[derive(Clone)]
pub struct Agent {
    vsock: VsockHandle,
}

/// Where a command's streams go.
pub struct Streams<'a> {
    /// What the command reads, if anything. Read on a thread of its own, which ends with the
    /// input or with the process.
    pub stdin: Option<Box<dyn Read + Send>>,
    /// What it writes to standard output.
    pub stdout: &'a mut dyn Write,
    /// What it writes to standard error.
    pub stderr: &'a mut dyn Write,
}

impl Agent {
    /// The agent behind `vsock`.
    pub fn new(vsock: VsockHandle) -> Self {
        Self { vsock }
    }

    /// Runs a command to its end, passing its streams through.
    pub fn exec(&self, request: &ExecRequest, streams: Streams) -> Result<Record, AgentError> {
        let body = serde_json::to_vec(request).map_err(|err| protocol(err.to_string()))?;
        let mut call = Call::send(&self.vsock, "POST", "/v1/exec", Some(STREAM_UPGRADE), &body)?;
        if call.head.status != 101 {
            let status = call.head.status;
            let body = call.body()?;
            return match serde_json::from_slice::<Record>(&body) {
                Ok(record) if status == 200 => Ok(record),
                _ => Err(refused(status, &body)),
            };
        }
        if let Some(stdin) = streams.stdin {
            let to_agent = call.stream.try_clone().map_err(AgentError::Broken)?;
            thread::Builder::new()
                .name("stdin".to_owned())
                .spawn(move || pump_stdin(stdin, to_agent))
                .map_err(AgentError::Broken)?;
        }
        let result = receive(&mut call, streams.stdout, streams.stderr);
        // The thread that feeds standard input shares the connection: end it for both.
        let _ = call.stream.shutdown(Shutdown::Both);
        result
    }

    /// Asks the guest to switch itself off in good order, see [`Self::shut_down`].
    pub fn power_off(&self) -> Result<(), AgentError> {
        self.shut_down(ShutdownAction::Poweroff)
    }

    /// Asks the guest to end in good order: processes ended, file systems written. The machine
    /// ends by itself soon after.
    pub fn shut_down(&self, action: ShutdownAction) -> Result<(), AgentError> {
        let request = ShutdownRequest {
            action,
            grace_ms: None,
        };
        let body = serde_json::to_vec(&request).map_err(|err| protocol(err.to_string()))?;
        let mut call = Call::send(&self.vsock, "POST", "/v1/shutdown", None, &body)?;
        match call.head.status {
            200..=299 => Ok(()),
            status => Err(refused(status, &call.body()?)),
        }
    }
}

fn refused(status: u16, body: &[u8]) -> AgentError {
    let message = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body.error.message,
        Err(_) => String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
    };
    AgentError::Refused { status, message }
}

fn pump_stdin(mut stdin: impl Read, mut agent: UnixStream) {
    let mut input = vec![0; 32 << 10];
    let mut frames = Vec::new();
    loop {
        // An input that cannot be read ends there, as for any other program.
        let len = match stdin.read(&mut input) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        frames.clear();
        frame::encode(Stream::Stdin, &input[..len], &mut frames);
        if agent.write_all(&frames).is_err() || len == 0 {
            return;
        }
    }
}

/// Passes output on until the command's record comes.
fn receive(
    call: &mut Call,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> Result<Record, AgentError> {
    let mut decoder = Decoder::new();
    decoder.push(&std::mem::take(&mut call.early));
    let mut buffer = vec![0; 64 << 10];
    loop {
        while let Some(frame) = decoder
            .next_frame()
            .map_err(|err| protocol(err.to_string()))?
        {
            let out: &mut dyn Write = match frame.stream {
                Stream::Stdout => &mut *stdout,
                Stream::Stderr => &mut *stderr,
                Stream::Stdin => return Err(protocol("it sent standard input")),
                Stream::Control => match serde_json::from_slice::<Record>(&frame.payload) {
                    Ok(record) if record.state != State::Running => return Ok(record),
                    // Other messages tell of progress.
                    _ => continue,
                },
            };
            out.write_all(&frame.payload)
                .and_then(|()| out.flush())
                .map_err(AgentError::Output)?;
        }
        match call.stream.read(&mut buffer) {
            Ok(0) => return Err(AgentError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(len) => decoder.push(&buffer[..len]),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(AgentError::Broken(err)),
        }
    }
}

struct Head {
    status: u16,
    content_length: Option<usize>,
}

/// One request and the head of its answer.
struct Call {
    stream: UnixStream,
    head: Head,
    /// What came in the same read as the head.
    early: Vec<u8>,
}

impl Call {
    fn send(
        vsock: &VsockHandle,
        method: &str,
        path: &str,
        upgrade: Option<&str>,
        body: &[u8],
    ) -> Result<Self, AgentError> {
        let mut stream = vsock.connect(AGENT_PORT).map_err(AgentError::Connect)?;
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
        stream.write_all(&request).map_err(AgentError::Broken)?;
        let (head, early) = read_head(&mut stream)?;
        Ok(Self {
            stream,
            head,
            early,
        })
    }

    /// The whole body of an answer that is no upgrade.
    fn body(&mut self) -> Result<Vec<u8>, AgentError> {
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
        (&mut self.stream)
            .take(rest)
            .read_to_end(&mut body)
            .map_err(AgentError::Broken)?;
        match body.len() == len {
            true => Ok(body),
            false => Err(AgentError::Broken(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

fn read_head(stream: &mut UnixStream) -> Result<(Head, Vec<u8>), AgentError> {
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
}
