//! The host's side of the conversation with the agent in a guest.
//!
//! The guest is not trusted: what it sends is bounded before it is kept, and a lie of its ends in
//! an error for the one who asked, nothing else.

mod call;
mod refresh;

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
use tine_guest_agent::{HELLO_PORT, PROTOCOL_VERSION, STREAM_UPGRADE};

use self::call::Call;
pub use self::refresh::{freeze, refresh, thaw};

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
        check_version(&hello)?;
        Ok((hello, stream))
    }
}

fn check_version(hello: &Hello) -> Result<(), AgentError> {
    match hello.protocol {
        PROTOCOL_VERSION => Ok(()),
        other => Err(protocol(format!(
            "it speaks version {other}, this monitor {PROTOCOL_VERSION}: rebuild the guest image"
        ))),
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
        let mut call = Call::send(
            &self.vsock,
            "POST",
            "/v1/exec",
            Some(STREAM_UPGRADE),
            &body,
            None,
        )?;
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
        let mut call = Call::send(&self.vsock, "POST", "/v1/shutdown", None, &body, None)?;
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
