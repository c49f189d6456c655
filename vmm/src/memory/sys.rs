//! The system calls of guest memory. A leaf with `unsafe` in it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;

/// Guest memory's page size in bytes.
pub const PAGE: u64 = 4096;

/// A memory file of `size` bytes, all zero, that can be sealed.
pub fn create_memfd(name: &CStr, size: u64) -> io::Result<File> {
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size)?;
    // No one who holds the file can make a mapped page vanish.
    add_seals(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(file)
}

/// Makes a memory file's content final: nobody can write to it, or map it to be written, from now
/// on. Mappings that can be written have to be gone.
pub fn seal(memfd: &File) -> io::Result<()> {
    // The kernel's F_SEAL_WRITE would look at every page for users that are not ours.
    add_seals(memfd, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
}

fn add_seals(memfd: &File, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: F_ADD_SEALS takes an integer and touches no memory of ours.
    match unsafe { libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts a private, writable mapping of `file` from `offset`, or of nothing but zeros, in the place
/// of what is mapped at `target`.
///
/// # Safety
///
/// `target` must lie in a mapping that the caller owns, of which nobody holds a reference (raw
/// accesses, such as vm-memory's, are fine), at a multiple of the page size.
pub unsafe fn map_over(target: *mut u8, len: u64, file: Option<(&File, u64)>) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (flags, fd, offset) = match file {
        Some((file, offset)) => (flags, file.as_raw_fd(), offset),
        None => (flags | libc::MAP_ANONYMOUS, -1, 0),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: what is replaced is the caller's to replace; the new pages are as accessible as the
    // old ones.
    let at = unsafe {
        libc::mmap(
            target.cast(),
            len as usize,
            protection,
            flags,
            fd,
            offset as libc::off_t,
        )
    };
    match at == libc::MAP_FAILED {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// What was mapped somewhere and has been moved out of the way. Dropping it unmaps it, which takes
/// as long as there are pages; nobody else waits for that.
#[derive(Debug)]
pub struct Moved {
    at: *mut libc::c_void,
    len: usize,
}

// SAFETY: the address is used for nothing but unmapping, once, by whoever has the value last.
unsafe impl Send for Moved {}
// SAFETY: a shared reference gives no access to anything.
unsafe impl Sync for Moved {}

impl Drop for Moved {
    fn drop(&mut self) {
        // SAFETY: the range is a mapping of this value's own, and nobody knows its address.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Moves the pages that are mapped at `target` to another address; their mapping stays, without
/// pages, to be mapped over. Moving tables of pages takes a fraction of a millisecond where letting
/// go of the pages takes some 50 for each GiB.
///
/// # Errors
///
/// Before Linux 5.13, which cannot do this with a file's mapping: nothing has changed then.
///
/// # Safety
///
/// As for [`map_over`]; what is mapped must be shared with a file, so that pages come back when they
/// are touched.
pub unsafe fn move_away(target: *mut u8, len: u64) -> io::Result<Moved> {
    /// Whole tables are moved only between addresses that are alike up to here.
    const ALIGN: usize = 1 << 30;
    let len = len as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let room = len.checked_add(ALIGN).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping, wherever the kernel has room, of memory that nobody can access.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Less than ALIGN: something is left at the other end.
    let before = (target as usize).wrapping_sub(start as usize) % ALIGN;
    let at = start.wrapping_byte_add(before);
    // Unmaps the middle in any case, which is a mapping of its own from here on.
    let moved = Moved { at, len };
    let behind = at.wrapping_byte_add(len);
    // SAFETY: both ends are of the mapping made above, and so is the middle, which the pages are
    // moved to; the caller answers for `target`.
    let result = unsafe {
        if before > 0 {
            libc::munmap(start, before);
        }
        libc::munmap(behind, ALIGN - before);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        libc::mremap(target.cast(), len, len, flags, at)
    };
    match result == libc::MAP_FAILED {
        true => Err(io::Error::last_os_error()),
        false => Ok(moved),
    }
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// PAGEMAP_SCAN: _IOWR('f', 16, struct pm_scan_arg).
const PAGEMAP_SCAN: libc::Ioctl =
    ((3 << 30) | (size_of::<ScanArg>() << 16) | ((b'f' as usize) << 8) | 16) as libc::Ioctl;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

/// The list of this process's pages, once it has been opened; `None` where there is none to be had.
static PAGEMAP: OnceLock<Option<File>> = OnceLock::new();

/// Opens what the search for private pages reads. A process that lets nobody look into it may not
/// open it itself any more, but for root.
pub fn open_pagemap() -> Option<&'static File> {
    let open = || File::open("/proc/self/pagemap").ok();
    PAGEMAP.get_or_init(open).as_ref()
}

/// The pages of a mapping at `start` that are there, whosever they are: what has been read or written
/// since it was mapped. As ranges of offsets from `start`, in order.
///
/// # Errors
///
/// Without a /proc to ask.
pub fn present_pages(start: *const u8, len: u64) -> io::Result<Vec<Range<u64>>> {
    let without = || {
        io::Error::other(
            "there is no /proc that tells which pages there are, as in a jail: record with a machine \
             in the foreground, or without a jail",
        )
    };
    pages(open_pagemap().ok_or_else(without)?, start, len, false)
}

/// The pages of a private mapping at `start` that are this process's own, not its file's: what was
/// written since it was mapped. As ranges of offsets from `start`, in order. Without a /proc to ask,
/// all of them count as written.
pub fn private_pages(start: *const u8, len: u64) -> io::Result<Vec<Range<u64>>> {
    let Some(pagemap) = open_pagemap() else {
        return Ok(std::iter::once(0..len).collect());
    };
    pages(pagemap, start, len, true)
}

/// Those that are there; with `own`, not those that are a file's.
fn pages(pagemap: &File, start: *const u8, len: u64, own: bool) -> io::Result<Vec<Range<u64>>> {
    match scan(pagemap, start as u64, len, own) {
        // Before Linux 6.7.
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
            read_pagemap(pagemap, start as u64, len, own)
        }
        found => found,
    }
}

fn scan(pagemap: &File, start: u64, len: u64, own: bool) -> io::Result<Vec<Range<u64>>> {
    let file = if own { PAGE_IS_FILE } else { 0 };
    let mut found = Vec::new();
    let mut regions = vec![PageRegion::default(); 1024];
    let mut from = start;
    while from < start + len {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: from,
            end: start + len,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_inverted: file,
            category_mask: file,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_FILE,
            ..ScanArg::default()
        };
        // SAFETY: `arg` is the structure that the kernel expects, and `vec` points to `vec_len`
        // regions that outlive the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        for region in &regions[..(count as usize).min(regions.len())] {
            push(&mut found, region.start - start..region.end - start);
        }
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Ok(found)
}

/// The same from the list of all pages (Linux, Documentation/admin-guide/mm/pagemap.rst).
fn read_pagemap(pagemap: &File, start: u64, len: u64, own: bool) -> io::Result<Vec<Range<u64>>> {
    use std::os::unix::fs::FileExt;
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    let mut found = Vec::new();
    let mut entries = vec![0u8; 64 << 10];
    let mut page = 0;
    while page < len / PAGE {
        let count = (len / PAGE - page).min(entries.len() as u64 / 8);
        let part = &mut entries[..count as usize * 8];
        pagemap.read_exact_at(part, (start / PAGE + page) * 8)?;
        for (at, entry) in (page..).zip(part.chunks_exact(8)) {
            let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            if entry & (PRESENT | SWAPPED) != 0 && !(own && entry & FILE != 0) {
                push(&mut found, at * PAGE..(at + 1) * PAGE);
            }
        }
        page += count;
    }
    Ok(found)
}

fn push(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Copies `len` bytes of this process's memory at `from` to `offset` of `file`.
///
/// # Safety
///
/// The range must be mapped for as long as the call takes. Others may write to it meanwhile.
pub unsafe fn write_out(file: &File, offset: u64, from: *const u8, len: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        // SAFETY: the kernel reads the range, which the caller answers for, and reports what it
        // cannot read.
        let count = unsafe {
            libc::pwrite(
                file.as_raw_fd(),
                from.add(done as usize).cast(),
                (len - done) as usize,
                (offset + done) as libc::off_t,
            )
        };
        match count {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count if count > 0 => done += count as u64,
            _ => match io::Error::last_os_error() {
                err if err.kind() == io::ErrorKind::Interrupted => {}
                err => return Err(err),
            },
        }
    }
    Ok(())
}
