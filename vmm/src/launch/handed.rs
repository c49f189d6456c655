//! Copies of a machine that are made ready for other processes: how long they are kept for those who
//! come, and that nothing is kept of those for whom nobody does.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{Error, Forked, Machine};
use crate::snapshot::Loaded;

/// How much longer than a copy may take to be running the image waits for the next one to come; it is
/// let go of after that if this process is killed.
const MARGIN: Duration = Duration::from_secs(30);
/// The longest that a machine lets it wait.
const LONGEST: Duration = Duration::from_secs(3600);

/// Copies of a machine that other processes can take. Dropped, what nobody has taken is: the machine
/// need not keep it.
#[derive(Debug)]
pub struct Handed(Forked);

impl Handed {
    /// Has a machine make `count` copies ready, of which each may take as long as `patience` until it
    /// is running.
    ///
    /// # Errors
    ///
    /// When the machine refuses to be forked.
    pub async fn out(machine: &Machine, count: u32, patience: Duration) -> Result<Self, Error> {
        ask(machine, count, patience).await.map(Self)
    }

    /// The same of a machine that may lie: what it names has to lie directly in `own`, its directory by a
    /// path without links, and to be what it should be there. No path that it gives is used as it is.
    ///
    /// # Errors
    ///
    /// As for [`Handed::out`], and when the machine names anything else.
    pub async fn out_of(
        machine: &Machine,
        own: &Path,
        count: u32,
        patience: Duration,
    ) -> Result<Self, Error> {
        let mut forked = ask(machine, count, patience).await?;
        let socket = own_path(own, &forked.socket, "fork-", ".sock");
        forked.socket = socket.filter(|path| is_socket(path)).ok_or_else(|| {
            let told = forked.socket.display();
            Error::protocol(format!(
                "the machine hands its copies out at {told}, which is no socket in its directory {}",
                own.display()
            ))
        })?;
        // From here on what is there is let go of.
        let mut handed = Self(forked);
        if let Some(told) = handed.0.layers.take() {
            let layers = own_path(own, &told, ".fork-", "");
            let layers = layers.filter(|path| is_directory(path)).ok_or_else(|| {
                Error::protocol(format!(
                    "the machine has its copies' disks in {}, which is no directory in its own, {}",
                    told.display(),
                    own.display()
                ))
            })?;
            handed.0.layers = Some(layers);
        }
        Ok(handed)
    }

    /// Where they are taken.
    pub fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// Where the layers of their disks have names, if they have any.
    pub fn layers(&self) -> Option<&Path> {
        self.0.layers.as_deref()
    }
}

async fn ask(machine: &Machine, count: u32, patience: Duration) -> Result<Forked, Error> {
    let patience = patience.saturating_add(MARGIN).min(LONGEST);
    let forked = machine.fork(count, patience).await?;
    // So many are let go of at most, whatever the answer says.
    Ok(Forked { count, ..forked })
}

/// The path of what a machine made in its directory `own`, if that is what it names: by a name of some
/// letters and digits between `begin` and `end`.
fn own_path(own: &Path, told: &Path, begin: &str, end: &str) -> Option<PathBuf> {
    let name = told.file_name()?.to_str()?;
    let id = name.strip_prefix(begin)?.strip_suffix(end)?;
    let plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    // One without a jail knows its directory by the path that it was given, which may lead through links.
    let beside = told.parent()?.canonicalize().ok()?;
    (plain && beside == own).then(|| own.join(name))
}

fn is_socket(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_ok_and(|found| found.file_type().is_socket())
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

impl Drop for Handed {
    fn drop(&mut self) {
        let left = 0..self.0.count;
        let _ = left
            .map_while(|_| Loaded::receive(&self.0.socket).ok())
            .count();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_what_a_machine_makes_in_its_directory_is_taken_for_that() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let own = root.join("m");
        fs::create_dir_all(own.join(".fork-1a")).unwrap();
        symlink(&own, root.join("link")).unwrap();
        let socket = |told: &Path| own_path(&own, told, "fork-", ".sock");
        let wanted = own.join("fork-1a.sock");
        for told in [wanted.clone(), root.join("link/fork-1a.sock")] {
            assert_eq!(socket(&told).as_ref(), Some(&wanted), "{told:?}");
        }
        let lies = [
            "/etc/shadow",
            "/fork-1a.sock",
            "fork-1a.sock",
            "m/api.sock",
            "m/fork-.sock",
            "m/fork-../x.sock",
            "m/.fork-1a/fork-1a.sock",
            "m/none/fork-1a.sock",
            "m/..",
            "",
        ];
        for lie in lies {
            assert_eq!(socket(&root.join(lie)), None, "{lie}");
        }
        let _listener = UnixListener::bind(&wanted).unwrap();
        symlink(&wanted, own.join("linked")).unwrap();
        symlink(own.join(".fork-1a"), own.join("linked-too")).unwrap();
        assert!(is_socket(&wanted) && !is_socket(&own.join("linked")));
        assert!(is_directory(&own.join(".fork-1a")) && !is_directory(&own.join("linked-too")));
    }
}
