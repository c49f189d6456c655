//! An allocator that ends the process when somebody asks for more at once than an input can be worth.
//! (libFuzzer's own limit, `-malloc_limit_mb`, needs a sanitizer.)

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, up to `MOST` bytes at once.
pub struct Bounded<const MOST: usize>;

impl<const MOST: usize> Bounded<MOST> {
    fn look_at(size: usize) {
        if size > MOST {
            // What follows asks for little, and so comes here only once.
            eprintln!("an allocation of {size} bytes, of {MOST} at most");
            std::process::abort();
        }
    }
}

// SAFETY: the system's allocator does it all; what is refused does not return.
unsafe impl<const MOST: usize> GlobalAlloc for Bounded<MOST> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::look_at(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::look_at(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::look_at(size);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}
