//! `tine.toml`: what a version of a template is made of.
//!
//! ```toml
//! rootfs = "debian.ext4"        # PATH[,ro][,qcow2], as --rootfs has it; or snapshot = "DIR"
//! memory = "512M"
//! vcpus = 2
//! run = ["make -C /work/src"]
//!
//! [files]                       # here = "in the guest"
//! "src" = "/work/src"
//!
//! [environment]
//! LANG = "C.UTF-8"
//! ```

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};

use crate::cli::failure::Failure;
use crate::cli::parse;

/// Most bytes of a recipe.
const MAX_LEN: u64 = 1 << 20;

/// A recipe. Paths of this host are relative to the directory that its file is in.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The image of a root file system.
    #[serde(default, deserialize_with = "drive")]
    pub rootfs: Option<parse::Drive>,
    /// A snapshot, in the place of one.
    pub snapshot: Option<PathBuf>,
    /// Memory in bytes.
    #[serde(default, deserialize_with = "size")]
    pub memory: Option<u64>,
    /// Number of vCPUs.
    pub vcpus: Option<u8>,
    /// Files and directories that are copied into the guest, before any command is run.
    #[serde(default, deserialize_with = "files")]
    pub files: Vec<parse::Copied>,
    /// Commands for the guest's `sh`, one after the other.
    #[serde(default)]
    pub run: Vec<String>,
    /// Variables for these commands and for those of the template's machines.
    #[serde(default, deserialize_with = "environment")]
    pub environment: BTreeMap<String, String>,
}

impl Recipe {
    /// Reads a recipe's file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new(format!("cannot read the recipe {}: {why}", path.display()))
        };
        let file = std::fs::File::open(path).map_err(|err| failed(&err))?;
        let mut text = String::new();
        let read = file.take(MAX_LEN + 1).read_to_string(&mut text);
        read.map_err(|err| failed(&err))?;
        if text.len() as u64 > MAX_LEN {
            return Err(failed(&"it is longer than 1 MiB"));
        }
        let mut recipe =
            Self::parse(&text).map_err(|why| Failure::new(format!("{}:{why}", path.display())))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        recipe.snapshot = recipe.snapshot.map(|path| dir.join(path));
        if let Some(rootfs) = &mut recipe.rootfs {
            rootfs.path = dir.join(&rootfs.path);
        }
        for file in &mut recipe.files {
            file.from = dir.join(&file.from);
        }
        Ok(recipe)
    }

    /// Reads a recipe. The error begins with the line and names the field.
    fn parse(text: &str) -> Result<Self, String> {
        let line = |span: Option<std::ops::Range<usize>>| {
            let before = text.as_bytes().get(..span.map_or(0, |span| span.start));
            let ends = before
                .unwrap_or_default()
                .iter()
                .filter(|byte| **byte == b'\n');
            ends.count() + 1
        };
        let parsed = toml::Deserializer::parse(text)
            .map_err(|err| format!("{}: {}", line(err.span()), one_line(err.message())))?;
        let recipe: Self = serde_path_to_error::deserialize(parsed).map_err(|err| {
            let (path, err) = (err.path().to_string(), err.into_inner());
            let field = if path == "." {
                String::new()
            } else {
                format!("{path}: ")
            };
            format!("{}: {field}{}", line(err.span()), one_line(err.message()))
        })?;
        match recipe.rootfs.is_some() && recipe.snapshot.is_some() {
            true => Err("1: snapshot: there is a rootfs too, and a machine is made of one".into()),
            false => Ok(recipe),
        }
    }
}

fn one_line(text: &str) -> String {
    text.trim_end().replace('\n', ", ")
}

fn drive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<parse::Drive>, D::Error> {
    let text = String::deserialize(from)?;
    parse::drive(&text).map(Some).map_err(de::Error::custom)
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    parse::size(&text).map(Some).map_err(de::Error::custom)
}

/// An absolute path of the guest. What is wrong is told of the value, and so with its line.
struct GuestPath(String);

impl<'de> Deserialize<'de> for GuestPath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let path = String::deserialize(from)?;
        match path.starts_with('/') {
            true => Ok(Self(path)),
            false => Err(de::Error::custom(format!(
                "{path:?} is no path in the guest: give an absolute one"
            ))),
        }
    }
}

fn files<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<parse::Copied>, D::Error> {
    let files = BTreeMap::<PathBuf, GuestPath>::deserialize(from)?.into_iter();
    let files = files.map(|(from, GuestPath(to))| parse::Copied { from, to });
    Ok(files.collect())
}

fn environment<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let environment = BTreeMap::<String, String>::deserialize(from)?;
    let unfit = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
    match environment.keys().find(unfit) {
        None => Ok(environment),
        Some(name) => Err(de::Error::custom(format!("{name:?} is no variable's name"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"
rootfs = "debian.ext4,ro"
memory = "512M"
vcpus = 2
run = ["apt-get update", '''
set -e
true''']

[files]
"job.py" = "/work/job.py"

[environment]
LANG = "C.UTF-8"
"#;

    #[test]
    fn all_of_it() {
        let recipe = Recipe::parse(ALL).unwrap();
        assert!(recipe.rootfs.is_some_and(|drive| drive.read_only));
        assert_eq!((recipe.memory, recipe.vcpus), (Some(512 << 20), Some(2)));
        assert_eq!(recipe.run, ["apt-get update", "set -e\ntrue"]);
        assert_eq!(recipe.files[0].to, "/work/job.py");
        assert_eq!(recipe.environment["LANG"], "C.UTF-8");
        assert!(Recipe::parse("").unwrap().run.is_empty());
    }

    #[test]
    fn paths_begin_where_the_recipe_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tine.toml");
        std::fs::write(&path, ALL).unwrap();
        let recipe = Recipe::read(&path).unwrap();
        assert_eq!(recipe.files[0].from, dir.path().join("job.py"));
        assert_eq!(recipe.rootfs.unwrap().path, dir.path().join("debian.ext4"));
    }

    #[test]
    fn errors_say_the_line_and_the_field() {
        for (text, line, words) in [
            ("\nvcpu = 2\n", "2: ", &["vcpu", "unknown", "vcpus"][..]),
            ("\n\nvcpus = \"two\"\n", "3: vcpus: ", &["string"]),
            ("vcpus = 300", "1: vcpus: ", &["300"]),
            ("memory = \"much\"", "1: memory: ", &["give a size"]),
            ("memory = 512", "1: memory: ", &["string"]),
            ("rootfs = \",ro\"", "1: rootfs: ", &["path"]),
            ("run = [\n\"a\",\n5]", "3: run[1]: ", &["string"]),
            ("\n[files]\n\"a\" = \"b\"", "3: files.a: ", &["absolute"]),
            ("[environment]\nA = 1", "2: environment.A: ", &["string"]),
            (
                "[environment]\n\"A=B\" = \"\"",
                "1: environment: ",
                &["A=B"],
            ),
            ("vcpus = ", "1: ", &[]),
            ("a = 1\nb = \"", "2: ", &[]),
            (
                "rootfs = \"a\"\nsnapshot = \"b\"",
                "1: snapshot: ",
                &["rootfs"],
            ),
        ] {
            let error = Recipe::parse(text).unwrap_err();
            assert!(error.starts_with(line), "{text:?}: {error}");
            assert!(
                words.iter().all(|word| error.contains(word)),
                "{text:?}: {error}"
            );
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
