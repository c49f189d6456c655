//! `tine`, the command line.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    tine::process::share_one_heap();
    cli::main()
}
