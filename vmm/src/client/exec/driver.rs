//! The task that keeps a command's connection: frames one way, input and control the other.
//!
//! Each direction goes on by itself. A frame is taken off the connection only when what came
//! before it has been read, so that a slow reader slows the command down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tine_guest_agent::exec::{AttachRequest, HostControl, Record, Started, State, StdinTaken};
use tine_guest_agent::frame::{Decoder, Frame, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, oneshot};

use super::input::{self, Input};
use super::link::{self, Link, Patience};
use super::passage::{Passage, Pending, Pipe, deliver, take};
use crate::client::error::Error;
use crate::client::http::Http;

/// Bytes read at once.
const CHUNK: usize = 64 << 10;
/// A connection that has stood this long was of use.
const OF_USE: Duration = Duration::from_secs(2);

/// What a command's connection is for, whichever it is.
pub struct Fixed {
    pub http: Http,
    pub request_id: Arc<str>,
    /// There is a person who types again what was lost.
    pub terminal: bool,
    /// All output is wanted, so that what is missing in front is lost.
    pub whole: bool,
}

/// The state that outlives a connection.
pub struct Driver {
    fixed: Fixed,
    input: Input,
    outputs: [Pipe; 2],
    controls: mpsc::Receiver<HostControl>,
    started: Option<oneshot::Sender<Started>>,
    /// Kept to tell a new connection.
    size: Option<HostControl>,
    attached_before: bool,
    lost: u64,
}

/// Why a connection is over.
enum End {
    Record(Record),
    Error(Error),
    /// Nobody is interested any more.
    Dropped,
}

impl Driver {
    pub fn new(
        fixed: Fixed,
        from: AttachRequest,
        stdin: Option<DuplexStream>,
        [stdout, stderr]: [DuplexStream; 2],
        controls: mpsc::Receiver<HostControl>,
        started: oneshot::Sender<Started>,
    ) -> Self {
        let pipe = |to, offset| Pipe {
            to: Some(to),
            offset,
        };
        Self {
            fixed,
            input: Input::new(stdin),
            outputs: [
                pipe(stdout, from.stdout_offset),
                pipe(stderr, from.stderr_offset),
            ],
            controls,
            started: Some(started),
            size: None,
            attached_before: false,
            lost: 0,
        }
    }

    /// Works until the command has ended, or cannot be followed any more.
    pub async fn run(
        mut self,
        mut link: Link,
        mut outcome: oneshot::Sender<Result<Record, Error>>,
    ) {
        let mut patience = Patience::default();
        let result = loop {
            let since = Instant::now();
            let before = (self.offsets(), self.input.progress());
            let mut passage = Passage::default();
            let broken = match self.serve(&mut link, &mut passage, &mut outcome).await {
                End::Record(record) => break self.complete(record),
                End::Dropped => return,
                End::Error(err @ Error::Broken(_)) => err,
                End::Error(err) => break Err(err),
            };
            if !self.input.can_go_on() && !self.fixed.terminal {
                let request_id = self.fixed.request_id.to_string();
                break Err(Error::InputCut { request_id });
            }
            let now = (self.offsets(), self.input.progress());
            if now != before || since.elapsed() >= OF_USE {
                patience.renew();
            }
            let (http, id) = (&self.fixed.http, &self.fixed.request_id);
            let from = AttachRequest {
                take_stdin: self.input.is_counted(),
                ..self.offsets()
            };
            let again = link::attach_again(http, id, from, &mut patience, broken);
            link = tokio::select! {
                again = again => match again {
                    Ok(link) => link,
                    Err(err) => break Err(err),
                },
                () = outcome.closed() => return,
            };
        };
        // Readers see the end before the one who waits for it is told.
        drop(self);
        let _ = outcome.send(result);
    }

    fn offsets(&self) -> AttachRequest {
        AttachRequest {
            stdout_offset: self.outputs[0].offset,
            stderr_offset: self.outputs[1].offset,
            ..Default::default()
        }
    }

    fn complete(&self, record: Record) -> Result<Record, Error> {
        match self.lost {
            0 => Ok(record),
            bytes => Err(Error::Lost {
                bytes,
                record: Box::new(record),
            }),
        }
    }

