//! Whom a command runs as: names looked up in the guest root's own files.

use std::io::{BufRead, BufReader};

use super::child::Identity;

/// A user as a command's environment needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// What to change to; `None` stays root.
    pub identity: Option<Identity>,
    pub name: String,
    pub home: String,
}

impl User {
    /// What a command runs as when nothing is said. No file is read for it.
    pub fn root() -> Self {
        Self {
            identity: None,
            name: "root".into(),
            home: "/root".into(),
        }
    }

    /// Resolves `name`, `uid` or `uid:gid` (also `name:group`). The error is a sentence.
    pub fn resolve(spec: &str) -> Result<Self, String> {
        Self::resolve_in(spec, "/etc/passwd", "/etc/group")
    }

    fn resolve_in(spec: &str, passwd: &str, group: &str) -> Result<Self, String> {
        let (user, wanted_group) = match spec.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (spec, None),
        };
        let number: Option<u32> = user.parse().ok();
        let entry = lines(passwd).find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, ..] = fields[..] else {
                return None;
            };
            let uid: u32 = uid.parse().ok()?;
            let hit = name == user || Some(uid) == number;
            hit.then(|| {
                (
                    name.to_owned(),
                    uid,
                    gid.parse().unwrap_or(uid),
                    home.to_owned(),
                )
            })
        });
        let (name, uid, gid, home) = match (entry, number) {
            (Some(entry), _) => entry,
            // A number needs no entry.
            (None, Some(uid)) => (uid.to_string(), uid, uid, "/".to_owned()),
            (None, None) => return Err(format!("user `{user}` is not in {passwd}")),
        };
        let mut groups = Vec::new();
        let mut wanted_gid = wanted_group.and_then(|wanted| wanted.parse().ok());
        for line in lines(group) {
            let fields: Vec<&str> = line.split(':').collect();
            let [group_name, _, group_gid, members, ..] = fields[..] else {
                continue;
            };
            let Ok(group_gid) = group_gid.parse::<u32>() else {
                continue;
            };
            if wanted_group == Some(group_name) {
                wanted_gid = Some(group_gid);
            }
            if members.split(',').any(|member| member == name) {
                groups.push(group_gid);
            }
        }
        let gid = match (wanted_group, wanted_gid) {
            (None, _) => gid,
            (Some(_), Some(gid)) => gid,
            (Some(wanted), None) => return Err(format!("group `{wanted}` is not in {group}")),
        };
        if wanted_group.is_some() {
            // An explicit group means exactly that group.
            groups.clear();
        }
        if !groups.contains(&gid) {
            groups.push(gid);
        }
        Ok(Self {
            identity: Some(Identity { uid, gid, groups }),
            name,
            home,
        })
    }
}

/// The lines of a file; none if it is not there, and those that are not UTF-8 left out.
fn lines(path: &str) -> impl Iterator<Item = String> {
    let file = std::fs::File::open(path).ok();
    file.into_iter()
        .flat_map(|file| BufReader::new(file).lines().map_while(Result::ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(spec: &str) -> Result<(u32, u32, Vec<u32>, String), String> {
        let dir = tempfile::tempdir().unwrap();
        let passwd = dir.path().join("passwd");
        let group = dir.path().join("group");
        std::fs::write(
            &passwd,
            "root:x:0:0:root:/root:/bin/sh\n\nbroken\nbob:x:1000:1001:,,:/home/bob:/bin/bash\n",
        )
        .unwrap();
        std::fs::write(
            &group,
            "root:x:0:\nbob:x:1001:\ndisk:x:6:alice,bob\nx:x:no:bob\n",
        )
        .unwrap();
        let user = User::resolve_in(spec, passwd.to_str().unwrap(), group.to_str().unwrap())?;
        let identity = user.identity.unwrap();
        Ok((identity.uid, identity.gid, identity.groups, user.home))
    }

    #[test]
    fn names_numbers_and_groups() {
        let bob = (1000, 1001, vec![6, 1001], "/home/bob".to_owned());
        assert_eq!(resolve("bob"), Ok(bob.clone()));
        assert_eq!(resolve("1000"), Ok(bob));
        assert_eq!(
            resolve("bob:disk"),
            Ok((1000, 6, vec![6], "/home/bob".into()))
        );
        assert_eq!(resolve("77:88"), Ok((77, 88, vec![88], "/".into())));
        assert_eq!(resolve("0"), Ok((0, 0, vec![0], "/root".into())));
        assert!(resolve("eve").unwrap_err().contains("`eve`"));
        assert!(resolve("bob:nobody").unwrap_err().contains("`nobody`"));
    }
}
