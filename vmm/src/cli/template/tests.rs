//! The store: what is seen while versions come and go, and what is left when their makers die.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;

use super::building::Building;
use super::record::{Named, Version, named};
use super::store::{Store, entries};

fn store() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("templates");
    (dir, Store { root })
}

/// A version in the making, with something of a snapshot in it.
fn begin(store: &Store) -> Building {
    let building = store.begin().unwrap();
    fs::create_dir(building.snapshot()).unwrap();
    fs::write(building.snapshot().join("manifest.json"), "{}").unwrap();
    building
}

fn publish(store: &Store, name: &str) -> u32 {
    let record = Version {
        run: vec!["true".to_owned()],
        ..Version::default()
    };
    store.publish(begin(store), name, &record, true).unwrap()
}

fn web(version: Option<u32>) -> Named {
    let name = "web".to_owned();
    Named { name, version }
}

fn active(store: &Store) -> Option<u32> {
    store.active("web").unwrap().version
}

#[test]
fn versions_are_numbered_activated_and_rolled_back() {
    let (_dir, store) = store();
    assert_eq!(store.names().unwrap(), [] as [String; 0]);
    assert_eq!([1, 2, 3].map(|_| publish(&store, "web")), [1, 2, 3]);
    assert_eq!(active(&store), Some(3));
    store.activate("web", 1).unwrap();
    let opened = store.open(&web(None)).unwrap();
    assert!(opened.snapshot.ends_with("web/1/snapshot"));
    assert_eq!(opened.record.run, ["true"]);
    assert_eq!(
        [0; 3].map(|_| store.roll_back("web").ok()),
        [Some(3), Some(2), Some(1)]
    );
    let refused = store.roll_back("web").unwrap_err();
    assert!(refused.words.contains("active before"), "{refused}");
    let refused = store.activate("web", 4).unwrap_err();
    assert!(
        refused.words.contains("no version 4: there are 1, 2, 3"),
        "{refused}"
    );
    let refused = store.open(&named("wet").unwrap()).unwrap_err();
    assert!(
        refused.words.contains("no template wet: there are web"),
        "{refused}"
    );
}

#[test]
fn a_version_can_be_published_without_being_activated() {
    let (_dir, store) = store();
    let record = Version::default();
    store.publish(begin(&store), "web", &record, false).unwrap();
    let refused = store.open(&web(None)).unwrap_err();
    assert!(
        refused.words.contains("tine template activate web"),
        "{refused}"
    );
    assert!(store.open(&web(Some(1))).is_ok());
}

#[test]
fn what_is_removed_is_gone_and_its_number_is_not_given_again() {
    let (_dir, store) = store();
    (0..3).for_each(|_| assert!(publish(&store, "web") > 0));
    let refused = store.remove(&web(Some(3))).unwrap_err();
    assert!(refused.words.contains("active version"), "{refused}");
    store.activate("web", 1).unwrap();
    store.remove(&web(Some(3))).unwrap();
    assert_eq!(store.versions("web").unwrap(), [1, 2]);
    assert!(store.open(&web(Some(3))).is_err());
    assert!(store.remove(&web(Some(3))).is_err());
    assert_eq!(publish(&store, "web"), 4);
    // It was active before version 1, and before version 4 now is version 1.
    assert_eq!(store.roll_back("web").unwrap(), 1);
    store.remove(&web(None)).unwrap();
    assert_eq!(entries(&store.root).unwrap(), [] as [String; 0]);
    assert!(store.remove(&web(None)).is_err());
}

/// A run that has opened a version has all of it, whatever becomes of the names.
#[test]
fn a_version_that_is_being_opened_is_not_removed_under_it() {
    let (_dir, store) = store();
    (0..2).for_each(|_| assert!(publish(&store, "web") > 0));
    let opened = store.open(&web(Some(1))).unwrap();
    let gone = AtomicBool::new(false);
    thread::scope(|scope| {
        let remover = scope.spawn(|| {
            store.remove(&web(Some(1))).unwrap();
            gone.store(true, Ordering::SeqCst);
        });
        // It waits for the lock: an event that the kernel tells of.
        let inode = fs::metadata(store.version_dir("web", 1)).unwrap();
        while !waits_for(&inode) {
            thread::yield_now();
        }
        assert!(!gone.load(Ordering::SeqCst));
        let mut file = fs::File::open(opened.snapshot.join("manifest.json")).unwrap();
        drop(opened);
        remover.join().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}");
    });
    assert_eq!(store.versions("web").unwrap(), [2]);
}

