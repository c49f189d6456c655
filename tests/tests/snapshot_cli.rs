//! Snapshots of a Linux guest by the command line: what people do with them, and what a guest sees
//! after a restore. One machine is booted and prepared; everything else starts from its snapshot.

use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tine_snapshot::WorkingSet;
use tine_tests::cli::{Place, with_vmm};
use tine_tests::linux::image;
use tine_tests::{require_kvm, text};

/// What the machine does from before the snapshot on.
const PREPARE: &str = "
mkdir -p /run/t; echo kept > /run/t/file
cat /proc/sys/kernel/random/uuid > /run/t/uuid
(sleep 1000000 | sh -c 'i=0; while :; do i=$((i+1)); echo $i > /run/t/count; read -t 1 x; done') \
    < /dev/null > /dev/null 2>&1 &
until [ -s /run/t/count ]; do sleep 0.1; done";

struct Prepared {
    place: Place,
    /// When the machine stood still.
    taken: Instant,
}

impl Prepared {
    fn get() -> &'static Prepared {
        static PREPARED: OnceLock<Prepared> = OnceLock::new();
        PREPARED.get_or_init(|| {
            require_kvm();
            with_vmm();
            image();
            let place = Place::new();
            place.ok(["run", "-d", "--name", "first", "--memory", "128M"]);
            place.ok(["exec", "first", "--", "sh", "-c", PREPARE]);
            let taken = place.ok(["snapshot", "first", "base"]);
            assert!(taken.contains("stood still"), "{taken}");
            place.ok(["exec", "first", "--", "cat", "/run/t/file"]);
            place.ok(["rm", "-f", "first"]);
            Prepared {
                place,
                taken: Instant::now(),
            }
        })
    }

    /// What a script prints in a machine of its own.
    fn sh(&self, script: &str) -> String {
        self.place.ok(["restore", "base", "--", "sh", "-c", script])
    }

    fn start(&self, script: &str) -> Child {
        let mut tine = self
            .place
            .tine(["restore", "base", "--", "sh", "-c", script]);
        tine.spawn().expect("tine can be started")
    }
}

fn finish(child: Child) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    assert!(status.success(), "{status}: {}", text(&stderr));
    text(&stdout)
}

#[test]
fn files_are_there_and_processes_go_on() {
    let prepared = Prepared::get();
    let script = "cat /run/t/file; n=$(cat /run/t/count)
        until [ 0$(cat /run/t/count) -gt 0$n ]; do sleep 0.2; done; echo on";
    assert_eq!(prepared.sh(script), "kept\non\n");
}

#[test]
fn the_clock_is_right_whenever_the_machine_is_restored() {
    let prepared = Prepared::get();
    // The time that has passed would be missing otherwise.
    while prepared.taken.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let place = &prepared.place;
    place.ok(["restore", "-d", "--name", "clock", "base"]);
    // What the guest says lies between the host's times around it, give or take half a second.
    let before = now();
    let record = place.ok(["exec", "--json", "clock", "--", "true"]);
    let after = now();
    place.ok(["rm", "-f", "clock"]);
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let started = record["started_at"].as_str().unwrap();
    let seconds = Command::new("date")
        .args(["+%s.%N", "-d", started])
        .output();
    let started: f64 = text(&seconds.unwrap().stdout).trim().parse().unwrap();
    assert!(
        started > before - 0.5 && started < after + 0.5,
        "{before} {started} {after}"
    );
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs_f64()
}

#[test]
fn random_numbers_are_others_in_each_machine() {
    let prepared = Prepared::get();
    let script = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid";
    let mut all = std::collections::HashSet::new();
    for _ in 0..2 {
        let children: Vec<_> = (0..4).map(|_| prepared.start(script)).collect();
        for child in children {
            for line in finish(child).lines() {
                assert!(all.insert(line.to_owned()), "{line} twice");
            }
        }
    }
    assert_eq!(all.len(), 16);
    // What a process had in its own memory is the same everywhere; it is told by an event.
    let uuid = prepared.sh("cat /run/t/uuid; cat /run/tine/generation");
    assert!(uuid.ends_with("\n1\n"), "{uuid}");
}

