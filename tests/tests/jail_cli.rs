//! Machines that stay, started as root: what the machine's process finds itself in, as the host sees it, and what is
//! left when it is gone.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tine_tests::cli::{Place, eventually, read_until, with_vmm};
use tine_tests::jail::seen::{is_jailed, mounts, names, status};
use tine_tests::jail::{alive, private_mounts};
use tine_tests::{guest, text};

/// The first of the users that machines are.
const FIRST_USER: u32 = 0x7000_0000;

/// In a mount namespace of the test's own, with an empty `/run`.
fn place() -> Place {
    private_mounts();
    with_vmm();
    Place::new()
}

fn started(place: &Place, name: &str, more: &[&str]) {
    let output = place.bare(name, &guest("hang"), more).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), format!("{name}\n"));
}

#[test]
fn a_machine_is_nobody_nowhere_with_nothing() {
    let place = place();
    started(&place, "one", &[]);
    let pid = place.pid("one");
    let uid = status(pid, "Uid");
    let user: u32 = uid.split(' ').next().unwrap().parse().unwrap();
    assert!(user >= FIRST_USER, "{uid}");
    is_jailed(pid, user, user);
    assert_eq!(status(pid, "Groups"), "");
    assert_eq!(status(pid, "NSpid"), format!("{pid} 1"));
    // It sees its own directory, its kernel, and three device nodes.
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let own = fs::canonicalize(place.run().join("one")).unwrap();
    let kernel = fs::canonicalize(guest("hang")).unwrap();
    let mut shown = [&own, &kernel]
        .map(|path| path.display().to_string())
        .to_vec();
    shown.extend(["/".to_owned(), "/dev".to_owned()]);
    shown.sort();
    assert_eq!(mounts(pid), shown);
    assert_eq!(names(root.join("dev")), ["kvm", "net", "urandom"]);
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    assert_eq!(names(inside(kernel.parent().unwrap())), ["hang.elf"]);
    assert_eq!(names(inside(&place.run())), ["one"], "no other machine");
    for missing in ["proc", "sys", "etc", "usr", "bin", "home", "root"] {
        assert!(!root.join(missing).exists(), "{missing}");
    }
    // What it writes is root's on the host.
    let socket = fs::metadata(own.join("api.sock")).unwrap();
    assert_eq!((socket.uid(), socket.gid()), (0, 0));
    assert_eq!(fs::metadata(&own).unwrap().uid(), 0);
    eventually(|| place.ok(["logs", "one"]) == "A");
    assert_eq!(place.ok(["rm", "-f", "one"]), "one\n");
    assert!(!alive(pid));
    assert_eq!(names(place.run()), [] as [&str; 0]);
    assert!(Path::new("/run/tine-jailer").exists(), "for the next one");
    place.ok(["gc"]);
    assert!(!Path::new("/run/tine-jailer").exists(), "what jails share");
}

#[test]
fn no_two_machines_are_the_same_user() {
    let place = place();
    let ids = ["a", "b", "c"];
    ids.iter().for_each(|id| started(&place, id, &[]));
    let mut users = ids.map(|id| status(place.pid(id), "Uid"));
    users.sort();
    assert!(users[0] != users[1] && users[1] != users[2], "{users:?}");
    place.ok(["rm", "-f", "a", "b", "c"]);
}

