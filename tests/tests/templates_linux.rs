//! Templates with a Linux guest: built, run from, built again, gone back to. One machine is booted;
//! everything else goes on from there.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use serde_json::Value;
use tine_snapshot::WorkingSet;
use tine_tests::cli::{Place, eventually, with_vmm};
use tine_tests::linux::{debian, image};
use tine_tests::{require_kvm, text};

/// The last line of the file that commands write to; by the shell alone, as each process that is
/// started takes long where guest kernels are interpreted.
const LAST: &str = "while read line; do last=$line; done < /root/log; echo $last";

struct Templates {
    place: Place,
}

impl Templates {
    fn tine(&self, args: &[&str]) -> Command {
        let mut tine = self.place.tine(args);
        tine.env("TINE_DATA_DIR", self.place.path("data"));
        tine
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.tine(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    }

    /// What a script prints in a machine of a template.
    fn sh(&self, template: &str, script: &str) -> String {
        self.ok(&["run", "--template", template, "--", "sh", "-c", script])
    }

    /// What is there besides templates.
    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for dir in [self.place.run(), self.place.path("data/templates")] {
            let found = fs::read_dir(dir)
                .unwrap()
                .map(|entry| entry.unwrap().path());
            left.extend(found.filter(|path| !path.ends_with("web")));
        }
        left
    }
}

