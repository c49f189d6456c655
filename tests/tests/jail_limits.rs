//! The cgroup of a machine that stays: its limits, that it is in it from its first instruction on, and
//! that nothing is left of it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use tine_tests::cli::{Place, eventually, with_vmm};
use tine_tests::jail::machine::groups;
use tine_tests::jail::seen::{group, names, status};
use tine_tests::jail::{alive, private_mounts, user};
use tine_tests::left::kill;
use tine_tests::{guest, text};

/// What limits memory here, and where it says how much is used.
fn memory() -> (&'static str, &'static str) {
    match Path::new("/sys/fs/cgroup/memory").is_dir() {
        true => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        false => ("memory.max", "memory.current"),
    }
}

fn place() -> Place {
    private_mounts();
    with_vmm();
    Place::new()
}

fn read(dir: &Path, file: &str) -> String {
    let text = fs::read_to_string(dir.join(file)).unwrap();
    text.trim().to_owned()
}

#[test]
fn a_machine_has_the_limits_that_it_is_given() {
    let place = place();
    let (limit, usage) = memory();
    let memory = format!("{limit}=192M");
    let limits = ["--cgroup", &memory, "--cgroup", "pids.max=64"];
    let output = place.bare("limits-a", &guest("spin"), &limits).output();
    assert_eq!(text(&output.unwrap().stderr), "");
    place.ok(["snapshot", "limits-a", "shot"]);
    let more = |words: &[&str]| {
        let output = place.tine(words.iter().chain(&limits)).output().unwrap();
        assert_eq!(text(&output.stderr), "", "{words:?}");
    };
    more(&["restore", "-d", "--no-wait", "--name", "limits-b", "shot"]);
    more(&["fork", "-n", "2", "--name", "limits-f", "limits-a"]);
    let all = ["limits-a", "limits-b", "limits-f-1", "limits-f-2"];
    for id in all {
        let pid = place.pid(id);
        let dir = group(pid, limit);
        assert!(dir.ends_with(format!("tine-vmm/{id}")), "{}", dir.display());
        assert_eq!(read(&dir, limit), (192 << 20).to_string());
        assert_eq!(read(&group(pid, "pids.max"), "pids.max"), "64");
        // Its first memory counts: that of its program's start.
        let used: u64 = read(&dir, usage).parse().unwrap();
        assert!(used > 256 << 10, "{id}: {used}");
        let threads = read(&group(pid, "pids.max"), "pids.current");
        assert_eq!(threads, status(pid, "Threads"), "nobody else is in it");
    }
    assert!(!groups("tine-vmm/limits-").is_empty());
    // One that is killed leaves its groups to whoever removes it.
    let last = place.pid("limits-b");
    kill(last);
    eventually(|| !alive(last));
    place.ok(["gc"]);
    assert!(groups("tine-vmm/limits-b").is_empty());
    place.ok(["rm", "-f", "limits-a", "limits-f-1", "limits-f-2"]);
    assert_eq!(groups("tine-vmm/limits-"), [] as [&str; 0]);
    assert_eq!(names(place.run()), [] as [&str; 0]);
}

#[test]
fn one_that_has_ended_starts_again_with_limits() {
    let place = place();
    let kernel = place.path("kernel");
    fs::copy(guest("poweroff"), &kernel).unwrap();
    let output = place.bare("limits-s", &kernel, &[]).output();
    assert_eq!(text(&output.unwrap().stderr), "");
    let dir = place.run().join("limits-s");
    let record = dir.join("machine.json");
    eventually(|| record.exists() && UnixStream::connect(dir.join("api.sock")).is_err());
    // The same file of the host; what is in it is whose it is to change.
    fs::copy(guest("hang"), &kernel).unwrap();
    place.ok(["start", "--no-wait", "--cgroup", "pids.max=32", "limits-s"]);
    let pid = place.pid("limits-s");
    assert_eq!(read(&group(pid, "pids.max"), "pids.max"), "32");
    place.ok(["rm", "-f", "limits-s"]);
    assert_eq!(groups("tine-vmm/limits-s"), [] as [&str; 0]);
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let place = place();
    let refused = |status: i32, more: &[&str]| {
        let output = place
            .bare("limits-x", &guest("hang"), more)
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert_eq!(groups("tine-vmm/limits-x"), [] as [&str; 0]);
        assert_eq!(names(place.run()), [] as [&str; 0]);
        said
    };
    let said = refused(1, &["--cgroup", "pids.max=many"]);
    assert!(said.contains(r#"cannot write "many""#), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let said = refused(1, &["--cgroup", "flux.max=1"]);
    assert!(said.contains("no controller \"flux\""), "{said}");
    refused(2, &["--cgroup", "pids.max"]);
    // Whichever process has the number would be moved.
    let said = refused(2, &["--cgroup", "cgroup.procs=1"]);
    assert!(said.contains("which is no limit"), "{said}");
    refused(2, &["--cgroup", "freezer.state=FROZEN"]);
    // So little that its process is killed while the jail is made.
    refused(1, &["--cgroup", &format!("{}=4096", memory().0)]);
    let skeleton = place.run().join(".jails/tine-vmm/limits-x");
    assert!(!skeleton.exists(), "{}", skeleton.display());
    let said = refused(2, &["--cgroup", "pids.max=64", "--no-jail"]);
    assert!(said.contains("--no-jail"), "{said}");
    let said = place.fails(2, ["run", "--cgroup", "pids.max=64", "--kernel", "x"]);
    assert!(said.contains("-d"), "{said}");
}

#[test]
fn a_group_that_somebody_is_in_is_nobody_elses() {
    let (one, other) = (place(), Place::new());
    let limit = ["--cgroup", "pids.max=64"];
    let output = one
        .bare("limits-t", &guest("hang"), &limit)
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    let output = other
        .bare("limits-t", &guest("hang"), &limit)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("/tine-vmm/limits-t already"), "{said}");
    assert_eq!(names(other.run()), [] as [&str; 0]);
    assert!(alive(one.pid("limits-t")));
    assert!(!groups("tine-vmm/limits-t").is_empty());
    one.ok(["rm", "-f", "limits-t"]);
    assert_eq!(groups("tine-vmm/limits-t"), [] as [&str; 0]);
}

#[test]
fn a_group_that_somebody_was_moved_to_is_not_forgotten() {
    let place = place();
    let limit = ["--cgroup", "pids.max=64"];
    let begin = || {
        let output = place.bare("limits-m", &guest("hang"), &limit).output();
        text(&output.unwrap().stderr)
    };
    assert_eq!(begin(), "");
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let machine = place.pid("limits-m");
    let procs = group(machine, "pids.max").join("cgroup.procs");
    fs::write(procs, other.id().to_string()).unwrap();
    place.fails(1, ["rm", "-f", "limits-m"]);
    assert!(!alive(machine));
    let said = begin();
    let wanted = format!("process {} is in the cgroup", other.id());
    assert!(said.contains(&wanted), "{said}");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(begin(), "");
    place.ok(["rm", "-f", "limits-m"]);
    assert_eq!(groups("tine-vmm/limits-m"), [] as [&str; 0]);
}

#[test]
fn an_ordinary_user_without_a_cgroup_is_told_so() {
    let place = user::place();
    let kernel = user::readable(&place, &guest("hang"));
    let limit = ["--cgroup", "pids.max=64"];
    let output = place.bare("limits-u", &kernel, &limit).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the host has handed that over"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(names(place.run()), [] as [&str; 0]);
    assert_eq!(groups("tine-vmm/limits-u"), [] as [&str; 0]);
}