#[test]
fn a_process_is_told_of_the_restore() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    place.ok(["restore", "-d", "--name", "watcher", "base"]);
    let watch = "g=$(cat /run/tine/generation); \
        until [ $(cat /run/tine/generation) != $g ]; do sleep 0.2; done; \
        cat /run/tine/generation > /run/t/.s; mv /run/t/.s /run/t/seen";
    let watcher = ["exec", "watcher", "--", "sh", "-c"];
    let started = format!("({watch}) < /dev/null > /dev/null 2>&1 & sleep 1");
    place.ok(watcher.into_iter().chain([started.as_str()]));
    place.ok(["snapshot", "--stop", "watcher", "watched"]);
    let seen = "until cat /run/t/seen 2> /dev/null; do sleep 0.2; done";
    let out = place.ok(["restore", "watched", "--", "sh", "-c", seen]);
    assert_eq!(out, "2\n");
    place.ok(["rm", "watcher"]);
}

#[test]
fn rounds_of_snapshot_and_restore() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    let sum = |dir: &str| {
        let script = "dd if=/run/t/data bs=4k 2> /dev/null | md5sum | cut -d' ' -f1";
        place.ok(["restore", dir, "--", "sh", "-c", script])
    };
    place.ok(["restore", "-d", "--name", "round", "base"]);
    let fill = "head -c 300000 /dev/urandom > /run/t/data; md5sum < /run/t/data | cut -d' ' -f1";
    let wanted = place.ok(["exec", "round", "--", "sh", "-c", fill]);
    for round in 0..4 {
        let dir = format!("round-{round}");
        place.ok(["snapshot", "--stop", "round", &dir]);
        place.ok(["rm", "round"]);
        place.ok(["restore", "-d", "--name", "round", &dir]);
    }
    assert_eq!(sum("round-3"), wanted);
    let verified = place.ok(["snapshot", "verify", "round-3"]);
    assert!(verified.contains("is whole"), "{verified}");
    place.ok(["snapshot", "flatten", "round-3", "flat"]);
    assert_eq!(sum("flat"), wanted);
    let flat = place.ok(["snapshot", "inspect", "flat"]);
    let flat: serde_json::Value = serde_json::from_str(&flat).unwrap();
    assert_eq!(flat["memory"]["layers"].as_array().unwrap().len(), 1);
    place.ok(["rm", "-f", "round"]);
}

#[test]
fn paused_machines_stand_still() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    place.ok(["restore", "-d", "--name", "still", "base"]);
    place.ok(["pause", "still"]);
    let ps = place.ok(["ps"]);
    assert!(ps.contains("paused"), "{ps}");
    let refused = place.fails(1, ["exec", "still", "--", "true"]);
    assert!(refused.contains("paused"), "{refused}");
    place.ok(["resume", "still"]);
    place.ok(["exec", "still", "--", "true"]);
    place.ok(["rm", "-f", "still"]);
}

#[test]
fn words_that_make_no_sense() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    let refused = place.fails(1, ["restore", "nothing"]);
    assert!(
        refused.contains("nothing") && refused.lines().count() == 1,
        "{refused}"
    );
    let refused = place.fails(1, ["snapshot", "nobody", "target"]);
    assert!(refused.contains("there is no machine nobody"), "{refused}");
    let refused = place.fails(1, ["snapshot", "verify", "nothing"]);
    assert!(refused.contains("nothing"), "{refused}");
    place.fails(2, ["snapshot"]);
    place.fails(2, ["restore"]);
}

#[test]
fn what_a_command_touches_is_recorded_and_read_ahead() {
    let place = &Prepared::get().place;
    let command = ["base", "--", "cat", "/run/t/file"];
    let with = |option: &str| place.ok(["restore", option, "set"].into_iter().chain(command));
    assert_eq!(with("--record-working-set"), "kept\n");
    let set = WorkingSet::read(&place.path("set")).unwrap();
    // The kernel and the agent, and not all that there is.
    assert!((1 << 20..set.size / 2).contains(&set.bytes()), "{set:?}");
    assert_eq!(with("--working-set"), "kept\n");
    // In a jail too, where there is one.
    let detached = [
        "restore",
        "-d",
        "--name",
        "ahead",
        "--working-set",
        "set",
        "base",
    ];
    place.ok(detached);
    assert_eq!(
        place.ok(["exec", "ahead", "--", "cat", "/run/t/file"]),
        "kept\n"
    );
    place.ok(["rm", "-f", "ahead"]);
    let refused = place.fails(1, ["restore", "--working-set", "/etc/passwd", "base"]);
    assert!(refused.contains("/etc/passwd: header"), "{refused}");
    let wrong = ["restore", "-d", "--record-working-set", "set", "base"];
    let refused = place.fails(2, wrong);
    assert!(refused.contains("cannot be used with"), "{refused}");
}
