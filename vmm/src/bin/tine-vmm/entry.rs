//! Where the C library hands over.
//!
//! The start of Rust's own runtime is left out: for a message about a full stack it reads the
//! process's memory map and gives each thread a second stack, which takes 4 % of a start. A stack that
//! is full ends the process still, at its guard page, by SIGSEGV. What else that start does is done
//! here.

use std::ffi::{c_char, c_int};
use std::io::Write;

/// The C library's entry point. The standard library finds the arguments by itself.
// The name is the one that the C library calls, and the signature is C's of `main`.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _words: *const *const c_char) -> c_int {
    tine_jailer::begin();
    let status = crate::start();
    // The standard library's own buffer, which nobody else writes out.
    match std::io::stdout().flush() {
        Ok(()) => status.into(),
        Err(_) => status.max(1).into(),
    }
}
