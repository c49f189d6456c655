//! Where the controllers are, found without reading the table of mounts where that is possible:
//! it is as long as the host has mounts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;

/// Where cgroups are mounted on nearly every host.
const USUAL: &str = "/sys/fs/cgroup";

/// `linux/magic.h`.
const CGROUP_V1: i64 = 0x27_e0eb;
/// `linux/magic.h`.
const CGROUP_V2: i64 = 0x6367_7270;

/// The hierarchy of version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unified {
    /// Its root.
    pub root: PathBuf,
    /// The controllers that it has, which no hierarchy of version 1 has then.
    pub controllers: Vec<String>,
    /// The group of the process that asks, from the root: an ordinary user may be allowed to make
    /// groups beside it.
    pub own: PathBuf,
}

/// The hierarchies of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// By controller.
    pub v1: BTreeMap<String, PathBuf>,
    /// The one of version 2, alone or beside the others.
    pub v2: Option<Unified>,
}

impl Hierarchies {
    /// Looks for the `controllers`. Asks for nothing when there are none.
    pub fn detect<'a>(controllers: impl Iterator<Item = &'a str>, version_2: bool) -> Self {
        let controllers: Vec<&str> = controllers.collect();
        if controllers.is_empty() && !version_2 {
            return Self::default();
        }
        let usual = Path::new(USUAL);
        match magic(usual) {
            Some(CGROUP_V2) => Self {
                v1: BTreeMap::new(),
                v2: Some(unified(usual.into())),
            },
            _ => {
                let found = Self::below(usual, &controllers);
                let complete = controllers.iter().all(|name| found.has(name));
                if complete && (found.v2.is_some() || !version_2) {
                    return found;
                }
                let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
                found.or(Self::from_mounts(&table))
            }
        }
    }

    /// The layout of version 1, and of both versions beside one another.
    fn below(dir: &Path, controllers: &[&str]) -> Self {
        let mut found = Self::default();
        for &name in controllers {
            let root = dir.join(name);
            if magic(&root) == Some(CGROUP_V1) {
                found.v1.insert(name.to_owned(), root);
            }
        }
        let both = dir.join("unified");
        if magic(&both) == Some(CGROUP_V2) {
            found.v2 = Some(unified(both));
        }
        found
    }

    /// Wherever else they may be mounted (proc(5), `mountinfo`).
    fn from_mounts(table: &str) -> Self {
        let mut found = Self::default();
        for line in table.lines() {
            let Some((place, source)) = line.split_once(" - ") else {
                continue;
            };
            let Some(root) = place.split(' ').nth(4) else {
                continue;
            };
            let mut source = source.split(' ');
            match (source.next(), source.nth(1)) {
                (Some("cgroup2"), _) if found.v2.is_none() => {
                    found.v2 = Some(unified(root.into()));
                }
                (Some("cgroup"), Some(options)) => {
                    for name in options.split(',') {
                        let root = PathBuf::from(root);
                        found.v1.entry(name.to_owned()).or_insert(root);
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn or(mut self, other: Self) -> Self {
        for (name, root) in other.v1 {
            self.v1.entry(name).or_insert(root);
        }
        self.v2 = self.v2.or(other.v2);
        self
    }

    fn has(&self, controller: &str) -> bool {
        let in_v2 = |v2: &Unified| v2.controllers.iter().any(|name| name == controller);
        self.v1.contains_key(controller) || self.v2.as_ref().is_some_and(in_v2)
    }
}

fn magic(path: &Path) -> Option<i64> {
    statfs(path).ok().map(|found| found.f_type)
}

fn unified(root: PathBuf) -> Unified {
    let words = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Unified {
        root,
        controllers: words.split_whitespace().map(str::to_owned).collect(),
        own: own.unwrap_or_default().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_tells_all_layouts() {
        let table = "\
31 23 0:28 / /cg rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /cg/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /cg/all rw - cgroup2 cgroup2 rw,nsdelegate
broken";
        let found = Hierarchies::from_mounts(table);
        assert_eq!(found.v1["cpu"], Path::new("/cg/cpu,cpuacct"));
        assert_eq!(found.v1["cpuacct"], Path::new("/cg/cpu,cpuacct"));
        assert_eq!(found.v1["memory"], Path::new("/cg/memory"));
        assert_eq!(found.v2.unwrap().root, Path::new("/cg/all"));
    }

    #[test]
    fn nothing_is_looked_for_when_nothing_is_needed() {
        assert_eq!(
            Hierarchies::detect([].into_iter(), false),
            Hierarchies::default()
        );
    }
}
