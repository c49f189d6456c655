//! Which of what a machine's record names its jail shows again.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use serde_json::Value;
use tine_jailer::files;

use super::{Files, Note};
use crate::cli::failure::Failure;

impl Note {
    /// Holds a machine's record, the body of a `PUT /v1/config`, against the note, and has `files` show
    /// what the two have in common. `own` is the machine's directory, by its plain path: what is in
    /// there is the machine's anyway.
    ///
    /// # Errors
    ///
    /// When it names anything else, or asks for more rights; by the name of what it asks for.
    pub fn admit(&self, files: &mut Files, config: &Value, own: &Path) -> Result<(), Failure> {
        let mut admission = Admission {
            note: self,
            files,
            own,
        };
        for file in ["kernel", "initrd"] {
            admission.admit(&config[file], false)?;
        }
        for drive in config["drives"].as_array().into_iter().flatten() {
            admission.admit(&drive["path"], drive["read_only"] != true)?;
            for lower in drive["lower"].as_array().into_iter().flatten() {
                admission.admit(&lower["path"], false)?;
            }
        }
        match config["console"].as_str() {
            None | Some("none" | "stdout") => {}
            Some(file) => {
                admission.admit_new(&config["console"])?;
                if !Path::new(file).starts_with(own) {
                    make(Path::new(file))?;
                }
            }
        }
        admission.admit_new(&config["vsock"]["uds_path"])?;
        match config["network"].as_array().is_none_or(Vec::is_empty) {
            true => Ok(()),
            false => Err(refused("network interfaces", "had none")),
        }
    }
}

/// Makes a console's file, if it is not there, for a jail to show.
fn make(file: &Path) -> Result<(), Failure> {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let made = files::open_at(CWD, file, flags, Mode::from_raw_mode(0o666));
    made.map(drop)
        .map_err(|err| Failure::new(format!("cannot make {}: {err}", file.display())))
}

fn refused(what: &str, why: &str) -> Failure {
    Failure::new(format!(
        "its record names {what}, and the machine {why} before: it may have been taken over by its guest; \
         a new machine can be made of its disks with `tine run --disk`"
    ))
}

/// A record that is being held against a note.
struct Admission<'a> {
    note: &'a Note,
    files: &'a mut Files,
    own: &'a Path,
}