#[test]
fn without_a_jail_it_is_said_loudly() {
    let place = place();
    let kernel = guest("hang");
    let mut by_word = place.bare("m", &kernel, &["--no-jail"]);
    let mut by_wish = place.bare("n", &kernel, &[]);
    by_wish.env("TINE_NO_JAIL", "1");
    for (command, id) in [(&mut by_word, "m"), (&mut by_wish, "n")] {
        let said = text(&command.output().unwrap().stderr);
        assert!(said.starts_with("tine: NO JAIL: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(status(place.pid(id), "Uid"), "0 0 0 0");
    }
    // The word is the last one.
    let mut both = place.bare("o", &kernel, &["--jail"]);
    assert_eq!(
        text(&both.env("TINE_NO_JAIL", "1").output().unwrap().stderr),
        ""
    );
    all_jailed(&place, &["o"]);
    place.ok(["rm", "-f", "m", "n", "o"]);
}

#[test]
fn threads_of_the_foreground_that_meet_the_guest_are_filtered() {
    let place = place();
    let refused = place.fails(2, ["run", "--jail", "--kernel", "x"]);
    assert!(refused.contains("-d"), "{refused}");
    let mut run = place.tine(["run", "--memory", "64M", "--console", "stdout", "--kernel"]);
    let mut child = run.arg(guest("hang")).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "A");
    // The thread of the devices is in no hurry: the guest runs before it has begun.
    let filtered = || {
        let mut filtered: Vec<String> = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", child.id())).unwrap() {
            let thread = thread.unwrap().path();
            let status = fs::read_to_string(thread.join("status")).unwrap();
            if status.contains("\nSeccomp:\t2\n") {
                let name = fs::read_to_string(thread.join("comm")).unwrap();
                // The kernel's own, which takes on the filter of who made it.
                if !name.starts_with("kvm-") {
                    filtered.push(name.trim_end().to_owned());
                }
            }
        }
        filtered.sort();
        filtered
    };
    let began = Instant::now();
    while filtered().len() < 3 && began.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    assert_eq!(filtered(), ["devices", "signals", "vcpu0"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why() {
    let place = place();
    let passwd = Path::new("/etc/passwd");
    let output = place.bare("m", passwd, &[]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("neither an ELF kernel"), "{said}");
    let output = place
        .bare("m", &guest("hang"), &["--disk", "/dev/null"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("--no-jail"), "{said}");
    // Where others can write, no jail is made: the reason comes from within.
    let jails = place.run().join(".jails");
    fs::create_dir(&jails).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&jails, open).unwrap();
    let output = place.bare("m", &guest("hang"), &[]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("chmod go-w"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    fs::remove_dir(&jails).unwrap();
    assert_eq!(names(place.run()), [] as [&str; 0]);
}

#[test]
fn files_are_reached_by_links_and_disks_stay_whose_they_were() {
    let place = place();
    let (kernel, disk) = (place.path("kernel"), place.path("disk"));
    symlink(guest("hang"), &kernel).unwrap();
    fs::write(&disk, [0; 1 << 16]).unwrap();
    std::os::unix::fs::chown(&disk, Some(1234), Some(1235)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&disk, mode).unwrap();
    let console = place.path("console");
    let more = ["--disk", "disk", "--console", "console"];
    let output = place.bare("m", &kernel, &more).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    eventually(|| fs::read(&console).is_ok_and(|said| said == b"A"));
    place.ok(["rm", "-f", "m"]);
    let meta = fs::metadata(&disk).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o777),
        (1234, 1235, 0o600)
    );
}

#[test]
fn after_sigkill_the_same_id_is_removed_and_starts_again() {
    let place = place();
    for _ in 0..2 {
        started(&place, "m", &[]);
        let pid = place.pid("m");
        // SAFETY: kill takes two integers, and the process is the machine's own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        eventually(|| !alive(pid));
        place.ok(["rm", "m"]);
        assert_eq!(names(place.run()), [] as [&str; 0]);
    }
}

/// Each of them is in a jail, as a user of its own.
fn all_jailed(place: &Place, ids: &[&str]) {
    let mut users: Vec<String> = ids.iter().map(|id| status(place.pid(id), "Uid")).collect();
    users.sort();
    users.dedup();
    assert_eq!(users.len(), ids.len(), "{users:?}");
    assert!(!users.contains(&"0 0 0 0".to_owned()));
}

#[test]
fn snapshots_come_out_of_a_jail_and_machines_go_into_theirs() {
    let place = place();
    let output = place.bare("one", &guest("spin"), &[]).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    let mounts = || fs::read_to_string(format!("/proc/{}/mountinfo", place.pid("one"))).unwrap();
    let before = mounts();
    fs::create_dir(place.path("shelf")).unwrap();
    for name in ["shelf/first", "shelf/second"] {
        let taken = place.ok(["snapshot", "--json", "one", name]);
        let taken: Value = serde_json::from_str(&taken).unwrap();
        assert_eq!(taken["path"], place.path(name).to_str().unwrap());
        place.ok(["snapshot", "verify", name]);
    }
    let again = place.fails(1, ["snapshot", "one", "shelf/first"]);
    assert!(again.contains("first exists"), "{again}");
    assert_eq!(names(place.path("shelf")), ["first", "second"]);
    assert_eq!(mounts(), before, "it sees nothing of them any more");
    place.ok(["restore", "-d", "--no-wait", "--name", "two", "shelf/first"]);
    place.ok([
        "restore",
        "-d",
        "--no-wait",
        "-n",
        "2",
        "--name",
        "n",
        "shelf/second",
    ]);
    place.ok(["fork", "-n", "2", "--name", "f", "one"]);
    let all = ["one", "two", "n-1", "n-2", "f-1", "f-2"];
    all_jailed(&place, &all);
    place.ok(["snapshot", "--stop", "f-1", "shelf/third"]);
    assert_eq!(names(place.path("shelf")), ["first", "second", "third"]);
    place.ok(["rm"].iter().chain(&["-f"]).chain(&all));
    assert_eq!(names(place.run()), [] as [&str; 0]);
}

#[test]
fn forks_of_forks_have_disks_in_their_jails() {
    let place = place();
    let disk = place.path("disk");
    fs::write(&disk, [7; 1 << 16]).unwrap();
    let output = place
        .bare("one", &guest("spin"), &["--disk", "disk"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    place.ok(["fork", "--name", "two", "one"]);
    place.ok(["fork", "-n", "2", "--name", "f", "two"]);
    all_jailed(&place, &["one", "two", "f-1", "f-2"]);
    place.ok(["rm", "-f", "one", "two"]);
    // The layers that are left are those of the copies, by names of their own.
    for id in ["f-1", "f-2"] {
        let layers = names(place.run().join(id));
        let count = layers
            .iter()
            .filter(|name| name.starts_with("disk-"))
            .count();
        assert!(count >= 3, "{layers:?}");
    }
    place.ok(["snapshot", "f-1", "snapshot"]);
    place.ok(["snapshot", "verify", "snapshot"]);
    place.ok(["restore", "-d", "--no-wait", "--name", "r", "snapshot"]);
    all_jailed(&place, &["f-1", "f-2", "r"]);
    place.ok(["rm", "-f", "f-1", "f-2", "r"]);
}

#[test]
fn a_machine_that_has_ended_starts_again_also_after_sigkill() {
    let place = place();
    let kernel = place.path("kernel");
    fs::copy(guest("poweroff"), &kernel).unwrap();
    let output = place.bare("m", &kernel, &[]).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    let record = place.run().join("m/machine.json");
    let silent = || UnixStream::connect(place.run().join("m/api.sock")).is_err();
    eventually(|| record.exists() && silent());
    // The same file of the host; what is in it is whose it is to change.
    fs::copy(guest("hang"), &kernel).unwrap();
    // The second time its socket is still there, and nobody behind it.
    for _ in 0..2 {
        place.ok(["start", "--no-wait", "m"]);
        let pid = place.pid("m");
        all_jailed(&place, &["m"]);
        // SAFETY: kill takes two integers, and the process is the machine's own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        eventually(|| !alive(pid) && silent());
        assert!(place.run().join("m/api.sock").exists());
    }
    place.ok(["rm", "m"]);
}

#[test]
fn gc_removes_what_died_without_a_word_and_nothing_else() {
    let place = place();
    assert_eq!(place.ok(["gc"]), "");
    ["dead", "alive"]
        .iter()
        .for_each(|id| started(&place, id, &[]));
    let output = place.bare("off", &guest("poweroff"), &[]).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    eventually(|| place.ok(["ps", "-a"]).contains("ended"));
    let victim = place.pid("dead");
    // The other one has no number any more, but that in its jail's notes.
    let notes = fs::read_to_string(place.run().join(".jails/tine-vmm/off/jail")).unwrap();
    let off = notes.split(' ').nth(1).unwrap().parse().unwrap();
    eventually(|| !alive(off));
    // SAFETY: kill takes two integers, and the process is the machine's own.
    assert_eq!(unsafe { libc::kill(victim, libc::SIGKILL) }, 0);
    eventually(|| !alive(victim));
    let run = place.run();
    let jails = fs::canonicalize(run.join(".jails/tine-vmm")).unwrap();
    let told: Value = serde_json::from_str(&place.ok(["gc", "--dry-run", "--json"])).unwrap();
    let mut wanted = vec![jails.join("dead"), jails.join("off"), run.join("dead")];
    wanted.sort();
    let paths = |told: &Value| {
        let all = told["removed"].as_array().unwrap().iter();
        let mut all: Vec<PathBuf> = all.map(|path| path.as_str().unwrap().into()).collect();
        all.sort();
        all
    };
    assert_eq!(paths(&told), wanted);
    assert_eq!(names(&jails), ["alive", "dead", "off"], "nothing was done");
    let done: Value = serde_json::from_str(&place.ok(["gc", "--json"])).unwrap();
    assert_eq!(paths(&done), wanted);
    assert_eq!(names(&jails), ["alive"]);
    let noted = [".alive.shown", ".jails", ".off.shown", "alive", "off"];
    assert_eq!(names(&run), noted);
    all_jailed(&place, &["alive"]);
    assert!(Path::new("/run/tine-jailer").exists());
    let last = place.pid("alive");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(last, libc::SIGKILL) }, 0);
    eventually(|| !alive(last));
    place.ok(["gc"]);
    assert_eq!(names(&run), [".off.shown", "off"]);
    assert!(!Path::new("/run/tine-jailer").exists(), "what jails share");
}
