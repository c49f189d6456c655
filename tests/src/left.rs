//! What machines leave behind, and choices made at random that can be made again.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::Place;
use crate::text;

impl Place {
    /// The processes that work in this place: their numbers, and the words of their command lines.
    pub fn processes(&self) -> Vec<(i32, Vec<String>)> {
        let run = self.run().into_os_string().into_string().expect("text");
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid: i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words = text(&words);
            let words = words.split_terminator('\0').map(str::to_owned);
            Some((pid, words.collect()))
        })
        .filter(|(_, words): &(i32, Vec<String>)| words.iter().any(|word| word.contains(&run)))
        .collect()
    }

    /// The process of the machine `id`.
    pub fn process(&self, id: &str) -> Option<i32> {
        let dir = self.run().join(id).into_os_string();
        let dir = dir.into_string().expect("text");
        let all = self.processes().into_iter();
        let mut ours = all.filter(|(_, words)| words.contains(&dir));
        ours.next().map(|(pid, _)| pid)
    }

    /// The machines that have a directory.
    pub fn machines(&self) -> HashSet<String> {
        let found = fs::read_dir(self.run()).expect("a directory").flatten();
        let names = found.map(|entry| entry.file_name().into_string().expect("text"));
        names.filter(|name| !name.starts_with('.')).collect()
    }
}

/// Kills a process, which may have ended.
pub fn kill(pid: i32) {
    // SAFETY: kill takes two integers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// The files below a directory: what is in each, and how many names it has.
pub fn files(dir: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
            continue;
        }
        let meta = fs::symlink_metadata(&path).expect("a file");
        let mut hasher = DefaultHasher::new();
        // A socket has nothing in it.
        if meta.is_file() {
            fs::read(&path).expect("a file").hash(&mut hasher);
        }
        found.insert(path, (hasher.finish(), meta.nlink()));
    }
    found
}

/// Choices at random.
pub struct Random(u64);

impl Random {
    /// Prints its seed; `TINE_SEED` sets it.
    pub fn new() -> Self {
        let given = std::env::var("TINE_SEED").ok();
        let given = given.map(|seed| seed.parse().expect("TINE_SEED is a number"));
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(()));
        println!("the same again: TINE_SEED={seed}");
        Self(seed)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// A time below `end`.
    pub fn within(&mut self, end: Duration) -> Duration {
        Duration::from_micros(self.below(end.as_micros().max(1) as u64))
    }

    /// One of several.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        match all.len() as u64 {
            0 => None,
            len => all.get(self.below(len) as usize),
        }
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
