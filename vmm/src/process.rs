//! What our programs set for their whole process, before any other thread is there.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Keeps all threads on one heap. The allocator would give each its own, which costs pages and
/// system calls at the start of every thread; a monitor's threads hardly allocate at all.
pub fn share_one_heap() {
    // SAFETY: mallopt takes two integers, and there is no other thread yet that allocates.
    // A refusal (0) leaves the default, which works as well.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Lets nobody of the same user look into the process, and has no memory of it written anywhere
/// when it crashes.
pub fn keep_to_itself() -> std::io::Result<()> {
    // The kernel counts the process itself among those from then on.
    crate::memory::open_pagemap();
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(Into::into)
}

/// Gives heap pages that nothing is in any more back to the system.
pub fn give_free_memory_back() {
    // SAFETY: malloc_trim takes an integer and is safe to call from any thread.
    unsafe { libc::malloc_trim(0) };
}
