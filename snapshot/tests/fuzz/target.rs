//! What a fuzzer's bytes are given to: a copy of a good snapshot, in which they stand for files. Each
//! change can be got past the checksums, which find damage and not malice.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::ops::ControlFlow;
use std::path::Path;

use tempfile::TempDir;
use tine_snapshot::{PAGE, ReadError, Snapshot, WorkingSet, pair};

/// The manifest of a directory.
const MANIFEST: &str = "manifest.json";
/// A working set, which lies beside snapshots and is read by itself.
const WORKING_SET: &str = "working-set";

fn sum(parts: &[&[u8]]) -> u64 {
    let mut hasher = twox_hash::XxHash3_64::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// Makes a file's own checksums fit what it says now, as far as its shape can still be made out.
pub fn mend(name: &str, file: &mut Vec<u8>) {
    match name.rsplit('/').next().unwrap_or(name) {
        MANIFEST => {
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
        WORKING_SET if file.len() >= 48 => {
            let whole = sum(&[&file[..40], &file[48..]]);
            file[40..48].copy_from_slice(&whole.to_le_bytes());
        }
        _ => {}
    }
}

/// A copy of a good snapshot, to be changed and put right again.
pub struct Copy {
    good: BTreeMap<String, Vec<u8>>,
    dir: TempDir,
}

impl Copy {
    /// Of the snapshot in the directory `good`, with a working set of it; or of the known API's two
    /// files.
    pub fn of(good: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if let Ok(snapshot) = Snapshot::open(good) {
            let set = WorkingSet {
                snapshot: snapshot.manifest().id,
                size: snapshot.manifest().machine.memory_bytes,
                ranges: vec![0..PAGE, 3 * PAGE..7 * PAGE],
            };
            set.write(&dir.path().join(WORKING_SET)).unwrap();
        }
        for entry in std::fs::read_dir(good).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        let entries = std::fs::read_dir(dir.path()).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        });
        let good = entries.collect();
        Self { good, dir }
    }

    /// What a file was.
    pub fn good(&self, file: &str) -> &[u8] {
        &self.good[file]
    }

    /// Has `data` stand in the place of a file.
    pub fn write(&self, file: &str, data: &[u8]) {
        std::fs::write(self.dir.path().join(file), data).unwrap();
    }

    /// Makes these files and the manifest again what they were.
    pub fn put_right<'a>(&self, files: impl IntoIterator<Item = &'a str>) {
        for file in files.into_iter().chain([MANIFEST]) {
            // The two files have no manifest beside them.
            if let Some(bytes) = self.good.get(file) {
                self.write(file, bytes);
            }
        }
    }

    /// Puts the manifest's words about a changed file right, so that the file itself is looked at.
    /// Where they are not found, it stays as it is.
    pub fn tell(&self, file: &str) {
        let Ok(bytes) = std::fs::read(self.dir.path().join(MANIFEST)) else {
            return;
        };
        let Ok(mut text) = String::from_utf8(bytes) else {
            return;
        };
        let data = std::fs::read(self.dir.path().join(file)).unwrap();
        // The members that follow the file's name, or the member `state`.
        let (mark, length, checksum) = match file {
            "state" => ("\"state\": {".to_owned(), "\"length\": ", "\"checksum\": "),
            index if index.ends_with(".index") => (
                format!("\"index\": \"{index}\""),
                "\"index_length\": ",
                "\"index_checksum\": ",
            ),
            _ => return,
        };
        let mut put = |member: &str, value: &str| {
            let start = text.find(&mark)?;
            let at = text[start..].find(member)? + start + member.len();
            let end = text[at..].find([',', '\n'])? + at;
            text.replace_range(at..end, value);
            Some(())
        };
        put(length, &data.len().to_string());
        put(checksum, &format!("\"{:016x}\"", sum(&[&data])));
        let mut bytes = text.into_bytes();
        mend(MANIFEST, &mut bytes);
        self.write(MANIFEST, &bytes);
    }

    /// Reads everything that a caller can ask for. An error is given as its words, which name a file.
    pub fn read(&self) -> Result<(), String> {
        let dir = self.dir.path();
        let result = match self.good.contains_key(MANIFEST) {
            false => read_pair(dir),
            true => read_directory(dir).and(read_working_set(dir)),
        };
        result.map_err(|err| {
            let err = err.to_string();
            let names = err.contains(dir.to_str().unwrap());
            assert!(names, "no file is named: {err}");
            err
        })
    }
}

fn read_directory(dir: &Path) -> Result<(), ReadError> {
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

fn read_pair(dir: &Path) -> Result<(), ReadError> {
    let memory = pair::read_state(&dir.join("state"))?.memory(&dir.join("memory"))?;
    memory.runs().map(|_| ())
}

fn read_working_set(dir: &Path) -> Result<(), ReadError> {
    let set = WorkingSet::read(&dir.join(WORKING_SET))?;
    assert!(set.bytes() <= set.size, "{set:?}");
    Ok(())
}
