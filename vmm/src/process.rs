//! What our programs set for their whole process, before any other thread is there.

/// Keeps all threads on one heap. The allocator would give each its own, which costs pages and
/// system calls at the start of every thread; a monitor's threads hardly allocate at all.
pub fn share_one_heap() {
    // SAFETY: mallopt takes two integers, and there is no other thread yet that allocates.
    // A refusal (0) leaves the default, which works as well.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives heap pages that nothing is in any more back to the system.
pub fn give_free_memory_back() {
    // SAFETY: malloc_trim takes an integer and is safe to call from any thread.
    unsafe { libc::malloc_trim(0) };
}
