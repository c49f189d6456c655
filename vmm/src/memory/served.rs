//! Memory that another process serves (see [`crate::pages`]): a memfd whose pages are missing until
//! somebody touches them.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{PidfdFlags, pidfd_open};

use super::{Backing, MachineMemory, MemoryError, PAGE, ranges};
use crate::pages::{Mapping, sys};

/// How long the server may take to take the descriptor.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a machine's memory is in the beginning.
#[derive(Debug, Clone)]
pub enum Initial {
    /// What an image has.
    Image(super::Image),
    /// What the process at a socket serves.
    Served {
        /// In bytes.
        size: u64,
        /// Where the process listens.
        socket: PathBuf,
    },
}

impl From<super::Image> for Initial {
    fn from(image: super::Image) -> Self {
        Initial::Image(image)
    }
}

impl Initial {
    /// In bytes.
    pub fn size(&self) -> u64 {
        match self {
            Initial::Image(image) => image.size,
            Initial::Served { size, .. } => *size,
        }
    }
}

/// The ends of the monitor's side.
#[derive(Debug)]
pub(super) struct Server {
    faults: OwnedFd,
    /// Open for as long as pages may be missing: the server sees its end.
    _stream: UnixStream,
    process: Option<OwnedFd>,
}

impl MachineMemory {
    /// Memory of `size` bytes that the process at `socket` serves. Nothing is there until it is
    /// touched, and whoever touches it waits.
    ///
    /// # Errors
    ///
    /// When nobody is there, or the system gives this process no userfaultfd.
    pub fn served(size: u64, socket: &Path) -> Result<Self, MemoryError> {
        let failed = |source| MemoryError::Served {
            socket: socket.to_owned(),
            source,
        };
        let stream = UnixStream::connect(socket).map_err(failed)?;
        let memory = Self::create(size)?;
        // What is given back would be served again, as it was.
        memory.reclaim.set_kept(true);
        let server = memory.hand_to(stream).map_err(failed)?;
        memory.serve_from(server);
        Ok(memory)
    }

    fn serve_from(&self, server: Server) {
        let mut backing = super::lock(&self.backing);
        if let Some(Backing::Shared(memfd)) = backing.take() {
            *backing = Some(Backing::Served(memfd, server));
        }
    }

    fn hand_to(&self, stream: UnixStream) -> io::Result<Server> {
        let faults = sys::open()?;
        let mut mappings = Vec::with_capacity(2);
        self.each_part(&(0..self.size), |at, offset, size| {
            sys::register(&faults, at, size)?;
            mappings.push(Mapping {
                base_host_virt_addr: at as u64,
                size,
                offset,
                page_size: PAGE,
                page_size_kib: PAGE,
            });
            Ok(())
        })?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let message = serde_json::to_vec(&mappings)?;
        let fds = [faults.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // It fits: the space is for one.
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let parts = [IoSlice::new(&message)];
        let sent = sendmsg(&stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
        if sent != message.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        Ok(Server {
            faults,
            _stream: stream,
            // One in a PID namespace that this one cannot see into has no number here.
            process: pidfd_open(peer.pid, PidfdFlags::empty()).ok(),
        })
    }

    /// Whether pages may be missing.
    pub fn is_served(&self) -> bool {
        matches!(&*super::lock(&self.backing), Some(Backing::Served(..)))
    }

    /// The process that serves this memory, as a descriptor that can be read when it has ended; none
    /// when all is here, or it cannot be watched.
    pub fn server(&self) -> Option<OwnedFd> {
        match &*super::lock(&self.backing) {
            Some(Backing::Served(_, server)) => server.process.as_ref()?.try_clone().ok(),
            _ => None,
        }
    }

    /// Waits until all pages have come, and lets go of the process that served them. The guest may
    /// run meanwhile.
    ///
    /// # Errors
    ///
    /// When the kernel does not say which are missing.
    pub fn fetch(&self) -> Result<(), MemoryError> {
        let memfd = match &*super::lock(&self.backing) {
            Some(Backing::Served(memfd, _)) => memfd.clone(),
            _ => return Ok(()),
        };
        // Not under the lock: it may take as long as the server does.
        self.touch_holes(&memfd).map_err(MemoryError::Fetch)?;
        let mut backing = super::lock(&self.backing);
        if let Some(Backing::Served(memfd, server)) = backing.take() {
            let ended = self.each_part(&(0..self.size), |at, _, size| {
                sys::unregister(&server.faults, at, size)
            });
            match ended {
                Ok(()) => {
                    *backing = Some(Backing::Shared(memfd));
                    self.reclaim.set_kept(false);
                }
                Err(err) => {
                    *backing = Some(Backing::Served(memfd, server));
                    return Err(MemoryError::Fetch(err));
                }
            }
        }
        Ok(())
    }

    fn touch_holes(&self, memfd: &File) -> io::Result<()> {
        let mut at = 0;
        let data = ranges::data_of(memfd, &(0..self.size))?;
        let end = self.size..self.size;
        for range in data.into_iter().chain(std::iter::once(end)) {
            self.each_part(&(at..range.start), |start, _, len| {
                // SAFETY: the part is mapped guest memory, which lives as long as `self`.
                unsafe { sys::touch(start, len, PAGE) };
                Ok(())
            })?;
            at = range.end;
        }
        Ok(())
    }
}
