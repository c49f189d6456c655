//! The reader of snapshots, on files that somebody made up: directories, the known API's two files,
//! working sets.
//!
//! An input is one file or more, with [`tine_fuzz::BETWEEN`] between them. The first byte of each says which file
//! of which good snapshot it stands for, and whether its checksums and the manifest's words about it
//! are made to fit.

#![no_main]

#[path = "../../snapshot/tests/fuzz/target.rs"]
mod target;

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use target::{Copy, mend};
use tine_fuzz::BETWEEN;
use tine_fuzz::bounded::Bounded;

#[global_allocator]
static ALLOCATOR: Bounded<{ 16 << 20 }> = Bounded;

/// Not mended, of the first byte.
const AS_IS: u8 = 0x80;
/// Not told in the manifest, of the first byte.
const UNTOLD: u8 = 0x40;

/// What can be changed: the number of a good snapshot, and its file.
const FILES: [(usize, &str); 9] = [
    (0, "manifest.json"),
    (0, "state"),
    (0, "memory-0.index"),
    (0, "memory-1.index"),
    (0, "working-set"),
    (1, "manifest.json"),
    (1, "memory-0.index"),
    (2, "manifest.json"),
    (3, "state"),
];
const KINDS: [&str; 4] = ["incremental", "full", "disk", "pair"];

thread_local! {
    static COPIES: [Copy; 4] = KINDS.map(copy);
}

fn copy(kind: &str) -> Copy {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshot/tests/fixtures/v1");
    Copy::of(&Path::new(fixtures).join(kind))
}

fn seeds() -> Vec<Vec<u8>> {
    let files = FILES.iter().enumerate();
    let mut seeds: Vec<_> = COPIES.with(|copies| {
        let part = |(n, (kind, file)): (usize, &(usize, &str))| {
            [&[n as u8], copies[*kind].good(file)].concat()
        };
        files.map(part).collect()
    });
    // All of one snapshot at once.
    seeds.push(seeds[..5].join(BETWEEN));
    seeds
}

fn run(copies: &[Copy; 4], data: &[u8]) {
    let mut changed = Vec::new();
    let mut at = None;
    for part in tine_fuzz::split(data) {
        let Some((first, bytes)) = part.split_first() else {
            continue;
        };
        let (kind, file) = FILES[usize::from(first & 0x3f) % FILES.len()];
        // One snapshot at a time.
        let copy = &copies[*at.get_or_insert(kind)];
        if at != Some(kind) {
            continue;
        }
        let mut bytes = bytes.to_vec();
        if first & AS_IS == 0 {
            mend(file, &mut bytes);
        }
        copy.write(file, &bytes);
        changed.push((file, first & UNTOLD == 0));
    }
    let Some(kind) = at else { return };
    let copy = &copies[kind];
    for (file, told) in &changed {
        if *told {
            copy.tell(file);
        }
    }
    let _ = copy.read();
    copy.put_right(changed.iter().map(|(file, _)| *file));
}

fuzz_target!(
    init: tine_fuzz::begin(seeds),
    |data: &[u8]| COPIES.with(|copies| run(copies, data))
);