impl Admission<'_> {
    /// A path that leads to something, through no links: what they lead to is the machine's to say.
    fn admit(&mut self, value: &Value, writable: bool) -> Result<(), Failure> {
        let Some(text) = value.as_str() else {
            return Ok(());
        };
        let path = Path::new(text);
        let plain = path
            .canonicalize()
            .map_err(|err| Failure::new(format!("cannot open {text:?}: {err}")))?;
        match plain.as_os_str() == path.as_os_str() {
            true => self.admit_plain(path, writable),
            false => Err(refused(
                &format!("{text:?}, which is not a plain path without links"),
                "had plain ones",
            )),
        }
    }

    /// The same of a path that something may be made at.
    fn admit_new(&mut self, value: &Value) -> Result<(), Failure> {
        let Some(text) = value.as_str() else {
            return Ok(());
        };
        let path = Path::new(text);
        let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
        let name = path.file_name();
        let plain = parent.zip(name).map(|(parent, name)| parent.join(name));
        let is_new = path
            .symlink_metadata()
            .is_err_and(|err| err.kind() == io::ErrorKind::NotFound);
        match plain {
            Some(plain) if is_new && plain.as_os_str() == path.as_os_str() => {
                self.admit_plain(path, true)
            }
            _ => self.admit(value, true),
        }
    }

    fn admit_plain(&mut self, path: &Path, writable: bool) -> Result<(), Failure> {
        if path.starts_with(self.own) && path != self.own {
            return Ok(());
        }
        let mut covering = self.note.shown.iter();
        let covering =
            covering.find(|shown| path.starts_with(&shown.path) && (shown.writable || !writable));
        match covering {
            Some(shown) => {
                self.files.add(shown.path.clone(), writable);
                Ok(())
            }
            None if writable => Err(refused(&format!("{path:?}, to be written to"), "could not")),
            None => Err(refused(&format!("{path:?}"), "was not shown that")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    struct Place {
        _dir: tempfile::TempDir,
        root: PathBuf,
        own: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            let own = root.join("m");
            fs::create_dir(&own).unwrap();
            for name in ["kernel", "disk", "secret", "m/layer"] {
                fs::write(root.join(name), name).unwrap();
            }
            fs::create_dir(root.join("snapshot")).unwrap();
            fs::write(root.join("snapshot/layer"), "").unwrap();
            let mut files = Files::default();
            files.show(&root.join("kernel"), false).unwrap();
            files.show(&root.join("disk"), true).unwrap();
            files.show(&root.join("snapshot"), false).unwrap();
            files.note(&own).unwrap();
            let _dir = dir;
            Self { _dir, root, own }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.root.join(name)
        }

        fn admit(&self, config: &Value) -> Result<Vec<(PathBuf, bool)>, String> {
            let note = Note::of(&self.own).unwrap().unwrap();
            let mut files = Files::default();
            let admitted = note.admit(&mut files, config, &self.own);
            admitted.map_err(|failure| failure.words)?;
            let shown = files.shown.into_iter();
            Ok(shown.map(|shown| (shown.path, shown.writable)).collect())
        }
    }

    #[test]
    fn what_was_shown_is_shown_again_with_the_rights_that_are_needed() {
        let place = Place::new();
        let config = json!({
            "kernel": place.at("kernel"), "initrd": null, "console": place.at("m/console.log"),
            "drives": [
                { "path": place.at("m/layer"), "lower": [{ "path": place.at("snapshot/layer") }] },
                { "path": place.at("disk"), "read_only": true },
            ],
            "network": [], "vsock": { "uds_path": null },
        });
        let wanted = [("kernel", false), ("snapshot", false), ("disk", false)];
        let wanted = wanted.map(|(name, writable)| (place.at(name), writable));
        assert_eq!(place.admit(&config).unwrap(), wanted);
        let config = json!({ "drives": [{ "path": place.at("disk") }], "console": "none" });
        assert_eq!(place.admit(&config).unwrap(), [(place.at("disk"), true)]);
    }

    #[test]
    fn what_a_machine_adds_to_its_record_is_refused_by_name() {
        let place = Place::new();
        symlink(place.at("secret"), place.at("m/link")).unwrap();
        symlink(&place.root, place.at("m/up")).unwrap();
        let drive = |path: PathBuf| json!({ "drives": [{ "path": path }] });
        let lower = json!({ "drives": [{
            "path": place.at("disk"), "lower": [{ "path": place.at("secret") }],
        }]});
        let cases = [
            (json!({ "kernel": place.at("secret") }), "secret"),
            (json!({ "initrd": place.at("secret") }), "secret"),
            (json!({ "kernel": "etc/passwd" }), "etc/passwd"),
            (drive(place.at("secret")), "secret"),
            (lower, "secret"),
            // More rights than there were.
            (drive(place.at("kernel")), "to be written to"),
            (drive(place.at("snapshot/layer")), "to be written to"),
            // Ways out of its directory.
            (drive(place.at("m/link")), "m/link"),
            (drive(place.at("m/up/secret")), "m/up/secret"),
            (drive(place.at("m/../secret")), "m/../secret"),
            (drive(place.own.clone()), "to be written to"),
            (json!({ "console": place.at("secret") }), "secret"),
            (json!({ "console": place.at("new") }), "new"),
            (json!({ "console": "etc/new" }), "etc/new"),
            (json!({ "console": place.at("m/link") }), "m/link"),
            (json!({ "console": place.at("m/up/new") }), "m/up/new"),
            (json!({ "vsock": { "uds_path": place.at("v") } }), "/v"),
            (
                json!({ "network": [{ "id": "a", "tap": "tap0" }] }),
                "network",
            ),
        ];
        for (config, named) in cases {
            let said = place.admit(&config).unwrap_err();
            assert!(said.contains(named), "{config}: {said}");
        }
    }
}
