//! Machines of an ordinary user that stay: each in the jail that user namespaces allow, and what is
//! left when it is gone.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tine_tests::cli::{Place, eventually};
use tine_tests::jail::alive;
use tine_tests::jail::seen::{is_jailed, mounts, names, namespace, status};
use tine_tests::jail::user::{KVM, USER, place, readable};
use tine_tests::left::kill;
use tine_tests::linux::image;
use tine_tests::{guest, text};

fn started(output: &Output, name: &str) {
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), format!("{name}\n"));
}

fn all_jailed(place: &Place, ids: &[&str]) {
    ids.iter()
        .for_each(|id| is_jailed(place.pid(id), USER, USER));
}

/// No directory, no process and no mount is left of the machines.
fn nothing_is_left(place: &Place) {
    assert_eq!(names(place.run()), [] as [&str; 0]);
    eventually(|| place.processes().is_empty());
    let dir = place.path("").display().to_string();
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounted.contains(dir.trim_end_matches('/')), "{mounted}");
}

#[test]
fn a_machine_sees_what_it_is_made_of_and_has_no_right() {
    let place = place();
    let kernel = readable(&place, &guest("hang"));
    let disk = place.path("disk");
    fs::write(&disk, [0; 1 << 16]).unwrap();
    chown(&disk, Some(USER), Some(USER)).unwrap();
    let output = place.bare("one", &kernel, &["--disk", "disk"]).output();
    started(&output.unwrap(), "one");
    let pid = place.pid("one");
    is_jailed(pid, USER, USER);
    // Nobody can leave a group in a user namespace.
    assert_eq!(status(pid, "Groups"), KVM.to_string());
    let own = place.run().join("one");
    let nodes = ["/", "/dev", "/dev/kvm", "/dev/net/tun", "/dev/urandom"];
    let mut shown: Vec<String> = nodes.map(str::to_owned).to_vec();
    // What the host does not have is not shown.
    shown.retain(|path| Path::new(path).exists());
    shown.extend([&own, &kernel, &disk].map(|path| path.display().to_string()));
    shown.sort();
    assert_eq!(mounts(pid), shown);
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    assert_eq!(names(inside(&place.path(""))), ["disk", "hang.elf", "run"]);
    for missing in ["proc", "sys", "etc", "usr", "bin", "home", "root"] {
        assert!(!root.join(missing).exists(), "{missing}");
    }
    assert_eq!(fs::metadata(own.join("api.sock")).unwrap().uid(), USER);
    eventually(|| place.ok(["logs", "one"]) == "A");
    assert_eq!(place.ok(["rm", "-f", "one"]), "one\n");
    assert!(!alive(pid));
    nothing_is_left(&place);
}

#[test]
fn snapshots_forks_and_what_died_without_a_word() {
    let place = place();
    let kernel = readable(&place, &guest("spin"));
    let disk = place.path("disk");
    fs::write(&disk, [7; 1 << 16]).unwrap();
    chown(&disk, Some(USER), Some(USER)).unwrap();
    let output = place.bare("one", &kernel, &["--disk", "disk"]).output();
    started(&output.unwrap(), "one");
    let before = mounts(place.pid("one"));
    for name in ["first", "second"] {
        place.ok(["snapshot", "one", name]);
        place.ok(["snapshot", "verify", name]);
    }
    let again = place.fails(1, ["snapshot", "one", "first"]);
    assert!(again.contains("first exists"), "{again}");
    assert_eq!(mounts(place.pid("one")), before, "it sees them no more");
    place.ok(["restore", "-d", "--no-wait", "--name", "two", "first"]);
    place.ok([
        "restore",
        "-d",
        "--no-wait",
        "-n",
        "2",
        "--name",
        "n",
        "second",
    ]);
    place.ok(["fork", "-n", "2", "--name", "f", "one"]);
    place.ok(["fork", "--name", "g", "f-1"]);
    let all = ["one", "two", "n-1", "n-2", "f-1", "f-2", "g"];
    all_jailed(&place, &all);
    place.ok(["snapshot", "--stop", "f-2", "third"]);
    let mut hidden = names(place.path(""));
    hidden.retain(|name| name.starts_with('.'));
    assert_eq!(hidden, [] as [&str; 0]);
    place.ok(["rm", "f-2"]);
    // Killed, they are removed and started again.
    for id in ["two", "g"] {
        let pid = place.pid(id);
        kill(pid);
        eventually(|| !alive(pid));
    }
    place.ok(["rm", "two"]);
    let removed = place.ok(["gc"]);
    assert_eq!(
        removed.lines().count(),
        2,
        "its jail and its directory: {removed}"
    );
    place.ok(["restore", "-d", "--no-wait", "--name", "two", "third"]);
    all_jailed(&place, &["two"]);
    place.ok(["rm", "-f", "one", "two", "n-1", "n-2", "f-1"]);
    nothing_is_left(&place);
}

