//! The reader on input that somebody made up: whatever it is, an error or a result, no panic, and
//! no more memory than the input is worth. `target` is what a fuzzer's bytes are given to (`fuzz/`
//! has one that is guided by coverage); here proptest makes them, by changing files of a good
//! snapshot, with checksums that fit again where the change is to get past them.

mod target;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use target::{Copy, mend};

/// The files that are changed.
const FILES: [&str; 7] = [
    "incremental/manifest.json",
    "incremental/state",
    "incremental/memory-0.index",
    "incremental/memory-1.index",
    "incremental/memory-0",
    "incremental/working-set",
    "pair/state",
];

/// A change of one file.
#[derive(Debug, Clone)]
enum Change {
    /// Other bytes from here on.
    Write { at: usize, bytes: Vec<u8> },
    /// A number as the format has them, of 2, 4 or 8 bytes.
    Number { at: usize, width: usize, value: u64 },
    /// Bytes that were not there.
    Insert { at: usize, bytes: Vec<u8> },
    /// Bytes gone.
    Remove { at: usize, len: usize },
    /// A part of the file once more at another place.
    Copy { from: usize, to: usize, len: usize },
    /// Another word in a text.
    Word { nth: usize, word: String },
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..300_u64,
        Just(u64::MAX),
        Just(1 << 31),
        Just(1 << 63),
        (0..64_u32).prop_map(|bit| 1 << bit),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0..5000_usize;
    let bytes = || prop::collection::vec(any::<u8>(), 1..40);
    let word = "[ -~]{0,12}|-?[0-9]{1,25}|null|\\[|\\{|\"|[\\[{]{200}";
    prop_oneof![
        (at.clone(), bytes()).prop_map(|(at, bytes)| Change::Write { at, bytes }),
        (at.clone(), prop_oneof![Just(2), Just(4), Just(8)], number())
            .prop_map(|(at, width, value)| Change::Number { at, width, value }),
        (at.clone(), bytes()).prop_map(|(at, bytes)| Change::Insert { at, bytes }),
        (at.clone(), 1..200_usize).prop_map(|(at, len)| Change::Remove { at, len }),
        (at.clone(), at, 1..200_usize).prop_map(|(from, to, len)| Change::Copy { from, to, len }),
        (0..300_usize, word).prop_map(|(nth, word)| Change::Word { nth, word }),
    ]
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        let clamp = |at: usize| at % (file.len() + 1);
        match self {
            Self::Write { at, bytes } => {
                let at = clamp(*at);
                let end = (at + bytes.len()).min(file.len());
                file.splice(at..end, bytes.iter().copied());
            }
            Self::Number { at, width, value } => {
                // Numbers stand at even places.
                let at = clamp(*at) & !1;
                let end = (at + width).min(file.len());
                file.splice(at..end, value.to_le_bytes()[..*width].iter().copied());
            }
            Self::Insert { at, bytes } => {
                let at = clamp(*at);
                file.splice(at..at, bytes.iter().copied());
            }
            Self::Remove { at, len } => {
                let at = clamp(*at);
                file.drain(at..(at + len).min(file.len()));
            }
            Self::Copy { from, to, len } => {
                let (from, to) = (clamp(*from), clamp(*to));
                let part = file[from..(from + len).min(file.len())].to_vec();
                file.splice(to..to, part);
            }
            Self::Word { nth, word } => {
                let ends = |b: &u8| b" \n,:[]{}\"".contains(b);
                let words = file.split(ends).count();
                let mut start = 0;
                for (n, part) in file.split(ends).enumerate() {
                    if n == nth % words {
                        let end = start + part.len();
                        file.splice(start..end, word.bytes());
                        return;
                    }
                    start += part.len() + 1;
                }
            }
        }
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/v1")
        .join(name)
}

#[test]
fn changed_files_are_read_or_refused() {
    let input = (
        prop::sample::select(&FILES),
        prop::collection::vec(change(), 1..4),
        any::<bool>(),
        any::<bool>(),
    );
    let directory = Copy::of(&fixture("incremental"));
    let two = Copy::of(&fixture("pair"));
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&input, |(name, changes, mended, told)| {
        let (kind, file) = name.split_once('/').unwrap();
        let copy = if kind == "pair" { &two } else { &directory };
        let mut bytes = copy.good(file).to_vec();
        for change in &changes {
            change.apply(&mut bytes);
        }
        if mended {
            mend(name, &mut bytes);
        }
        copy.write(file, &bytes);
        if told {
            copy.tell(file);
        }
        let _ = copy.read();
        copy.put_right([file]);
        Ok(())
    });
    result.unwrap_or_else(|err| panic!("{err}"));
}

#[test]
fn the_mender_gets_changes_past_the_checksums() {
    let number = |at, width, value| Change::Number { at, width, value };
    for (name, change, wanted) in [
        ("incremental/memory-0.index", number(64, 4, 99), "extent 0"),
        ("incremental/state", number(48, 2, 0), "impossible length"),
        ("incremental/working-set", number(52, 4, 0), "range 0"),
    ] {
        let (kind, file) = name.split_once('/').unwrap();
        let copy = Copy::of(&fixture(kind));
        let mut bytes = copy.good(file).to_vec();
        change.apply(&mut bytes);
        mend(name, &mut bytes);
        copy.write(file, &bytes);
        copy.tell(file);
        let err = copy.read().unwrap_err();
        assert!(err.contains(wanted), "{err}");
    }
}