#[test]
fn a_template_is_built_run_built_anew_and_gone_back_to() {
    require_kvm();
    with_vmm();
    image();
    let place = Place::new();
    let rootfs = debian();
    let changed = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let before = changed(&rootfs);
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/one"), "brought\n").unwrap();
    let recipe = format!(
        "rootfs = {rootfs:?}
        memory = \"128M\"
        run = [\"read one < /work/tree/one; echo $one > /root/log\", \"echo $WHO >> /root/log\"]
        [files]
        tree = \"/work/tree\"
        [environment]
        WHO = \"recipe\""
    );
    fs::write(place.path("tine.toml"), recipe).unwrap();
    let all = Templates { place };

    // The option's command comes after the recipe's, and its variable in the place of it.
    let built = all.ok(&[
        "template",
        "build",
        "web",
        "--recipe",
        "tine.toml",
        "-e",
        "WHO=option",
        "--run",
        "echo one >> /root/log",
    ]);
    assert_eq!(built, "web@1\n");
    assert_eq!(all.left(), [] as [PathBuf; 0]);
    // What all of its machines touch first is known from then on.
    let listed: Value = serde_json::from_str(&all.ok(&["template", "ls", "--json"])).unwrap();
    let snapshot = listed[0]["snapshot"].as_str().unwrap();
    let set = WorkingSet::of(Path::new(snapshot)).unwrap().unwrap();
    assert!((1 << 20..set.size / 2).contains(&set.bytes()), "{set:?}");

    // Each run is a machine of its own: what one writes no other sees, and random numbers differ.
    let script = "while read line; do echo $line; done < /root/log; echo $WHO
        echo more >> /root/log; read id < /etc/machine-id; echo $id
        read uuid < /proc/sys/kernel/random/uuid; echo $uuid";
    let file = all.place.path("tree/one");
    let file = format!("{}:/root/new/one", file.display());
    let given = [
        "run",
        "--template",
        "web",
        "-e",
        "WHO=run",
        "--file",
        &file,
        "--",
        "sh",
        "-c",
    ];
    let with_file = format!("read new < /root/new/one; echo $new >> /root/log; {script}");
    let first = all.ok(&[&given[..], &[&with_file]].concat());
    let second = all.sh("web@1", script);
    let (first, second): (Vec<_>, Vec<_>) = (first.lines().collect(), second.lines().collect());
    assert_eq!(first[..5], ["brought", "option", "one", "brought", "run"]);
    assert_eq!(second[..4], ["brought", "option", "one", "option"]);
    assert!(
        first[5] != second[4] && first[6] != second[5],
        "{first:?} {second:?}"
    );

    // A failing command: what it was and what it said, and nothing of it is left.
    let one = all.place.path("data/templates/web/1/snapshot");
    let one = one.to_str().unwrap();
    let build = ["template", "build", "web", "--from", one, "--run"];
    let failed = |command: &str| {
        let words: Vec<&str> = build
            .into_iter()
            .chain([command, "--run", "true"])
            .collect();
        let output = all.tine(&words).output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(1), String::new())
        );
        text(&output.stderr)
    };
    assert_eq!(
        failed("echo out; echo broken >&2; exit 3"),
        "tine: template web: the command \"echo out; echo broken >&2; exit 3\" ended with status 3\n\
         \x20 stderr: broken\n"
    );
    assert_eq!(all.left(), [] as [PathBuf; 0]);

    // Killed in the middle of a command: nothing is seen of it, its machine is gone with it, and the
    // next one who looks clears what is left.
    let words: Vec<&str> = build.into_iter().chain(["sleep 100000"]).collect();
    let mut killed = all.tine(&words).spawn().unwrap();
    let runs = || all.ok(&["ps", "--json"]).contains("\"running\"");
    eventually(runs);
    killed.kill().unwrap();
    assert_eq!(killed.wait().unwrap().signal(), Some(9));
    eventually(|| !runs());
    // The machine had a jail, which is in a place of its own, and a note of what it was shown.
    let left = all.left();
    let of_jails = left.iter().filter(|path| {
        path.ends_with(".jails") || path.extension().is_some_and(|end| end == "shown")
    });
    assert_eq!(left.len() - of_jails.count(), 2, "{left:?}");
    let list: Value = serde_json::from_str(&all.ok(&["template", "ls", "--json"])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(all.left(), [] as [PathBuf; 0]);

    // Killed at any moment of a whole build: there is a version or there is none, and nothing else.
    let words = ["template", "build", "other", "--from", one, "--run", "true"];
    let start = Instant::now();
    assert_eq!(all.ok(&words), "other@1\n");
    let whole = start.elapsed();
    all.ok(&["template", "rm", "other"]);
    for round in 0..8 {
        let mut killed = all.tine(&words).spawn().unwrap();
        // No event of it is waited for: the moment is to be another one each time.
        thread::sleep(whole * round / 7);
        killed.kill().unwrap();
        killed.wait().unwrap();
        eventually(|| {
            let list = all.ok(&["template", "ls"]);
            if list.contains("other@1") {
                all.sh("other@1", "true");
                all.ok(&["template", "rm", "other"]);
            }
            all.left().is_empty()
        });
    }
    let late = ["--timeout", "100ms", "--run", "true"];
    let late = all.tine(&[&build[..5], &late].concat()).output().unwrap();
    assert_eq!(late.status.code(), Some(124));
    assert_eq!(
        text(&late.stderr),
        "tine: template web: it was not built within 100ms\n"
    );
    assert_eq!(all.left(), [] as [PathBuf; 0]);

    // Version 2, while a machine of version 1 runs.
    all.ok(&[
        "run",
        "-d",
        "-e",
        "WHO=run",
        "--name",
        "old",
        "--template",
        "web",
    ]);
    let two: Vec<&str> = build.into_iter().chain(["echo two >> /root/log"]).collect();
    assert_eq!(all.ok(&two), "web@2\n");
    assert_eq!(all.sh("web", LAST), "two\n");
    assert_eq!(all.sh("web@1", LAST), "one\n");
    assert_eq!(all.ok(&["template", "rollback", "web"]), "web@1\n");
    assert_eq!(all.sh("web", LAST), "one\n");

    // Without its template, too: what runs has all that it needs.
    assert_eq!(all.ok(&["template", "rm", "web"]), "web\n");
    let out = all.ok(&[
        "exec",
        "old",
        "--",
        "sh",
        "-c",
        "while read line; do echo $line; done < /root/log; read name < /proc/sys/kernel/hostname; echo $name $WHO",
    ]);
    assert_eq!(out, "brought\noption\none\nold run\n");
    all.ok(&["rm", "-f", "old"]);
    assert_eq!(changed(&rootfs), before, "the caller's image");
}
