//! Reads, writes and flushes through io_uring. A leaf with `unsafe` in it.
//!
//! What makes it sound: an operation is in `jobs` from before its entry is in the ring until its
//! completion was taken out of it, and with it the buffers, their list and the guest memory behind
//! them; the file and the event outlive the ring; and dropping waits for what the kernel still has.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use vmm_sys_util::eventfd::EventFd;

use crate::virtio::block::{Completion, Operation, QUEUE_SIZE, Token, sys};

/// Larger transfers are not tried on the calling thread first: copying them out of the host's page
/// cache would keep the event loop.
const INLINE_MAX: usize = 256 << 10;

/// A ring, and what is in it.
pub(super) struct Uring {
    ring: IoUring,
    file: Arc<File>,
    event: Arc<EventFd>,
    /// By token.
    jobs: Vec<Option<Job>>,
    /// In the ring, and not yet taken by the kernel.
    waiting: VecDeque<Token>,
    /// The kernel refused to take more: nothing is to be put in any more.
    broken: bool,
}

struct Job {
    /// What is left to do.
    operation: Operation,
    /// Bytes moved before.
    moved: u64,
    /// The kernel gave it back before it was done.
    retried: bool,
}

impl Uring {
    /// A ring for `file` that writes `event` after each completion.
    pub fn new(file: Arc<File>, event: Arc<EventFd>) -> io::Result<Self> {
        // Neither registered buffers (they would pin guest memory) nor flags that bind the ring to
        // one thread: a reset waits for completions on a vCPU's.
        let ring = IoUring::new(u32::from(QUEUE_SIZE))?;
        // Linux 5.7 and later: completions are never dropped, and plain files need no fallback of
        // ours. All operations used are older.
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_fast_poll() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(Self {
            ring,
            file,
            event,
            jobs: Vec::new(),
            waiting: VecDeque::new(),
            broken: false,
        })
    }

    /// Puts an operation into the ring; gives it back if there is no place, or it is none for us.
    pub fn submit(&mut self, token: Token, operation: Operation) -> Result<(), Operation> {
        let slot = usize::from(token);
        if self.jobs.len() <= slot {
            self.jobs.resize_with(slot + 1, || None);
        }
        self.jobs[slot] = Some(Job {
            operation,
            moved: 0,
            retried: false,
        });
        match self.push(token) {
            true => Ok(()),
            false => Err(self.jobs[slot].take().expect("just put there").operation),
        }
    }

    /// Lets the kernel take what is in the ring. What it will never take is given back.
    pub fn start(&mut self) -> Vec<(Token, Operation)> {
        while !self.waiting.is_empty() && !self.broken {
            match self.ring.submit() {
                Ok(taken) if taken > 0 => {
                    self.waiting.drain(..taken.min(self.waiting.len()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if !is_passing(&error) => self.broken = true,
                // Short of memory or of room for completions: when the event loop comes by again.
                _ => {
                    let _ = self.event.write(1);
                    return Vec::new();
                }
            }
        }
        // Their entries stay in the ring, and so the kernel must not be called for it again.
        let left = std::mem::take(&mut self.waiting);
        left.into_iter()
            .filter_map(|token| Some((token, self.jobs[usize::from(token)].take()?.operation)))
            .collect()
    }

    /// Appends what ended; `true` if something has to be started again.
    pub fn completed(&mut self, into: &mut Vec<Completion>) -> bool {
        let mut again = false;
        while let Some((token, result)) = self.next_ended() {
            match self.advance(token, result) {
                Some(result) => {
                    self.jobs[usize::from(token)] = None;
                    into.push(Completion { token, result });
                }
                None => again = true,
            }
        }
        again
    }

    fn next_ended(&mut self) -> Option<(Token, i32)> {
        let entry = self.ring.completion().next()?;
        Some((entry.user_data() as Token, entry.result()))
    }

    /// Notes what the kernel says of an operation. `None`: it goes on.
    fn advance(&mut self, token: Token, result: i32) -> Option<io::Result<u64>> {
        let job = self.jobs[usize::from(token)].as_mut()?;
        if let Ok(count) = usize::try_from(result) {
            job.moved += count as u64;
            match &mut job.operation {
                Operation::Read { offset, buffers }
                | Operation::Write {
                    offset, buffers, ..
                } => {
                    *offset += count as u64;
                    buffers.advance(count);
                    if count == 0 || buffers.is_empty() {
                        return Some(Ok(job.moved));
                    }
                }
                _ => return Some(Ok(0)),
            }
        } else {
            let error = io::Error::from_raw_os_error(-result);
            let again =
                error.kind() == io::ErrorKind::Interrupted || is_passing(&error) && !job.retried;
            if !again {
                return Some(Err(error));
            }
        }
        job.retried = true;
        match self.push(token) {
            true => None,
            false => Some(Err(io::ErrorKind::Other.into())),
        }
    }

    /// Puts the entry for the job at `token` into the ring, if there is a place.
    fn push(&mut self, token: Token) -> bool {
        let Some(job) = &self.jobs[usize::from(token)] else {
            return false;
        };
        let Some(entry) = job.entry(&self.file).filter(|_| !self.broken) else {
            return false;
        };
        let entry = entry.user_data(u64::from(token));
        // SAFETY: the entry points to the list of buffers of a job that stays in `jobs`, unchanged,
        // until its completion is here, and to guest memory that the job keeps mapped; it names a
        // descriptor that `self.file` keeps open.
        let pushed = unsafe { self.ring.submission().push(&entry) }.is_ok();
        if pushed {
            self.waiting.push_back(token);
        }
        pushed
    }
}

impl Job {
    /// The ring's entry for it; none for what the ring does not do.
    fn entry(&self, file: &File) -> Option<squeue::Entry> {
        let fd = types::Fd(file.as_raw_fd());
        let (entry, len) = match &self.operation {
            Operation::Read { offset, buffers } => {
                let list = buffers.iovecs();
                let entry =
                    opcode::Readv::new(fd, list.as_ptr(), list.len() as u32).offset(*offset);
                (entry.build(), buffers.len())
            }
            Operation::Write {
                offset,
                buffers,
                durable,
            } => {
                let list = buffers.iovecs();
                let entry = opcode::Writev::new(fd, list.as_ptr(), list.len() as u32)
                    .offset(*offset)
                    .rw_flags(sys::write_flags(*durable));
                (entry.build(), buffers.len())
            }
            Operation::Flush => {
                let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC);
                (entry.build(), 0)
            }
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => return None,
        };
        Some(match self.retried || len > INLINE_MAX {
            true => entry.flags(squeue::Flags::ASYNC),
            false => entry,
        })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // What the kernel has not taken it never sees: the ring is not entered again but to wait.
        for token in std::mem::take(&mut self.waiting) {
            self.jobs[usize::from(token)] = None;
        }
        self.broken = true;
        let mut ended = Vec::new();
        while self.jobs.iter().any(Option::is_some) {
            let _ = self.event.read();
            self.completed(&mut ended);
            if self.jobs.iter().any(Option::is_some) {
                sys::wait(&self.event);
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
}
