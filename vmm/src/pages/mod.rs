//! Memory that another process serves, page by page, as the guest touches it: a snapshot can go on
//! before its memory is on this machine.
//!
//! The process that serves listens on a Unix socket. The monitor connects to it and sends one
//! message: a JSON array, with the userfaultfd of the guest's memory as a descriptor (SCM_RIGHTS).
//! Each element is one mapping:
//!
//! | field | meaning |
//! |---|---|
//! | `base_host_virt_addr` | where it is in the monitor, in bytes |
//! | `size` | its length in bytes |
//! | `offset` | where its first page is in the snapshot's memory, in bytes |
//! | `page_size`, `page_size_kib` | bytes of a page (both, as existing servers read one or the other) |
//!
//! The server reads page faults from the descriptor and answers each by UFFDIO_COPY, in any order,
//! and may copy pages that nobody has asked for yet. These are the messages of the known API's
//! `Uffd` backend, so that its servers work unchanged. There are no `remove` events: the balloon
//! gives nothing back until all is there.
//!
//! The monitor keeps the connection open until all pages have come (a snapshot or a fork asks for
//! those that are left) or the machine ends. When the serving process ends before that, the machine
//! fails: a page that does not come is never taken for zeros.
//!
//! [`serve`] is the server's side, for whatever can be read by offset ([`PageSource`]).

mod server;
pub mod sys;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

pub use server::{PagesError, serve};

/// One mapping of guest memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Where it is in the monitor.
    pub base_host_virt_addr: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Where its first page is in the snapshot's memory.
    pub offset: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// The same, by its older name (which never meant KiB).
    pub page_size_kib: u64,
}

/// Where a snapshot's memory can be read.
pub trait PageSource {
    /// Fills `page` with what memory has at `offset`, a multiple of its length.
    ///
    /// # Errors
    ///
    /// Whatever keeps the page from coming: the machine that waits for it then fails.
    fn read_page(&mut self, offset: u64, page: &mut [u8]) -> io::Result<()>;
}

/// A memory file, as `PUT /snapshot/create` writes it.
impl PageSource for File {
    fn read_page(&mut self, offset: u64, page: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(page, offset)
    }
}
