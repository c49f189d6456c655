//! The server's side: takes one machine's memory over and answers its page faults.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{Mapping, PageSource, sys};
use crate::memory::PAGE;

/// Longest message of a monitor.
const MAX_MESSAGE: usize = 64 << 10;

/// Why a machine's memory is not served any more.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The connection broke, or the descriptor did.
    #[error("the monitor's page faults cannot be read: {0}")]
    Io(#[from] io::Error),
    /// What the monitor sent makes no sense.
    #[error("the monitor sent no mappings with a descriptor: {0}")]
    Malformed(String),
    /// A page was missed that is in none of the mappings.
    #[error("the address {0:#x} was missed, which is in none of the monitor's mappings")]
    Outside(u64),
    /// The source does not have a page.
    #[error("the page at offset {offset:#x} of the memory cannot be read: {source}")]
    Source {
        /// Where.
        offset: u64,
        /// Why not.
        source: io::Error,
    },
}

/// Serves the memory of the machine whose monitor is at the other end of `stream`, from `source`,
/// until the machine has all of it or has ended. Returns how many pages it was given.
///
/// # Errors
///
/// When a page cannot be had. The machine waits for it: let this process end, and it fails.
pub fn serve(stream: &UnixStream, source: &mut impl PageSource) -> Result<u64, PagesError> {
    let (mappings, faults) = receive(stream)?;
    let mut given = 0;
    let mut page = vec![0; PAGE as usize];
    loop {
        let mut polled = [
            PollFd::from_borrowed_fd(faults.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            polled => polled.map_err(io::Error::from)?,
        };
        let asked = polled[0].revents();
        if asked.contains(PollFlags::IN) {
            for address in sys::missed(&faults)? {
                let address = address - address % PAGE;
                let offset = offset_of(&mappings, address).ok_or(PagesError::Outside(address))?;
                let read = source.read_page(offset, &mut page);
                read.map_err(|source| PagesError::Source { offset, source })?;
                match sys::copy(&faults, address, &page) {
                    Ok(put) => given += u64::from(put),
                    // Nobody waits for it any more: the mapping, or all of the process, is gone.
                    Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
                    Err(err) => return Err(err.into()),
                }
            }
        } else if !asked.is_empty() || !polled[1].revents().is_empty() {
            return Ok(given);
        }
    }
}

fn offset_of(mappings: &[Mapping], address: u64) -> Option<u64> {
    mappings.iter().find_map(|mapping| {
        let within = address.checked_sub(mapping.base_host_virt_addr)?;
        (within < mapping.size).then(|| mapping.offset.checked_add(within))?
    })
}

fn receive(stream: &UnixStream) -> Result<(Vec<Mapping>, OwnedFd), PagesError> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    let got = got.map_err(io::Error::from)?.bytes;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.next().and_then(|mut files| files.next());
    let file = file.ok_or_else(|| PagesError::Malformed("there is no descriptor".to_owned()))?;
    let mappings: Vec<Mapping> = serde_json::from_slice(&bytes[..got])
        .map_err(|err| PagesError::Malformed(err.to_string()))?;
    match mappings.iter().all(|mapping| mapping.page_size == PAGE) {
        true => Ok((mappings, file)),
        false => Err(PagesError::Malformed(format!("pages are {PAGE} bytes"))),
    }
}
