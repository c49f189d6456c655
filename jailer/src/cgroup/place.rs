//! Which groups are made where. Pure.

use std::path::{Path, PathBuf};

use super::{Hierarchies, Request, Setting, Version};

/// A setting that no hierarchy takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoController {
    /// There is no such controller where it was looked for.
    #[error("--cgroup {setting}: there is no controller {controller:?} in {place}: {offer}")]
    Missing {
        /// The setting.
        setting: String,
        /// Its controller.
        controller: String,
        /// Where it was looked for.
        place: &'static str,
        /// What there is.
        offer: String,
    },
    /// There is no hierarchy of version 2.
    #[error("--cgroup-version 2: this host has no cgroups of version 2 mounted")]
    NoVersion2,
}

/// A group to be made and entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its kind.
    pub version: Version,
    /// The root of its hierarchy.
    pub root: PathBuf,
    /// Where it is below that.
    pub path: PathBuf,
    /// What has to be switched on for it on the way down, in version 2.
    pub controllers: Vec<String>,
    /// What is written to it.
    pub settings: Vec<Setting>,
    /// It is a group that somebody else made, if it is there at all.
    pub existing: bool,
    /// The groups above it are the jailer's, and go when they are empty.
    pub own_parent: bool,
}

impl Group {
    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.root.join(&self.path)
    }
}

/// The groups for `request` of a machine `id` of `program`. `delegated`: only beside the group of
/// the process that asks. Below it there can be none: the process itself is in it, and no group of version 2
/// that a process is in hands controllers on.
pub(crate) fn place(
    request: &Request,
    host: &Hierarchies,
    program: &str,
    id: &str,
    delegated: bool,
) -> Result<Vec<Group>, NoController> {
    let parent = request.parent.as_deref().unwrap_or(Path::new(program));
    let group = |version, root: &Path, path: PathBuf| Group {
        version,
        root: root.into(),
        path,
        controllers: Vec::new(),
        settings: Vec::new(),
        existing: false,
        own_parent: request.parent.is_none(),
    };
    let below = |version| match (&host.v2, version) {
        (Some(v2), Version::V2) if delegated => {
            v2.own.parent().unwrap_or(Path::new("")).join(parent)
        }
        _ => parent.to_owned(),
    };
    if request.settings.is_empty() {
        // The known jailer's meaning of version 2 without settings: the parent is the group.
        return match (request.version, &host.v2) {
            (Some(Version::V2), Some(v2)) => Ok(vec![Group {
                existing: true,
                ..group(Version::V2, &v2.root, below(Version::V2))
            }]),
            (Some(Version::V2), None) => Err(NoController::NoVersion2),
            _ => Ok(Vec::new()),
        };
    }
    let mut groups: Vec<Group> = Vec::new();
    for setting in &request.settings {
        let (version, root) = find(setting, request.version, host)?;
        let known = |group: &Group| group.version == version && group.root == root;
        let index = groups.iter().position(known).unwrap_or_else(|| {
            groups.push(group(version, root, below(version).join(id)));
            groups.len() - 1
        });
        let group = &mut groups[index];
        let controller = setting.controller();
        let core = version == Version::V2 && controller == "cgroup";
        if !core && !group.controllers.iter().any(|name| name == controller) {
            group.controllers.push(controller.to_owned());
        }
        group.settings.push(setting.clone());
    }
    Ok(groups)
}

