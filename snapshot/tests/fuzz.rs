//! The reader on input that somebody made up: whatever it is, an error or a result, no panic, and
//! no more memory than the input is worth. `fuzz` is the target: it takes the bytes that a fuzzer
//! makes; here proptest makes them, by changing files of a good snapshot, with checksums that fit
//! again where the change is to get past them.

use std::hash::Hasher as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tine_snapshot::{ReadError, Snapshot, pair};

/// The files that are changed.
const FILES: [&str; 6] = [
    "incremental/manifest.json",
    "incremental/state",
    "incremental/memory-0.index",
    "incremental/memory-1.index",
    "incremental/memory-0",
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

/// Makes a file's own checksums fit what it says now, as far as its shape can still be made out.
fn mend(name: &str, file: &mut Vec<u8>) {
    let sum = |parts: &[&[u8]]| {
        let mut hasher = twox_hash::XxHash3_64::new();
        parts.iter().for_each(|part| hasher.write(part));
        hasher.finish()
    };
    match name.rsplit('/').next().unwrap_or(name) {
        "manifest.json" => {
            let mark = b",\n  \"checksum\": \"";
            let found = file.windows(mark.len()).rposition(|window| window == mark);
            file.truncate(found.unwrap_or(file.len()));
            let tail = format!(",\n  \"checksum\": \"{:016x}\"\n}}\n", sum(&[file]));
            file.extend(tail.bytes());
        }
        "state" if file.len() >= 48 => {
            let total = (file.len() as u64).to_le_bytes();
            file[16..24].copy_from_slice(&total);
            let head = sum(&[&file[..40]]);
            file[40..48].copy_from_slice(&head.to_le_bytes());
            let mut at = 48;
            while file.len() - at >= 24 {
                let number = |from: usize, len: usize| {
                    let mut bytes = [0; 8];
                    bytes[..len].copy_from_slice(&file[at + from..at + from + len]);
                    u64::from_le_bytes(bytes) as usize
                };
                let body = number(0, 2) + number(2, 2);
                let Some(end) = number(8, 8).checked_add(body + at + 24) else {
                    return;
                };
                if end > file.len() {
                    return;
                }
                let section = sum(&[&file[at..at + 16], &file[at + 24..end]]);
                file[at + 16..at + 24].copy_from_slice(&section.to_le_bytes());
                at = end;
            }
        }
        "memory-0.index" | "memory-1.index" if file.len() >= 64 => {
            let whole = sum(&[&file[..56], &file[64..]]);
            file[56..64].copy_from_slice(&whole.to_le_bytes());
        }
        _ => {}
    }
}

/// Puts the manifest's words about a changed file right, so that the file itself is looked at.
fn tell(dir: &Path, name: &str, file: &[u8]) {
    if !name.ends_with("state") && !name.ends_with(".index") {
        return;
    }
    let path = dir.join("manifest.json");
    let mut text = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
    let mut hasher = twox_hash::XxHash3_64::new();
    hasher.write(file);
    let sum = format!("\"{:016x}\"", hasher.finish());
    // The members that follow the file's name, or the member `state`.
    let (start, length, checksum) = match name.rsplit('/').next() {
        Some("state") => (text.find("\"state\": {"), "\"length\": ", "\"checksum\": "),
        Some(index) if index.ends_with(".index") => (
            text.find(&format!("\"index\": \"{index}\"")),
            "\"index_length\": ",
            "\"index_checksum\": ",
        ),
        _ => return,
    };
    let mut put = |member: &str, value: &str| {
        let at = text[start.unwrap()..].find(member).unwrap() + start.unwrap() + member.len();
        let end = text[at..].find([',', '\n']).unwrap() + at;
        text.replace_range(at..end, value);
    };
    put(length, &file.len().to_string());
    put(checksum, &sum);
    let mut bytes = text.into_bytes();
    mend("manifest.json", &mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Reads everything that a caller can ask for.
fn read(dir: &Path) -> Result<(), ReadError> {
    let snapshot = Snapshot::open(dir)?;
    let _ = snapshot.state().map(|sections| sections.len());
    if let Ok(memory) = snapshot.memory() {
        let _ = memory.runs().map(|runs| runs.len());
        let _ = memory.plan(3).map(|plan| plan.maps.len());
        for layer in 0..memory.count() {
            let _ = memory.verify_chunk(layer, 0);
            let _ = memory.verify_chunk(layer, u64::MAX);
        }
        let _ = memory.into_layers().map(|layers| layers.len());
    }
    for disk in &snapshot.manifest().disks {
        let _ = snapshot.disk_layer_file(&disk.drive, 0);
    }
    snapshot.verify(|_| ControlFlow::Continue(())).map(|_| ())
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/v1")
        .join(name)
}

/// A copy of a good snapshot, to be changed and put right again.
fn copy(kind: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    put_right(kind, dir.path(), |_| true);
    dir
}

fn put_right(kind: &str, dir: &Path, which: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(fixture(kind)).unwrap() {
        let entry = entry.unwrap();
        if which(entry.file_name().to_str().unwrap()) {
            let bytes = std::fs::read(entry.path()).unwrap();
            std::fs::write(dir.join(entry.file_name()), bytes).unwrap();
        }
    }
}

/// The target: one file of a good snapshot, which `dir` has a copy of, is `data` instead.
fn fuzz(dir: &Path, name: &str, data: &[u8], told: bool) {
    let (kind, file) = name.split_once('/').unwrap();
    std::fs::write(dir.join(file), data).unwrap();
    if told && kind != "pair" {
        tell(dir, name, data);
    }
    let result = match kind {
        "pair" => pair::read_state(&dir.join("state"))
            .and_then(|state| state.memory(&dir.join("memory")))
            .map(|_| ()),
        _ => read(dir),
    };
    if let Err(err) = result {
        let err = err.to_string();
        assert!(
            err.contains(dir.to_str().unwrap()),
            "no file is named: {err}"
        );
    }
    put_right(kind, dir, |name| name == file || name == "manifest.json");
}

#[test]
fn changed_files_are_read_or_refused() {
    let input = (
        prop::sample::select(&FILES),
        prop::collection::vec(change(), 1..4),
        any::<bool>(),
        any::<bool>(),
    );
    let (directory, two) = (copy("incremental"), copy("pair"));
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&input, |(name, changes, mended, told)| {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for change in &changes {
            change.apply(&mut bytes);
        }
        if mended {
            mend(name, &mut bytes);
        }
        let dir = if name.starts_with("pair/") {
            &two
        } else {
            &directory
        };
        fuzz(dir.path(), name, &bytes, told);
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
    ] {
        let dir = copy("incremental");
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        change.apply(&mut bytes);
        mend(name, &mut bytes);
        std::fs::write(dir.path().join(&name["incremental/".len()..]), &bytes).unwrap();
        tell(dir.path(), name, &bytes);
        let err = read(dir.path()).unwrap_err().to_string();
        assert!(err.contains(wanted), "{err}");
    }
}
