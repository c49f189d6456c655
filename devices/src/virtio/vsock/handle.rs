//! Connections within this process: what other threads hold, and what the device sees of it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::muxer::PORT_ANY;
use super::{MAX_QUEUED_CONNECTS, VsockStats};
use crate::bus::lock;

/// Connections from the guest that a [`VsockListener`] holds until they are accepted; one more is
/// refused.
const BACKLOG: usize = 64;

type Accept = Arc<dyn Fn(UnixStream) -> bool + Send + Sync>;

/// Reaches the guest's sockets from any thread of this process, and lets the guest reach it.
#[derive(Clone)]
pub struct VsockHandle {
    shared: Arc<Shared>,
}

/// What handles and the device share.
pub struct Shared {
    state: Mutex<State>,
    /// Readable while the device has something to take.
    event: OwnedFd,
    stats: Arc<VsockStats>,
}

#[derive(Default)]
struct State {
    active: bool,
    connects: VecDeque<(u32, UnixStream)>,
    transport_reset: bool,
    listeners: HashMap<u32, (u64, Accept)>,
    next_listener: u64,
}

impl VsockHandle {
    /// Connects to a port of the guest.
    ///
    /// The call does not wait for the guest's answer. A guest that refuses, or does not answer
    /// within ten seconds, makes the socket end: reads give end of file, writes `BrokenPipe`. The
    /// socket is in blocking mode.
    ///
    /// Fails with `NotConnected` while the guest's driver is not up: nothing is queued for it, as
    /// a machine's owner waits for the guest's own sign of life anyway. Fails with `WouldBlock`
    /// when the device has [`MAX_QUEUED_CONNECTS`] connections still to take up.
    pub fn connect(&self, port: u32) -> io::Result<UnixStream> {
        let mut state = lock(&self.shared.state);
        if !state.active {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the guest's vsock driver is not running; wait until the guest has booted",
            ));
        }
        if state.connects.len() >= MAX_QUEUED_CONNECTS {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "too many vsock connections at a time; try again later",
            ));
        }
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        state.connects.push_back((port, ours));
        drop(state);
        self.shared.signal();
        Ok(theirs)
    }

    /// Takes the guest's connections to host port `port`, until the result is dropped. It goes
    /// before a socket file of that port.
    pub fn listen(&self, port: u32) -> io::Result<VsockListener> {
        let (sender, receiver) = sync_channel(BACKLOG);
        let guard = self.listen_with(port, move |stream| sender.try_send(stream).is_ok())?;
        Ok(VsockListener {
            receiver,
            _guard: guard,
        })
    }

    /// The same with a function that gets each connection, in blocking mode, and says whether it
    /// took it; otherwise the guest is refused. It runs on the event loop's thread and must not
    /// wait there.
    pub fn listen_with(
        &self,
        port: u32,
        accept: impl Fn(UnixStream) -> bool + Send + Sync + 'static,
    ) -> io::Result<ListenGuard> {
        let mut state = lock(&self.shared.state);
        if port == PORT_ANY || state.listeners.contains_key(&port) {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("vsock host port {port} is taken; listen on another one"),
            ));
        }
        let number = state.next_listener;
        state.next_listener += 1;
        state.listeners.insert(port, (number, Arc::new(accept)));
        Ok(ListenGuard {
            shared: self.shared.clone(),
            port,
            number,
        })
    }

    /// Has the device end all connections and tell the guest so, see
    /// [`super::Vsock::transport_reset`]. It happens on the event loop's thread, and not at all
    /// while the driver is not running.
    pub fn transport_reset(&self) {
        let mut state = lock(&self.shared.state);
        if state.active {
            state.transport_reset = true;
            drop(state);
            self.shared.signal();
        }
    }

    /// Whether the guest's driver is running.
    pub fn is_active(&self) -> bool {
        lock(&self.shared.state).active
    }

    /// The device's counts.
    pub fn stats(&self) -> &VsockStats {
        &self.shared.stats
    }
}

/// Takes the guest's connections to one host port.
pub struct VsockListener {
    receiver: Receiver<UnixStream>,
    _guard: ListenGuard,
}

impl VsockListener {
    /// Waits for a connection, `None` if there is none within `timeout`.
    pub fn accept(&self, timeout: Duration) -> Option<UnixStream> {
        self.receiver.recv_timeout(timeout).ok()
    }
}

/// Keeps a function registered for a port.
pub struct ListenGuard {
    shared: Arc<Shared>,
    port: u32,
    number: u64,
}

impl Drop for ListenGuard {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        if state
            .listeners
            .get(&self.port)
            .is_some_and(|(number, _)| *number == self.number)
        {
            state.listeners.remove(&self.port);
        }
    }
}

/// What handles asked for.
pub struct Requests {
    /// Connections to the guest, by port.
    pub connects: VecDeque<(u32, UnixStream)>,
    /// All connections are to end.
    pub transport_reset: bool,
}

impl Shared {
    /// A device that is not active, and its first handle.
    pub fn new(stats: Arc<VsockStats>) -> io::Result<(Arc<Self>, VsockHandle)> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Self {
            state: Mutex::default(),
            event,
            stats,
        });
        let handle = VsockHandle {
            shared: shared.clone(),
        };
        Ok((shared, handle))
    }

    /// Lets requests in, or refuses them and drops those that wait.
    pub fn set_active(&self, active: bool) {
        let mut state = lock(&self.state);
        state.active = active;
        state.connects.clear();
        state.transport_reset = false;
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    /// Takes all requests.
    pub fn take(&self) -> Requests {
        let mut state = lock(&self.state);
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        Requests {
            connects: std::mem::take(&mut state.connects),
            transport_reset: std::mem::take(&mut state.transport_reset),
        }
    }

    /// Whether this process listens on a host port.
    pub fn listens(&self, port: u32) -> bool {
        lock(&self.state).listeners.contains_key(&port)
    }

    /// Makes a connection to whoever listens on a host port, and returns the device's end.
    pub fn accept(&self, port: u32) -> Option<UnixStream> {
        let accept = lock(&self.state).listeners.get(&port)?.1.clone();
        let (ours, theirs) = UnixStream::pair().ok()?;
        ours.set_nonblocking(true).ok()?;
        accept(theirs).then_some(ours)
    }

    fn signal(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
