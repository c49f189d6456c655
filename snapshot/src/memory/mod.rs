//! Guest memory in files: layers of pages, each with an index that says which pages it has
//! (`FORMAT.md`, "Memory").

mod check;
pub(crate) mod index;
pub(crate) mod layer;
pub(crate) mod layers;
pub(crate) mod trailer;
mod view;
pub(crate) mod writer;

/// Bytes in a page.
pub const PAGE: u64 = 4096;
/// Bytes of memory that share one checksum.
pub const CHUNK: u64 = 64 * PAGE;
/// Pages in a chunk.
pub(crate) const CHUNK_PAGES: u64 = CHUNK / PAGE;
