//! `GET /v1/events`: tells listeners what happens. Nothing is done for it while there are none.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Bytes;
use tine_guest_agent::events::{Event, ExecEnd, Resource, Warning};
use tokio::sync::mpsc;

use super::http::{self, Reply};
use super::{Agent, health};

/// Lines kept for a listener that does not keep up.
const KEPT: usize = 256;
/// Most listeners.
const MAX_LISTENERS: usize = 16;

/// Between looks at what may be running out, and between signs of life: only by writing is it noticed that a listener
/// has gone.
const INTERVAL: Duration = Duration::from_secs(10);

/// Less than this share of all is little.
const LITTLE: u64 = 20;

/// The listeners.
#[derive(Default)]
pub struct Events {
    listeners: RefCell<Vec<Listener>>,
    /// What a warning has been given of.
    told: Cell<(bool, bool)>,
    /// Somebody looks now and then.
    looking: Cell<bool>,
}

struct Listener {
    lines: mpsc::Sender<io::Result<Bytes>>,
    missed: u64,
}

impl Listener {
    /// False when it has gone.
    fn tell(&mut self, line: &Bytes) -> bool {
        if self.missed > 0 {
            let lost = line_of(&Event::Lost { count: self.missed });
            match self.lines.try_send(Ok(lost)) {
                Ok(()) => self.missed = 0,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    self.missed += 1;
                    return true;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        match self.lines.try_send(Ok(line.clone())) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.missed += 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

/// `GET`.
pub fn listen(agent: &Rc<Agent>) -> Reply {
    let events = &agent.events;
    let (lines, receiver) = mpsc::channel(KEPT);
    let mut listeners = events.listeners.borrow_mut();
    listeners.retain(|listener| !listener.lines.is_closed());
    if listeners.len() >= MAX_LISTENERS {
        let message = format_args!("more than {MAX_LISTENERS} listeners");
        return Err(super::fault::Fault::new(503, "busy", message));
    }
    listeners.push(Listener { lines, missed: 0 });
    if !events.looking.replace(true) {
        tokio::task::spawn_local(look(agent.clone()));
    }
    Ok(http::pieces(receiver, "application/x-ndjson"))
}

/// Looks now and then for as long as somebody listens.
async fn look(agent: Rc<Agent>) {
    let events = &agent.events;
    events.told.set((false, false));
    loop {
        for warning in events.little() {
            events.emit(&Event::Warning(warning));
        }
        tokio::time::sleep(INTERVAL).await;
        // One that has lines to read needs no sign of life.
        let alive = |listener: &mut Listener| {
            let sign = listener.lines.try_send(Ok(Bytes::from_static(b"\n")));
            !matches!(sign, Err(mpsc::error::TrySendError::Closed(_)))
        };
        let mut listeners = events.listeners.borrow_mut();
        listeners.retain_mut(alive);
        if listeners.is_empty() {
            events.looking.set(false);
            return;
        }
    }
}

impl Events {
    /// Tells of something.
    pub fn emit(&self, event: &Event) {
        let mut listeners = self.listeners.borrow_mut();
        if !listeners.is_empty() {
            let line = line_of(event);
            listeners.retain_mut(|listener| listener.tell(&line));
        }
    }

    /// Tells of a command's end.
    pub fn exec_ended(&self, exec: &super::exec::Exec) {
        if self.listeners.borrow().is_empty() {
            return;
        }
        let record = exec.record(false);
        self.emit(&Event::Exec(ExecEnd {
            request_id: record.request_id,
            state: record.state,
            exit_code: record.exit_code,
            signal: record.signal,
        }));
    }

    /// What there is little of that was enough before.
    fn little(&self) -> Vec<Warning> {
        let (memory, disk) = (health::memory(), health::disk());
        let warning = |kind, available_bytes, total_bytes| Warning {
            kind,
            available_bytes,
            total_bytes,
        };
        let memory = warning(Resource::Memory, memory.available_bytes, memory.total_bytes);
        let disk = warning(Resource::Disk, disk.available_bytes, disk.total_bytes);
        let is_little = |warning: &Warning| warning.available_bytes < warning.total_bytes / LITTLE;
        let before = self.told.get();
        self.told.set((is_little(&memory), is_little(&disk)));
        [(memory, before.0), (disk, before.1)]
            .into_iter()
            .filter(|(warning, told)| is_little(warning) && !told)
            .map(|(warning, _)| warning)
            .collect()
    }
}

fn line_of(event: &Event) -> Bytes {
    // Plain data always serialises.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
