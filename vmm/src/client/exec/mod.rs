//! A command in the guest, live: three streams, a way to signal it, and its end.
//!
//! A task of the runtime keeps the connection. When that breaks, the task attaches to the same
//! request again, from where output and input had got to: the command is never run a second time, and
//! no byte of its output or input is lost or seen twice.

mod driver;
mod input;
mod link;
mod passage;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tine_guest_agent::exec::{AttachRequest, ExecRequest, HostControl, Record, Started, TtySize};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, oneshot};

use self::driver::{Driver, Fixed};
use super::error::Error;
use super::http::Http;

/// Bytes of each stream that are under way between the connection and whoever reads.
const PIPE: usize = 64 << 10;

/// A running command, or one that has ended and whose output is still to be read.
///
/// Reading no output holds the command up, as with any pipe. A stream that is dropped is
/// discarded; standard input that is dropped has ended. Dropping the whole `Exec` leaves the
/// command running: see [`Machine::attach`](super::Machine::attach).
#[derive(Debug)]
pub struct Exec {
    // First, and so dropped first: whoever has let go of all does not mean the input to end.
    outcome: oneshot::Receiver<Result<Record, Error>>,
    request_id: Arc<str>,
    started: Option<oneshot::Receiver<Started>>,
    control: Control,
    /// The command's standard input, if the request asked for one.
    pub stdin: Option<Stdin>,
    /// Its standard output; everything when it has a terminal.
    pub stdout: Option<Output>,
    /// Its standard error.
    pub stderr: Option<Output>,
}

/// How a command is attached to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attach {
    /// What the caller already has of the output.
    pub from: AttachRequest,
    /// Input is passed to the command.
    pub stdin: bool,
    /// The command has a terminal, and so a person at it: input that may be lost when the connection
    /// breaks (of an agent that does not tell what it took) is typed again, and no reason to give up.
    pub terminal: bool,
}

impl Exec {
    pub(super) async fn submit(http: &Http, request: &ExecRequest) -> Result<Self, Error> {
        let link = link::submit(http, request).await?;
        let fixed = Fixed {
            http: http.clone(),
            request_id: request.request_id.as_str().into(),
            terminal: request.tty.is_some(),
            whole: true,
        };
        let stdin = request.stdin || request.tty.is_some();
        Ok(Self::over(link, fixed, AttachRequest::default(), stdin))
    }

    pub(super) async fn attach(http: &Http, id: &str, how: Attach) -> Result<Self, Error> {
        let link = link::attach(http, id, how.from).await?;
        let fixed = Fixed {
            http: http.clone(),
            request_id: id.into(),
            terminal: how.terminal,
            whole: false,
        };
        Ok(Self::over(link, fixed, how.from, how.stdin))
    }

    fn over(link: link::Link, fixed: Fixed, from: AttachRequest, takes_input: bool) -> Self {
        let (stdin_ours, stdin) = tokio::io::duplex(PIPE);
        let (stdout_ours, stdout) = tokio::io::duplex(PIPE);
        let (stderr_ours, stderr) = tokio::io::duplex(PIPE);
        let (outcome_sender, outcome) = oneshot::channel();
        let (started_sender, started) = oneshot::channel();
        let (controls, received) = mpsc::channel(16);
        let request_id = fixed.request_id.clone();
        let driver = Driver::new(
            fixed,
            from,
            takes_input.then_some(stdin_ours),
            [stdout_ours, stderr_ours],
            received,
            started_sender,
        );
        tokio::spawn(driver.run(link, outcome_sender));
        Self {
            outcome,
            request_id,
            started: Some(started),
            control: Control(controls),
            stdin: takes_input.then_some(Stdin(stdin)),
            stdout: Some(Output(stdout)),
            stderr: Some(Output(stderr)),
        }
    }

    /// The name under which the machine knows the command.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Waits until the command has been started. `None` when it cannot be, or this was asked
    /// before: [`Exec::wait`] says more.
    pub async fn started(&mut self) -> Option<Started> {
        self.started.take()?.await.ok()
    }

    /// A way to signal the command while its streams are elsewhere.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits for the command's end. Streams that have not been taken are let go of: input ends,
    /// output is discarded. The record's own `stdout` and `stderr` are empty.
    pub async fn wait(mut self) -> Result<Record, Error> {
        self.stdin = None;
        self.stdout = None;
        self.stderr = None;
        self.ended().await
    }

    /// Waits for the command's end, and leaves the streams alone: somebody has to read them.
    pub async fn ended(&mut self) -> Result<Record, Error> {
        match (&mut self.outcome).await {
            Ok(result) => result,
            Err(_) => Err(Error::cut()),
        }
    }
}

/// Sends signals and sizes to a command.
#[derive(Debug, Clone)]
pub struct Control(mpsc::Sender<HostControl>);

impl Control {
    /// Sends a signal to the command's process group. Nothing happens when it has ended.
    pub async fn signal(&self, number: i32) {
        let _ = self.0.send(HostControl::Signal(number)).await;
    }

    /// Tells the command's terminal its size.
    pub async fn resize(&self, size: TtySize) {
        let _ = self.0.send(HostControl::Resize(size)).await;
    }
}

/// A command's standard input. Dropping it, or shutting it down, is the end of file.
#[derive(Debug)]
pub struct Stdin(DuplexStream);

impl AsyncWrite for Stdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// One of a command's output streams. Dropping it discards what is still to come.
#[derive(Debug)]
pub struct Output(DuplexStream);

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}