#[test]
fn without_a_jail_it_is_said_loudly() {
    let place = place();
    let kernel = readable(&place, &guest("hang"));
    let mut by_word = place.bare("m", &kernel, &["--no-jail"]);
    let mut by_wish = place.bare("n", &kernel, &[]);
    by_wish.env("TINE_NO_JAIL", "1");
    for (command, id) in [(&mut by_word, "m"), (&mut by_wish, "n")] {
        let said = text(&command.output().unwrap().stderr);
        assert!(said.starts_with("tine: NO JAIL: "), "{said}");
        assert!(said.contains(&format!("user {USER}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let pid = place.pid(id);
        assert_eq!(namespace(pid, "user"), namespace("self", "user"));
    }
    place.ok(["rm", "-f", "m", "n"]);
    nothing_is_left(&place);
}

/// As on a host that keeps user namespaces from ordinary users: in one where there may be no further.
#[test]
fn a_host_without_user_namespaces_is_told_with_the_way_out() {
    let place = place();
    let kernel = readable(&place, &guest("hang"));
    let within = |more: &[&str]| {
        let inner = place.bare("m", &kernel, more);
        let words: Vec<_> = inner.get_args().collect();
        let (user, tine) = words.split_at(words.iter().position(|word| *word == "--").unwrap() + 1);
        let mut command = Command::new(inner.get_program());
        command
            .args(user)
            .args(["unshare", "--map-current-user", "--keep-caps", "sh", "-c"]);
        command.arg(r#"echo 0 > /proc/sys/user/max_user_namespaces && exec "$@""#);
        command.arg("sh").args(tine).current_dir(place.path(""));
        command.env("TINE_RUN_DIR", place.run()).output().unwrap()
    };
    let refused = within(&[]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("user.max_user_namespaces = 0"), "{said}");
    assert!(said.contains("--no-jail"), "{said}");
    nothing_is_left(&place);
    let output = within(&["--no-jail"]);
    assert_eq!(text(&output.stdout), "m\n", "{}", text(&output.stderr));
    place.ok(["rm", "-f", "m"]);
    nothing_is_left(&place);
}

#[test]
fn a_linux_guest_is_used_snapshotted_and_copied() {
    let place = place();
    let (kernel, initramfs) = image();
    let (kernel, initramfs) = (readable(&place, kernel), readable(&place, initramfs));
    let mut command = place.tine(["run", "-d", "--name", "lin", "--memory", "96M", "--kernel"]);
    command.arg(&kernel).arg("--initrd").arg(&initramfs);
    started(&command.output().unwrap(), "lin");
    let says = |id: &str, words: &str| {
        let said = place.ok(["exec", id, "--", "sh", "-c", words]);
        said.trim_end().to_owned()
    };
    assert_eq!(says("lin", "echo 42 > /tmp/x; cat /tmp/x"), "42");
    place.ok(["snapshot", "lin", "shot"]);
    place.ok(["restore", "-d", "--name", "back", "shot"]);
    place.ok(["fork", "--name", "copy", "lin"]);
    place.ok(["template", "build", "shelf", "--from", "shot"]);
    place.ok(["pool", "start", "-d", "shelf"]);
    let claimed = place.ok(["pool", "claim", "shelf"]);
    let claimed = claimed.trim_end();
    place.ok(["pool", "stop", "shelf"]);
    let all = ["lin", "back", "copy", claimed];
    all_jailed(&place, &all);
    for id in all {
        assert_eq!(says(id, "cat /tmp/x"), "42");
    }
    place.ok(["rm"].iter().chain(&["-f"]).chain(&all));
    // Where pools are written down: none is.
    fs::remove_dir(place.run().join(".pools")).unwrap();
    nothing_is_left(&place);
}
