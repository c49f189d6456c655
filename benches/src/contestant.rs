//! Who takes part: Tine, the peers, and Tine once more.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, bail};

use crate::peers::{Peer, TINE};

/// What a contestant is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is what the figures are about.
    Subject,
    /// The subject is compared with it.
    Peer,
    /// An earlier build of the subject, to compare with.
    Before,
    /// The subject again: its ratio to itself is the noise.
    Control,
}

impl Role {
    /// Whether the subject is compared with it.
    pub fn is_compared_with(self) -> bool {
        matches!(self, Role::Peer | Role::Before)
    }
}

/// What the subject is called when it takes part again.
pub const CONTROL: &str = "tine again";

/// What an earlier build of Tine is called in the report. No peer can be called so.
pub const BEFORE: &str = "tine before";

/// A monitor that takes part.
#[derive(Clone)]
pub struct Contestant {
    /// What it is called in the report.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// How it is driven.
    pub monitor: Peer,
    /// What it says of its version.
    pub version: Option<String>,
}

/// Everyone, the subject first, then the build `before` it, if there is one to compare with.
pub fn line_up(
    tine: Option<&Path>,
    before: Option<&Path>,
    peers: &[Peer],
) -> anyhow::Result<Vec<Contestant>> {
    let tine = match tine {
        Some(path) => path.to_owned(),
        None => beside_this_program()?,
    };
    let tine = Peer::known(&TINE, tine);
    let mut contestants = vec![contestant("tine", Role::Subject, &tine)?];
    if let Some(before) = before {
        let before = Peer::known(&TINE, before.to_owned());
        contestants.push(contestant(BEFORE, Role::Before, &before)?);
    }
    for peer in peers {
        if contestants.iter().any(|other| other.name == peer.name) {
            bail!("there are two peers named {}", peer.name);
        }
        contestants.push(contestant(&peer.name, Role::Peer, peer)?);
    }
    contestants.push(contestant(CONTROL, Role::Control, &tine)?);
    Ok(contestants)
}

/// Monitors that need no more files than these, and what they may have beside them.
const MOVABLE: [&str; 2] = ["tine", "firecracker"];
const BESIDE: [&str; 3] = ["tine-vmm", "tine-jailer", "jailer"];

impl Contestant {
    /// Takes part from now on by a copy in the new directory `dir`, if its files are known. A program starts
    /// slower as a linker wrote it than copied, by a twentieth and more: the kernel keeps it in other pieces.
    /// So all are copied at the same time, in the same way.
    pub fn copy_to(&mut self, dir: &Path) -> anyhow::Result<()> {
        let known = self.monitor.known_as();
        if !known.is_some_and(|name| MOVABLE.contains(&name)) {
            return Ok(());
        }
        let program = &mut self.monitor.program;
        let name = program.file_name().context("a program has a name")?;
        fs::create_dir(dir).context("cannot make a directory")?;
        let beside = BESIDE.map(OsStr::new).into_iter();
        let beside = beside.filter(|name| program.with_file_name(name).is_file());
        for name in beside.chain([name]) {
            let from = program.with_file_name(name);
            fs::copy(&from, dir.join(name))
                .with_context(|| format!("cannot copy {}", from.display()))?;
        }
        *program = dir.join(name);
        Ok(())
    }
}

fn contestant(name: &str, role: Role, monitor: &Peer) -> anyhow::Result<Contestant> {
    let program = &monitor.program;
    let usable = fs::metadata(program)
        .with_context(|| format!("cannot use {} as {}", program.display(), monitor.name))?;
    if !usable.is_file() {
        bail!("{} is no program", program.display());
    }
    let version = if monitor.tells_version() {
        version(program)
    } else {
        None
    };
    Ok(Contestant {
        name: name.to_owned(),
        role,
        monitor: monitor.clone(),
        version,
    })
}

/// The first line that a program answers to `--version`.
fn version(program: &Path) -> Option<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn beside_this_program() -> anyhow::Result<PathBuf> {
    let tine = env::current_exe()
        .context("cannot tell where this program is")?
        .with_file_name("tine");
    if !tine.is_file() {
        bail!(
            "there is no {}: build it with `cargo build --release -p tine`, or name one with --tine",
            tine.display()
        );
    }
    Ok(tine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    #[test]
    fn a_missing_program_is_named() {
        let err = line_up(Some(Path::new("/nonexistent/tine")), None, &[]);
        let err = format!("{:#}", err.err().expect("there is none"));
        assert!(err.contains("/nonexistent/tine"), "{err}");
    }

    #[test]
    fn the_subject_takes_part_twice() {
        let peer = peers::parse("other=/bin/true {kernel}").unwrap();
        let tine = Some(Path::new("/bin/true"));
        let all = line_up(tine, None, std::slice::from_ref(&peer)).unwrap();
        let roles: Vec<_> = all.iter().map(|contestant| contestant.role).collect();
        assert_eq!(roles, [Role::Subject, Role::Peer, Role::Control]);
        let all = line_up(tine, tine, std::slice::from_ref(&peer)).unwrap();
        assert_eq!((all[1].role, all[1].name.as_str()), (Role::Before, BEFORE));
        let twice = [peer.clone(), peer];
        assert!(line_up(tine, None, &twice).is_err());
    }
}
