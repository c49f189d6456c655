//! Runs a program and notes down what its threads call: `tine-trace DIRECTORY PROGRAM [ARGS]`.
//! The program keeps this process's number, so whoever started it can treat it as the program.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use tine_jailer::seccomp::{From, trace_to};

fn main() {
    let mut words = std::env::args_os().skip(1);
    let (Some(dir), Some(program)) = (words.next(), words.next()) else {
        panic!("tine-trace DIRECTORY PROGRAM [ARGS]");
    };
    let file = Path::new(&dir).join(format!("{}.trace", std::process::id()));
    if let Err(err) = trace_to(&file, From::Execution) {
        panic!("{err}");
    }
    panic!("{}", Command::new(program).args(words).exec());
}
