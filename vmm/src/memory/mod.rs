//! Guest memory: one region below the MMIO gap and one above.
//!
//! Memory begins as a memfd, mapped shared, or as an [`Image`] of a snapshot, mapped privately; the
//! pages of a memfd may be served by another process.
//! [`MachineMemory::freeze`] makes an image of it without copying what was not written: a shared
//! mapping becomes a private one over the same memfd, at the same addresses, and a private one
//! gives its own pages away to a new layer.

mod image;
mod ranges;
mod served;
mod sys;
mod touched;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tine_devices::GuestMemory;
use tine_devices::virtio::balloon::MappedMemory;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

use crate::layout;
pub use image::{Image, Layer, MAX_LAYERS, MAX_RUNS, Run, Stored};
use ranges::join;
pub use served::Initial;
pub use sys::{Moved, PAGE, create_memfd, open_pagemap, seal};

/// Pages that lie no further apart than this many bytes become one run of a layer: a few pages
/// more to copy instead of a mapping more.
const JOIN: u64 = 16 * PAGE;

/// Why guest memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file behind the memory could not be made.
    #[error("cannot create {size} bytes of guest memory: {source}")]
    Create {
        /// Size in bytes.
        size: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file could not be mapped.
    #[error("cannot map {size} bytes of guest memory: {reason}")]
    Map {
        /// Size in bytes.
        size: u64,
        /// What the kernel said.
        reason: String,
    },
    /// No other process serves it.
    #[error("the process at {} cannot serve guest memory: {source}", socket.display())]
    Served {
        /// Where it was looked for.
        socket: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// What has not come yet cannot be told.
    #[error("cannot have the rest of guest memory served: {0}")]
    Fetch(#[source] io::Error),
    /// The memory could not be frozen.
    #[error("cannot freeze guest memory: {0}")]
    Freeze(#[source] io::Error),
}

/// How the regions are mapped.
#[derive(Debug)]
enum Backing {
    /// Shared, over a memfd that changes with every write.
    Shared(Arc<File>),
    /// The same, with pages that are missing until a process has served them.
    Served(Arc<File>, served::Server),
    /// Privately, over an image.
    Private(Image),
}

/// The memory of one machine.
#[derive(Clone)]
pub struct MachineMemory {
    /// The mapped regions.
    pub regions: Arc<GuestMemory>,
    /// Size in bytes, without the gap.
    pub size: u64,
    /// `None` after a freeze that failed half-way.
    backing: Arc<Mutex<Option<Backing>>>,
    /// How the balloon gives memory back.
    reclaim: Arc<MappedMemory>,
    /// What a freeze has replaced.
    replaced: Arc<Mutex<Vec<Moved>>>,
}

impl MachineMemory {
    /// Fresh, zeroed memory of `size` bytes. Nothing is allocated until it is touched.
    pub fn create(size: u64) -> Result<Self, MemoryError> {
        let create = |source| MemoryError::Create { size, source };
        let file = sys::create_memfd(c"tine-memory", size).map_err(create)?;
        let shared = Arc::new(file);
        let mut offset = 0;
        let mut regions = Vec::with_capacity(2);
        for range in layout::ram_ranges(size) {
            let len = range.end - range.start;
            let file = FileOffset::from_arc(shared.clone(), offset);
            regions.push(region(&range, Some(file), libc::MAP_SHARED)?);
            offset += len;
        }
        Ok(Self::new(regions, size, Backing::Shared(shared)))
    }

    /// The memory that `image` has. Nothing is read until it is touched.
    pub fn map(image: Image) -> Result<Self, MemoryError> {
        let mut regions = Vec::with_capacity(2);
        for range in layout::ram_ranges(image.size) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            regions.push(region(&range, None, flags)?);
        }
        let memory = Self::new(regions, image.size, Backing::Private(image.clone()));
        memory.reclaim.set_private(true);
        for piece in image.pieces() {
            let file = piece.layer.map(|layer| &image.layers[layer].file);
            memory
                .map_over(&piece.range, file)
                .map_err(|err| MemoryError::Map {
                    size: image.size,
                    reason: err.to_string(),
                })?;
        }
        Ok(memory)
    }

    fn new(regions: Vec<GuestRegionMmap>, size: u64, backing: Backing) -> Self {
        let regions = GuestMemory::from_regions(regions).expect("ranges are disjoint and sorted");
        Self {
            regions: Arc::new(regions),
            size,
            backing: Arc::new(Mutex::new(Some(backing))),
            reclaim: Arc::new(MappedMemory::new()),
            replaced: Arc::default(),
        }
    }

    /// How a balloon gives parts of this memory back.
    pub fn reclaim(&self) -> Arc<MappedMemory> {
        self.reclaim.clone()
    }

    /// The mappings that the last freeze has replaced. Letting go of them takes time in proportion to
    /// what had been touched: do it when nobody stands still for it.
    pub fn take_replaced(&self) -> Vec<Moved> {
        let mut replaced = lock(&self.replaced);
        std::mem::take(&mut *replaced)
    }

    /// Makes an image of what is in memory now; the memory goes on as private pages over it.
    /// Nobody may write to guest memory meanwhile: vCPUs and devices stand still.
    pub fn freeze(&self) -> Result<Image, MemoryError> {
        let mut backing = lock(&self.backing);
        let image = match &*backing {
            Some(Backing::Shared(memfd)) => self.freeze_shared(memfd),
            Some(Backing::Served(..)) => {
                Err(io::Error::other("some of it has not been served yet"))
            }
            Some(Backing::Private(image)) => self.fold(image),
            None => Err(io::Error::other("an earlier freeze failed half-way")),
        };
        match image {
            Ok(image) => {
                *backing = Some(Backing::Private(image.clone()));
                Ok(image)
            }
            Err(err) => {
                // The guest goes on with what it has; but one region may be private by now and
                // the other not, and another freeze must not map over what was written since.
                if let Some(Backing::Shared(_)) = &*backing {
                    *backing = None;
                }
                Err(MemoryError::Freeze(err))
            }
        }
    }

    fn freeze_shared(&self, memfd: &File) -> io::Result<Image> {
        let file = memfd.try_clone()?;
        let mut replaced = Vec::with_capacity(2);
        self.each_part(&(0..self.size), |at, _, len| {
            // SAFETY: as in `map_over`; what is mapped is shared with the memfd. Where the kernel
            // cannot do it, mapping over lets go of the pages, which takes longer.
            replaced.extend(unsafe { sys::move_away(at, len) });
            Ok(())
        })?;
        let mut kept = lock(&self.replaced);
        kept.append(&mut replaced);
        drop(kept);
        self.map_over(&(0..self.size), Some(&file))?;
        self.reclaim.set_private(true);
        sys::seal(&file)?;
        Ok(Image::of(file, self.size))
    }

    /// Gives the pages that were written over `image` to a layer on top of it.
    fn fold(&self, image: &Image) -> io::Result<Image> {
        let written = self.written()?;
        if written.is_empty() {
            return Ok(image.clone());
        }
        let whole = std::iter::once(0..self.size);
        let (ranges, base) = match image.is_full(written.len()) {
            false => (written, Some(image)),
            true => (whole.collect(), None),
        };
        let file = sys::create_memfd(c"tine-memory", self.size)?;
        let copied = match base {
            Some(_) => ranges.clone(),
            // What has never been anything but zero stays a hole.
            None => self.not_zero(image)?,
        };
        for range in &copied {
            self.each_part(range, |at, offset, len| {
                // SAFETY: the part is mapped guest memory, which lives as long as `self`.
                unsafe { sys::write_out(&file, offset, at, len) }
            })?;
        }
        sys::seal(&file)?;
        for range in &ranges {
            // Where this fails, the pages stay private, with the same content.
            let _ = self.map_over(range, Some(&file));
        }
        let run = |range| Run { range, zero: false };
        Ok(match base {
            Some(image) => {
                let runs = ranges.into_iter().map(run).collect();
                image.with(Layer::new(file, runs, None))
            }
            None => Image::of(file, self.size),
        })
    }

    /// What is not a hole of `image`, or was written over it.
    fn not_zero(&self, image: &Image) -> io::Result<Vec<Range<u64>>> {
        let mut ranges = self.written()?;
        ranges.extend(image.data()?.into_iter().map(|(range, _)| range));
        ranges.sort_by_key(|range| range.start);
        Ok(join(ranges, 0))
    }

    /// The ranges written since the memory was mapped privately, with short gaps filled.
    fn written(&self) -> io::Result<Vec<Range<u64>>> {
        let mut written = Vec::new();
        self.each_part(&(0..self.size), |at, offset, len| {
            let pages = sys::private_pages(at, len)?.into_iter();
            written.extend(pages.map(|pages| offset + pages.start..offset + pages.end));
            Ok(())
        })?;
        Ok(join(written, JOIN))
    }

    fn map_over(&self, range: &Range<u64>, file: Option<&File>) -> io::Result<()> {
        self.each_part(range, |at, offset, len| {
            // SAFETY: the part is a mapping of the regions', which are accessed by raw reads and
            // writes alone; the regions unmap the same addresses when they go.
            unsafe { sys::map_over(at, len, file.map(|file| (file, offset))) }
        })
    }

    /// Calls `each` with the parts of `range` that lie in one region: where they are mapped, their
    /// offset and their length.
    fn each_part(
        &self,
        range: &Range<u64>,
        mut each: impl FnMut(*mut u8, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut offset = 0;
        for region in self.regions.iter() {
            let start = range.start.max(offset);
            let end = range.end.min(offset + region.len());
            if start < end {
                let within = (start - offset) as usize;
                each(region.as_ptr().wrapping_add(within), start, end - start)?;
            }
            offset += region.len();
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn region(
    range: &Range<u64>,
    file: Option<FileOffset>,
    flags: libc::c_int,
) -> Result<GuestRegionMmap, MemoryError> {
    let len = range.end - range.start;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_NORESERVE;
    let mapping = MmapRegion::build(file, len as usize, protection, flags).map_err(|err| {
        MemoryError::Map {
            size: len,
            reason: err.to_string(),
        }
    })?;
    Ok(GuestRegionMmap::new(mapping, GuestAddress(range.start))
        .expect("the address map does not wrap around"))
}

#[cfg(test)]
mod tests;