    /// Uses one connection until it breaks or the command has ended.
    async fn serve(
        &mut self,
        link: &mut Link,
        passage: &mut Passage,
        outcome: &mut oneshot::Sender<Result<Record, Error>>,
    ) -> End {
        let (mut from_agent, mut to_agent) = link.stream.split();
        let mut pending: Option<Pending> = None;
        let mut buffer = vec![0; CHUNK];
        let mut input = vec![0; input::CHUNK];
        loop {
            if pending.is_none() {
                match self.next_frame(&mut link.decoder, passage) {
                    Ok(Step::Deliver(next)) => {
                        pending = Some(next);
                        continue;
                    }
                    Ok(Step::Ended(record)) => return End::Record(*record),
                    Ok(Step::Nothing) => continue,
                    Ok(Step::More) => {}
                    Err(err) => return End::Error(err),
                }
            }
            let idle = passage.out.is_empty();
            let takes_input = idle && passage.started && self.input.has_room();
            tokio::select! {
                () = outcome.closed() => return End::Dropped,
                () = deliver(&mut self.outputs, &mut pending), if pending.is_some() => {}
                read = from_agent.read(&mut buffer), if pending.is_none() => match read {
                    Ok(0) => return End::Error(Error::cut()),
                    Ok(count) => link.decoder.push(&buffer[..count]),
                    Err(err) => return End::Error(Error::broken(err)),
                },
                wrote = to_agent.write(&passage.out), if !idle => match wrote {
                    Ok(count) => drop(passage.out.drain(..count)),
                    // How the connection ended is found by reading; that may be a record.
                    Err(_) => passage.deaf(),
                },
                control = self.controls.recv(), if idle && !self.controls.is_closed() => {
                    if let Some(control) = control {
                        passage.control(&control);
                        if matches!(control, HostControl::Resize(_)) {
                            self.size = Some(control);
                        }
                    }
                }
                read = self.input.read(&mut input), if takes_input => {
                    if outcome.is_closed() {
                        return End::Dropped;
                    }
                    self.input.keep(&input[..read]);
                    // A connection that has ended already takes no input: the next one does.
                    if pending.is_none() && let Err(err) = take(&from_agent, &mut link.decoder) {
                        return End::Error(Error::broken(err));
                    }
                    self.input.send(read, passage);
                }
            }
        }
    }

    /// Takes the next frame and does what needs no waiting.
    fn next_frame(&mut self, decoder: &mut Decoder, passage: &mut Passage) -> Result<Step, Error> {
        let frame = decoder.next_frame();
        let Some(frame) = frame.map_err(|err| Error::protocol(err.to_string()))? else {
            return Ok(Step::More);
        };
        let output = match frame.stream {
            Stream::Stdin => return Err(Error::protocol("it sent standard input")),
            Stream::Control => return self.told(&frame, passage),
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        };
        if frame.payload.is_empty() {
            return Ok(Step::Nothing);
        }
        self.outputs[output].offset += frame.payload.len() as u64;
        Ok(Step::Deliver(Pending {
            output,
            bytes: frame.payload,
            written: 0,
        }))
    }

    /// Takes a control frame. Kinds that this client does not know say nothing to it.
    fn told(&mut self, frame: &Frame, passage: &mut Passage) -> Result<Step, Error> {
        if let Ok(started) = serde_json::from_slice::<Started>(&frame.payload)
            && started.state == State::Running
        {
            self.begin(&started, passage)?;
            if let Some(sender) = self.started.take() {
                let _ = sender.send(started);
            }
            return Ok(Step::Nothing);
        }
        if let Ok(StdinTaken { stdin_offset }) = serde_json::from_slice(&frame.payload) {
            self.input.taken(stdin_offset)?;
            return Ok(Step::Nothing);
        }
        match serde_json::from_slice::<Record>(&frame.payload) {
            Ok(record) if record.state == State::Running => Ok(Step::Nothing),
            Ok(record) if *record.request_id == *self.fixed.request_id => {
                Ok(Step::Ended(Box::new(record)))
            }
            Ok(_) => Err(Error::protocol("it sent the record of another request")),
            Err(_) => Ok(Step::Nothing),
        }
    }

    /// The command is there, and output begins where the agent says.
    fn begin(&mut self, started: &Started, passage: &mut Passage) -> Result<(), Error> {
        let begins = [started.stdout_offset, started.stderr_offset];
        for (pipe, begin) in self.outputs.iter_mut().zip(begins) {
            let missing = begin.checked_sub(pipe.offset);
            let missing =
                missing.ok_or_else(|| Error::protocol("it sends output again that it has sent"))?;
            if self.fixed.whole || self.attached_before {
                self.lost = self.lost.saturating_add(missing);
            }
            pipe.offset = begin;
        }
        passage.started = true;
        if self.attached_before
            && let Some(size) = &self.size
        {
            passage.control(size);
        }
        self.input.begin(started, passage)?;
        self.attached_before = true;
        Ok(())
    }
}

/// What a frame leads to.
enum Step {
    Deliver(Pending),
    Ended(Box<Record>),
    Nothing,
    /// More has to come first.
    More,
}
