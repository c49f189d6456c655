//! What our programs set for their whole process, before any other thread is there.

use std::os::fd::RawFd;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Bytes of heap that are written to until the first request has been answered. The C library has
/// mapped more of it by then.
const HEAP: usize = 84 << 10;

/// Bytes that the C library's heap begins with.
const MAPPED: usize = 132 << 10;

/// Keeps all threads on one heap. The allocator would give each its own, which costs pages and
/// system calls at the start of every thread; a monitor's threads hardly allocate at all.
pub fn share_one_heap() {
    // SAFETY: mallopt takes two integers, and there is no other thread yet that allocates.
    // A refusal (0) leaves the default, which works as well.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Maps the heap that every start fills in one call, instead of by a fault for each page: 40 us of a
/// start of 1 ms on a virtual host. (Mapping the program's code ahead as well costs more than it
/// saves: most of it is never run.)
pub fn map_heap_ahead() {
    // SAFETY: sbrk(0) tells where the heap ends. This advice changes no memory's content and touches
    // nothing that is not mapped: an older kernel, or a gap, is an error that is left alone.
    unsafe {
        let heap = libc::sbrk(0).wrapping_byte_sub(MAPPED);
        libc::madvise(heap, HEAP, libc::MADV_POPULATE_WRITE);
    }
}

/// Maps all of the program's code that is in the host's memory, for a process that has the time:
/// the first run of each page of it is some 6 us of a fault otherwise.
pub fn map_code_ahead() {
    unsafe extern "C" {
        static __executable_start: u8;
        static etext: u8;
    }
    let (start, end) = (&raw const __executable_start, &raw const etext);
    let (start, length) = (start.cast_mut().cast(), end.addr() - start.addr());
    // SAFETY: the linker defines both, around the program's headers, constants and code. This advice changes no
    // memory's content and touches nothing that is not mapped: an older kernel, or a gap, is an error that is
    // left alone.
    unsafe { libc::madvise(start, length, libc::MADV_POPULATE_READ) };
}

/// Lets nobody of the same user look into the process, and has no memory of it written anywhere
/// when it crashes.
pub fn keep_to_itself() -> std::io::Result<()> {
    // The kernel counts the process itself among those from then on.
    crate::memory::open_pagemap();
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(Into::into)
}

/// Writes `words` to a descriptor, and ends the process without running anything of it: it is the copy
/// of another one.
pub fn leave_telling(descriptor: RawFd, words: &[u8]) -> ! {
    // SAFETY: the pointer and the length are those of `words`, which lives through the call; a
    // descriptor that is not open is an error, which there is nobody to tell of.
    unsafe {
        libc::write(descriptor, words.as_ptr().cast(), words.len());
        libc::_exit(0)
    }
}

/// Gives heap pages that nothing is in any more back to the system.
pub fn give_free_memory_back() {
    // SAFETY: malloc_trim takes an integer and is safe to call from any thread.
    unsafe { libc::malloc_trim(0) };
}
