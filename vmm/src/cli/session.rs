//! A command of a guest joined to the terminal, or to the pipes, that `tine` was started with.

use std::thread;

use tine::client::{Control, Error, Exec, Output, Record, Stdin};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::failure::Failure;
use super::keys::DetachKeys;
use super::output::Sink;
use super::terminal::{self, Raw};

/// Bytes moved at once.
const CHUNK: usize = 32 << 10;

/// How a session ended.
pub enum Ended {
    /// The command has ended.
    Record(Record),
    /// The detach keys were typed; the command goes on.
    Detached,
    /// The process was asked to end; the command goes on.
    Signal(i32),
}

/// The signals that ask a process to end or tell it of its terminal, watched from here on.
pub struct Signals {
    ending: [(i32, Signal); 3],
    resized: Signal,
    resumed: Signal,
}

impl Signals {
    pub fn watch() -> Result<Self, Failure> {
        let watch = |number| {
            signal(SignalKind::from_raw(number))
                .map_err(|err| Failure::new(format!("cannot watch for signals: {err}")))
        };
        let ending = |number| Ok::<_, Failure>((number, watch(number)?));
        Ok(Self {
            ending: [
                ending(libc::SIGINT)?,
                ending(libc::SIGTERM)?,
                ending(libc::SIGHUP)?,
            ],
            resized: watch(libc::SIGWINCH)?,
            resumed: watch(libc::SIGCONT)?,
        })
    }

    /// The next signal that asks to end.
    pub async fn ending(&mut self) -> i32 {
        let [a, b, c] = &mut self.ending;
        tokio::select! {
            _ = a.1.recv() => a.0,
            _ = b.1.recv() => b.0,
            _ = c.1.recv() => c.0,
        }
    }
}

/// Joins the command to this process until one of them is done. `raw`: the command has a
/// terminal, and it is shown on the one here.
pub async fn join(
    mut exec: Exec,
    mut signals: Signals,
    raw: Option<&Raw>,
    terminal: bool,
) -> Result<Ended, Error> {
    let control = exec.control();
    let stdin = exec.stdin.take();
    let input = async {
        match stdin {
            Some(stdin) => feed(stdin, raw.is_some()).await,
            None => std::future::pending().await,
        }
    };
    let signals = async {
        match terminal {
            true => at_terminal(&mut signals, raw, &control).await,
            false => loop {
                control.signal(signals.ending().await).await;
            },
        }
    };
    tokio::select! {
        record = copy_out(&mut exec, &control) => record.map(Ended::Record),
        () = input => Ok(Ended::Detached),
        number = signals => Ok(Ended::Signal(number)),
    }
}

/// Copies both outputs, and waits for the record.
async fn copy_out(exec: &mut Exec, control: &Control) -> Result<Record, Error> {
    let (mut stdout, mut stderr) = (exec.stdout.take(), exec.stderr.take());
    let (mut to_stdout, mut to_stderr) = (Sink::stdout(), Sink::stderr());
    let (mut out, mut err) = (vec![0; CHUNK], vec![0; CHUNK]);
    while stdout.is_some() || stderr.is_some() {
        let written = tokio::select! {
            biased;
            count = some(&mut stdout, &mut out) => to_stdout.write_all(&out[..count]).await,
            count = some(&mut stderr, &mut err) => to_stderr.write_all(&err[..count]).await,
        };
        if written.is_err() {
            // Whoever read has gone away: the command is told as it would be in a pipeline here,
            // and what it still says goes nowhere.
            (stdout, stderr) = (None, None);
            control.signal(libc::SIGPIPE).await;
        }
    }
    exec.ended().await
}

/// Some output; the stream is gone after its end.
async fn some(output: &mut Option<Output>, buffer: &mut [u8]) -> usize {
    let Some(open) = output else {
        return std::future::pending().await;
    };
    let count = open.read(buffer).await.unwrap_or(0);
    if count == 0 {
        *output = None;
    }
    count
}

/// Passes standard input on. Returns when the detach keys were typed, and else never.
async fn feed(mut stdin: Stdin, raw: bool) {
    let mut keys = DetachKeys::default();
    let mut typed = read_stdin();
    while let Some(bytes) = typed.recv().await {
        let (bytes, detached) = match raw {
            true => keys.filter(&bytes),
            false => (bytes, false),
        };
        // A command that has ended takes no more.
        let _ = stdin.write_all(&bytes).await;
        if detached {
            // Not dropped: that would be the end of the command's input.
            std::mem::forget(stdin);
            return;
        }
    }
    let _ = stdin.write_all(keys.rest()).await;
    drop(stdin);
    std::future::pending().await
}

/// Standard input, piece by piece, until its end.
pub fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    // A thread of its own, as files and terminals cannot be waited for in the same way. It ends
    // with the input or with the process.
    let thread = thread::Builder::new().name("stdin".to_owned());
    let read = move || {
        let mut buffer = vec![0; CHUNK];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Err(rustix::io::Errno::INTR) => {}
                // An input that cannot be read ends there, as for any other program.
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                        return;
                    }
                }
            }
        }
    };
    if let Err(err) = thread.spawn(read) {
        eprintln!("tine: cannot read standard input: {err}");
    }
    receiver
}

/// Keeps the command's terminal like the one here, until the process is asked to end.
async fn at_terminal(signals: &mut Signals, raw: Option<&Raw>, control: &Control) -> i32 {
    let [a, b, c] = &mut signals.ending;
    loop {
        tokio::select! {
            _ = a.1.recv() => return a.0,
            _ = b.1.recv() => return b.0,
            _ = c.1.recv() => return c.0,
            _ = signals.resized.recv() => control.resize(terminal::size()).await,
            _ = signals.resumed.recv() => {
                if let Some(raw) = raw {
                    let _ = raw.renew();
                    control.resize(terminal::size()).await;
                }
            }
        }
    }
}
