//! What is left of machines in jails, and who may have which id.

use std::fs;

use tine_tests::jail::alive;
use tine_tests::jail::machine::{boot, connect, groups, jails, request, start, walk};
use tine_tests::text;

#[test]
fn a_second_machine_with_one_id_is_refused_by_name() {
    let jails = jails();
    assert!(start(&jails, "one", &[]).status.success());
    let second = start(&jails, "one", &[]);
    assert_eq!(second.status.code(), Some(1));
    let message = text(&second.stderr);
    let pid = jails.pid("one");
    assert!(message.contains("\"one\" is in use by process") && message.contains(&pid.to_string()));
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(alive(pid), "the first one lives");
    // Nor does a clean-up harm it.
    assert!(jails.collect().status.success());
    request(&jails, "one", "GET", "/", "");
    assert!(
        start(&jails, "two", &[]).status.success(),
        "another id is free"
    );
}

/// Field case 55.
#[test]
fn after_sigkill_the_same_id_starts_again() {
    let jails = jails();
    for _ in 0..3 {
        let started = start(&jails, "a", &["--cgroup", "pids.max=64"]);
        assert!(started.status.success(), "{started:?}");
        boot(&jails, "a");
        jails.kill("a");
    }
}

#[test]
fn after_sigkill_a_clean_up_leaves_nothing() {
    let jails = jails();
    let mounts = mounts();
    for id in ["clean-a", "clean-b"] {
        assert!(
            start(&jails, id, &["--cgroup", "pids.max=64"])
                .status
                .success()
        );
        connect(&jails, id);
    }
    // What the launcher puts there is the launcher's.
    fs::write(jails.of_id("clean-b").join("root/image"), "precious").unwrap();
    assert_eq!(groups("tine-vmm/clean-").len(), 2);
    jails.kill("clean-a");
    jails.kill("clean-b");
    let collected = jails.collect();
    assert!(collected.status.success(), "{collected:?}");
    assert_eq!(mounts, self::mounts());
    assert!(groups("tine-vmm/clean-").is_empty());
    assert!(!jails.of_id("clean-a").exists());
    let left: Vec<_> = walk(&jails.base()).collect();
    assert_eq!(left, [jails.of_id("clean-b").join("root/image")]);
}

/// The places of this thread's mounts.
fn mounts() -> Vec<String> {
    let all = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let place = |line: &str| {
        line.split(' ')
            .skip(3)
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    all.lines().map(place).collect()
}
