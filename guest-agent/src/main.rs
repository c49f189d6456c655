//! `tine-agent`: runs commands in a Tine guest on its monitor's behalf. See [`agent`].

#![cfg_attr(not(test), no_main)]

mod agent;

/// What the C library calls. Rust's own start would make some fifteen system calls for stack guards and closed
/// descriptors, which the agent does without, and would have SIGPIPE ignored in every command.
#[cfg(not(test))]
// SAFETY: the one definition of this symbol, with the signature that the C library expects.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    agent::main()
}

#[cfg(test)]
fn main() {
    std::process::exit(agent::main());
}