fn find<'a>(
    setting: &Setting,
    version: Option<Version>,
    host: &'a Hierarchies,
) -> Result<(Version, &'a Path), NoController> {
    let controller = setting.controller();
    let v1 = host
        .v1
        .get(controller)
        .map(|root| (Version::V1, root.as_path()));
    let v2 = host.v2.as_ref().filter(|v2| {
        controller == "cgroup" || v2.controllers.iter().any(|name| name == controller)
    });
    let v2 = v2.map(|v2| (Version::V2, v2.root.as_path()));
    let (found, place) = match version {
        Some(Version::V1) => (v1, "cgroups of version 1"),
        Some(Version::V2) => (v2, "cgroups of version 2"),
        None => (v1.or(v2), "this host's cgroups"),
    };
    found.ok_or_else(|| {
        let other = match (version, v1, v2) {
            (Some(Version::V1), _, Some(_)) => "version 2 has it: leave --cgroup-version out",
            (Some(Version::V2), Some(_), _) => "version 1 has it: leave --cgroup-version out",
            _ => "is it switched on in the kernel, and mounted below /sys/fs/cgroup?",
        };
        NoController::Missing {
            setting: format!("{}={}", setting.file, setting.value),
            controller: controller.to_owned(),
            place,
            offer: other.to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Unified;

    fn v1() -> Hierarchies {
        let root = |name: &str| (name.to_owned(), PathBuf::from("/cg").join(name));
        Hierarchies {
            v1: ["memory", "pids"].map(root).into(),
            v2: None,
        }
    }

    fn v2() -> Hierarchies {
        Hierarchies {
            v1: Default::default(),
            v2: Some(Unified {
                root: "/cg".into(),
                controllers: ["cpu", "memory", "pids"].map(str::to_owned).into(),
                own: "user.slice/1".into(),
            }),
        }
    }

    fn hybrid() -> Hierarchies {
        let mut both = v1();
        both.v2 = Some(Unified {
            root: "/cg/unified".into(),
            controllers: vec!["io".to_owned()],
            own: PathBuf::new(),
        });
        both
    }

    fn request(settings: &[&str], version: Option<Version>) -> Request {
        Request {
            version,
            settings: settings.iter().map(|text| text.parse().unwrap()).collect(),
            parent: None,
        }
    }

    fn dirs(groups: &[Group]) -> Vec<String> {
        let text = |group: &Group| group.dir().display().to_string();
        groups.iter().map(text).collect()
    }

    /// Field case 53.
    #[test]
    fn the_version_is_found_where_none_is_given() {
        let both = request(&["memory.x=1", "pids.max=2", "memory.y=3"], None);
        let groups = place(&both, &v1(), "vmm", "a", false).unwrap();
        assert_eq!(dirs(&groups), ["/cg/memory/vmm/a", "/cg/pids/vmm/a"]);
        assert_eq!(groups[0].settings.len(), 2);
        let groups = place(&both, &v2(), "vmm", "a", false).unwrap();
        assert_eq!(dirs(&groups), ["/cg/vmm/a"]);
        assert_eq!(groups[0].controllers, ["memory", "pids"]);
        let mixed = request(&["memory.x=1", "io.max=8:0 rbps=1"], None);
        let groups = place(&mixed, &hybrid(), "vmm", "a", false).unwrap();
        assert_eq!(dirs(&groups), ["/cg/memory/vmm/a", "/cg/unified/vmm/a"]);
        assert_eq!(groups[1].version, Version::V2);
    }

    #[test]
    fn a_missing_controller_is_named_with_the_way_out() {
        let asked = request(&["io.max=1"], Some(Version::V1));
        let err = place(&asked, &hybrid(), "vmm", "a", false).unwrap_err();
        let text = err.to_string();
        assert!(
            text.contains("io.max=1") && text.contains("version 2 has it"),
            "{text}"
        );
        let asked = request(&["rdma.max=1"], None);
        assert!(place(&asked, &v2(), "vmm", "a", false).is_err());
    }

    #[test]
    fn without_settings_version_2_means_the_parent_itself() {
        let asked = request(&[], Some(Version::V2));
        let groups = place(&asked, &v2(), "vmm", "a", false).unwrap();
        assert_eq!(dirs(&groups), ["/cg/vmm"]);
        assert!(groups[0].existing);
        assert!(place(&asked, &v1(), "vmm", "a", false).is_err());
        assert!(
            place(&request(&[], None), &v2(), "vmm", "a", false)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn an_ordinary_user_stays_beside_its_own_group() {
        let asked = request(&["pids.max=1"], None);
        let groups = place(&asked, &v2(), "vmm", "a", true).unwrap();
        assert_eq!(dirs(&groups), ["/cg/user.slice/vmm/a"]);
    }
}
