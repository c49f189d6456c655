//! A process in a jail, as the host sees it.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A line of `/proc/PID/status`, its blanks made one.
pub fn status(pid: i32, key: &str) -> String {
    let all = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = all.lines().find_map(|line| line.strip_prefix(key));
    let words = line.unwrap_or_default().trim_start_matches(':');
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Which namespace of a kind a process is in.
pub fn namespace(pid: impl Display, kind: &str) -> u64 {
    let file = fs::metadata(format!("/proc/{pid}/ns/{kind}"));
    file.expect("a process").ino()
}

/// Where a process has mounts, sorted.
pub fn mounts(pid: i32) -> Vec<String> {
    let all = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("a process");
    let places = all.lines().filter_map(|line| line.split(' ').nth(4));
    let mut places: Vec<String> = places.map(str::to_owned).collect();
    places.sort();
    places
}

/// The directory of a process's group that a controller's file is in.
pub fn group(pid: i32, file: &str) -> PathBuf {
    let all = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("a process");
    let controller = file.split('.').next().expect("a word");
    let root = Path::new("/sys/fs/cgroup");
    let found = all.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, names) = (parts.next()?, parts.next()?);
        let path = parts.next()?.trim_start_matches('/');
        match number {
            _ if names.split(',').any(|name| name == controller) => {
                Some(root.join(controller).join(path))
            }
            "0" => Some(root.join(path)).filter(|dir| dir.join(file).exists()),
            _ => None,
        }
    });
    found.unwrap_or_else(|| panic!("{file} in {all}"))
}

/// The names in a directory, sorted.
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    let names = entries.map(|entry| entry.file_name().into_string().expect("text"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Fails unless a process is this user and group, has no right beyond it, cannot get any, and is in
/// no namespace of this process's.
pub fn is_jailed(pid: i32, user: u32, group: u32) {
    for (key, id) in [("Uid", user), ("Gid", group)] {
        assert_eq!(status(pid, key), format!("{id} {id} {id} {id}"), "{key}");
    }
    for (key, wanted) in [
        ("CapInh", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapEff", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        assert_eq!(status(pid, key), wanted, "{key}");
    }
    assert!(status(pid, "NSpid").ends_with(" 1"));
    for kind in ["mnt", "pid", "ipc", "uts", "net", "cgroup", "user"] {
        assert_ne!(namespace(pid, kind), namespace("self", kind), "{kind}");
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).expect("a process");
    assert!(environment.is_empty());
}