/// Whether somebody waits for the lock of a file: a line with `->` in /proc/locks.
fn waits_for(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = format!(":{} ", meta.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks
        .lines()
        .any(|line| line.contains("->") && line.contains(&inode))
}

#[test]
fn builds_of_one_name_at_the_same_time_are_versions_of_their_own() {
    let (_dir, store) = store();
    let mut numbers: Vec<u32> = thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| publish(&store, "web")))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    for version in numbers {
        store.open(&web(Some(version))).unwrap();
    }
}

#[test]
fn one_in_the_making_is_not_seen_and_not_cleared() {
    let (_dir, store) = store();
    let building = begin(&store);
    fs::write(building.scratch(), "").unwrap();
    store.clear(&store.lock().unwrap());
    assert!(building.snapshot().is_dir());
    assert_eq!(store.names().unwrap(), [] as [String; 0]);
    building.drop_scratch().unwrap();
    drop(building);
    assert_eq!(entries(&store.root).unwrap(), [] as [String; 0]);
}

#[test]
fn a_machine_does_not_say_which_directory_a_template_is() {
    let (dir, store) = store();
    let building = begin(&store);
    fs::remove_dir_all(building.snapshot()).unwrap();
    let missing = building.check_snapshot().unwrap_err();
    assert!(missing.words.contains("cannot open"), "{missing}");
    std::os::unix::fs::symlink(dir.path(), building.snapshot()).unwrap();
    let refused = building.check_snapshot().unwrap_err();
    assert!(refused.words.contains("cannot use"), "{refused}");
    fs::remove_file(building.snapshot()).unwrap();
    fs::create_dir(building.snapshot()).unwrap();
    building.check_snapshot().unwrap();
}

/// All steps of a build: what it has done by then is what a killed one leaves.
#[test]
fn what_killed_builds_leave_is_cleared() {
    let (dir, store) = store();
    let run = dir.path().join("run");
    let left = |name: &str| {
        let path = store.root.join(name);
        fs::create_dir_all(path.join("snapshot")).unwrap();
        path
    };
    let machine = |building: &Path, run_dir: &Path| {
        fs::create_dir_all(run_dir).unwrap();
        std::os::unix::fs::symlink(run_dir, building.join("machine")).unwrap();
    };
    // With the machine's directory, without, and with one that is no such machine's.
    machine(&left(".building-one"), &run.join("build-one"));
    left(".building-two");
    machine(&left(".building-three"), &run.join("precious"));
    left(".removed-four");
    // Killed between the making of a template's directory and the rename.
    fs::create_dir_all(store.dir("empty")).unwrap();
    drop(store.lock().unwrap());
    // Killed between the rename and the record of it.
    fs::create_dir_all(store.version_dir("web", 1)).unwrap();
    assert_eq!(store.names().unwrap(), ["web"]);
    assert_eq!(active(&store), None);

    let building = begin(&store);
    let mut found = entries(&store.root).unwrap();
    found.retain(|name| !name.starts_with(".building-") || !building.snapshot().exists());
    assert_eq!(found, ["web"]);
    assert!(!run.join("build-one").exists() && run.join("precious").exists());
    drop(building);
    assert_eq!(publish(&store, "web"), 2);
    assert_eq!(active(&store), Some(2));
}

#[test]
fn a_machine_that_still_runs_is_not_cleared() {
    let (dir, store) = store();
    let building = store.root.join(".building-one");
    let run_dir = dir.path().join("build-one");
    for path in [&building, &run_dir] {
        fs::create_dir_all(path).unwrap();
    }
    std::os::unix::fs::symlink(&run_dir, building.join("machine")).unwrap();
    let served = std::os::unix::net::UnixListener::bind(run_dir.join("api.sock")).unwrap();
    store.clear(&store.lock().unwrap());
    assert!(building.exists() && run_dir.exists());
    drop(served);
    store.clear(&store.lock().unwrap());
    assert!(!building.exists() && !run_dir.exists());
}

#[test]
fn damaged_records_are_named() {
    let (_dir, store) = store();
    publish(&store, "web");
    for text in ["", "{", "{\"version\": -1}", "[]", "{\"extra\": 1}"] {
        fs::write(store.dir("web").join("active.json"), text).unwrap();
        let refused = store.open(&web(None)).unwrap_err();
        assert!(refused.words.contains("active.json"), "{refused}");
    }
    let long = fs::File::create(store.dir("web").join("active.json")).unwrap();
    long.set_len(1 << 40).unwrap();
    assert!(
        store
            .activate("web", 1)
            .unwrap_err()
            .words
            .contains("longer")
    );
}

#[test]
fn a_store_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, store) = store();
    publish(&store, "web");
    fs::set_permissions(&store.root, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = store.activate("web", 1).unwrap_err();
    assert!(refused.words.contains("nobody else can write"), "{refused}");
    // What is in it is not run either.
    let refused = store.open(&web(None)).unwrap_err();
    assert!(refused.words.contains("nobody else can write"), "{refused}");
}
