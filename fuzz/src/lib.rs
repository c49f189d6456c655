//! What the targets share.

#[path = "../../tests/tests/api_fuzz/answers.rs"]
pub mod answers;
#[path = "../../tests/tests/api_fuzz/examples.rs"]
pub mod examples;

pub mod bounded;
pub mod server;

use std::path::Path;

/// Where files are made: in memory, as a disk would be waited for each time.
const FILES: &str = "/dev/shm";

/// What stands between the parts of an input that has some.
pub const BETWEEN: &[u8] = b"\0--\xff\n";

/// The parts of an input, at least one.
pub fn split(mut data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let found = |data: &[u8]| data.windows(BETWEEN.len()).position(|part| part == BETWEEN);
    while let Some(at) = found(data) {
        parts.push(&data[..at]);
        data = &data[at + BETWEEN.len()..];
    }
    parts.push(data);
    parts
}

/// Does what has to be done before the first input, and begins the corpus with good input, which a
/// fuzzer by itself would take long to come to: in the first directory among the arguments, which is
/// where libFuzzer puts what it finds.
pub fn begin(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    // The program's start is libFuzzer's, not Rust's.
    tine_jailer::begin();
    if Path::new(FILES).is_dir() {
        tempfile::env::override_temp_dir(Path::new(FILES)).expect("the first call");
    }
    let mut names = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'));
    let Some(corpus) = names.find(|name| Path::new(name).is_dir()) else {
        return;
    };
    for (n, input) in seeds().into_iter().enumerate() {
        std::fs::write(Path::new(&corpus).join(format!("seed-{n}")), input).expect("a corpus");
    }
}
