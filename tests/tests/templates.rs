//! Templates on the command line without a guest: what is listed, changed and refused. Versions are
//! made by hand, as `tine template build` leaves them; the store's own tests are beside it.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tine_tests::cli::Place;
use tine_tests::text;

/// A place with the versions 1, 2, .. of a template.
fn place(versions: u32) -> Place {
    let place = Place::new();
    let web = place.path("data/templates/web");
    for version in 1..=versions {
        let dir = web.join(version.to_string());
        fs::create_dir_all(dir.join("snapshot")).unwrap();
        let record = r#"{"created":"2026-11-30T01:02:03.000004Z","from":"/srv/debian.ext4",
            "run":["true"],"environment":{},"memory":134217728,"vcpus":2}"#;
        fs::write(dir.join("version.json"), record).unwrap();
    }
    place
}

fn tine(place: &Place, args: &[&str]) -> Command {
    let mut tine = place.tine(args);
    tine.env("TINE_DATA_DIR", place.path("data"));
    tine
}

fn ok(place: &Place, args: &[&str]) -> String {
    let output = tine(place, args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

fn fails(place: &Place, status: i32, args: &[&str]) -> String {
    let output = tine(place, args).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

#[test]
fn versions_are_listed_activated_rolled_back_and_removed() {
    let place = place(3);
    assert_eq!(ok(&place, &["template", "activate", "web", "1"]), "web@1\n");
    assert_eq!(ok(&place, &["template", "activate", "web", "3"]), "web@3\n");
    let table = ok(&place, &["template", "ls"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        lines[3],
        "web@3     *       2026-11-30T01:02:03Z  128 MiB  2      /srv/debian.ext4"
    );
    assert_eq!(ok(&place, &["template", "rollback", "web"]), "web@1\n");
    let refused = fails(&place, 1, &["template", "rm", "web@1", "web@3", "other"]);
    assert!(refused.contains("web@1 is the active version"), "{refused}");
    assert!(
        refused.contains("there is no template other: there are web"),
        "{refused}"
    );
    let list: Value = serde_json::from_str(&ok(&place, &["template", "ls", "--json"])).unwrap();
    let seen = |one: &Value| (one["version"].as_u64(), one["active"].as_bool());
    let seen: Vec<_> = list.as_array().unwrap().iter().map(seen).collect();
    assert_eq!(seen, [(Some(1), Some(true)), (Some(2), Some(false))]);
    assert_eq!(list[0]["record"]["run"][0], "true");
    assert_eq!(ok(&place, &["template", "rm", "web"]), "web\n");
    assert_eq!(ok(&place, &["template", "ls", "--json"]), "[]\n");
    let left = fs::read_dir(place.path("data/templates")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn names_that_are_none() {
    let place = place(1);
    for name in ["..", "../web", "a/b", "", ".hidden", "Web"] {
        for words in [
            ["activate", "--", name, "1"],
            ["build", "--run=true", "--", name],
        ] {
            let words: Vec<&str> = ["template"].into_iter().chain(words).collect();
            fails(&place, 2, &words);
        }
        fails(&place, 2, &["template", "rm", "--", name]);
    }
    for named in ["web@", "web@0", "web@01", "web@x", "web@1@1", "web@../1"] {
        fails(&place, 2, &["run", "--template", named, "--", "true"]);
        fails(&place, 2, &["template", "rm", named]);
    }
    assert!(place.path("data/templates/web/1").is_dir());
}

#[test]
fn runs_that_cannot_be() {
    let place = place(2);
    let refused = fails(&place, 1, &["run", "--template", "other", "--", "true"]);
    assert!(
        refused.contains("there is no template other: there are web"),
        "{refused}"
    );
    let refused = fails(&place, 1, &["run", "--template", "web", "--", "true"]);
    assert!(refused.contains("no active version"), "{refused}");
    let refused = fails(&place, 1, &["run", "--template", "web@3", "--", "true"]);
    assert!(
        refused.contains("no version 3: there are 1, 2"),
        "{refused}"
    );
    // A version that is none: what is wrong with it is said, and nothing is left.
    let refused = fails(&place, 1, &["run", "--template", "web@2", "--", "true"]);
    assert!(refused.contains("web/2/snapshot"), "{refused}");
    for words in [
        ["--memory", "64M"],
        ["--rootfs", "x"],
        ["--kernel", "x"],
        ["--vcpus", "2"],
    ] {
        let words: Vec<&str> = ["run", "--template", "web@1"]
            .into_iter()
            .chain(words)
            .collect();
        let refused = fails(&place, 2, &words);
        assert!(refused.contains("cannot be used with"), "{refused}");
    }
    for words in [&["run", "--file", "a:/b"][..], &["run", "-d", "-n", "2"]] {
        fails(&place, 2, words);
    }
    assert_eq!(fs::read_dir(place.run()).unwrap().count(), 0);
}

#[test]
fn builds_that_cannot_be_leave_nothing() {
    let place = place(1);
    let recipe = place.path("tine.toml");
    let build = |text: &str, more: &[&str]| {
        fs::write(&recipe, text).unwrap();
        let words = ["template", "build", "web", "--recipe", "tine.toml"];
        let words: Vec<&str> = words.iter().chain(more).copied().collect();
        fails(&place, 1, &words)
    };
    for (text, words) in [
        ("\nvcpu = 2", "tine.toml:2: vcpu: unknown field"),
        ("vcpus = \"two\"", "tine.toml:1: vcpus: invalid type"),
        ("run = 1", "tine.toml:1: run: invalid type"),
        ("a = ", "tine.toml:1: "),
        ("rootfs = \"missing.ext4\"", "/missing.ext4: No such file"),
        ("snapshot = \"missing\"", "/missing"),
        ("[files]\n\"missing\" = \"/x\"", "/missing: No such file"),
    ] {
        let refused = build(text, &[]);
        assert!(refused.contains(words), "{text:?}: {refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    let refused = fails(
        &place,
        1,
        &["template", "build", "web", "--recipe", "none.toml"],
    );
    assert!(refused.contains("none.toml: No such file"), "{refused}");
    let refused = fails(
        &place,
        2,
        &["template", "build", "web", "--from", "run", "--vcpus", "2"],
    );
    assert!(refused.contains("leave both out"), "{refused}");
    let left = fs::read_dir(place.path("data/templates")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["web"]);
    assert_eq!(fs::read_dir(place.run()).unwrap().count(), 0);
}

#[test]
fn pools_that_are_not_there() {
    let place = place(1);
    assert_eq!(ok(&place, &["pool", "ls", "--json"]), "[]\n");
    let refused = fails(&place, 1, &["pool", "stop", "web"]);
    assert!(refused.contains("there is no pool of web"), "{refused}");
    let refused = fails(&place, 1, &["pool", "claim", "web@1"]);
    assert!(refused.contains("tine pool start web"), "{refused}");
    for words in [&["start"][..], &["start", "-d"]] {
        let words: Vec<&str> = ["pool"]
            .iter()
            .chain(words)
            .chain(&["web"])
            .copied()
            .collect();
        let refused = fails(&place, 1, &words);
        assert!(refused.contains("no active version"), "{refused}");
    }
    for name in ["../web", "", "a/b"] {
        fails(&place, 2, &["pool", "stop", "--", name]);
        fails(&place, 2, &["pool", "claim", "--", name]);
    }
    fails(&place, 2, &["run", "--pool", "--", "true"]);
    assert_eq!(fs::read_dir(place.run()).unwrap().count(), 0);
}

#[test]
fn shells_complete_it() {
    let script = ok(&Place::new(), &["completion", "bash"]);
    for word in ["template", "rollback", "--recipe", "--no-activate"] {
        assert!(script.contains(word), "{word}");
    }
}
