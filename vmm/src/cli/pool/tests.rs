//! Who gets which machine, and what is left when somebody is killed.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use super::place::{Marker, Pool, Record, Stage};

fn pool(dir: &Path, ready: u32) -> Pool {
    let pool = Pool {
        name: "web".to_owned(),
        dir: dir.join("web"),
    };
    for stage in [Stage::Making, Stage::Ready, Stage::Claimed] {
        fs::create_dir_all(pool.stage(stage)).unwrap();
    }
    for n in 0..ready {
        let marker = Marker {
            id: format!("web-{n}"),
            version: 3,
        };
        pool.mark(&marker).unwrap();
        assert!(pool.shift(&marker, Stage::Making, Stage::Ready).unwrap());
    }
    pool
}

#[test]
fn each_machine_is_claimed_once() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), 100);
    let ready = pool.markers(Stage::Ready).unwrap();
    let seen = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for marker in &ready {
                    if let Some(claimed) = pool.claim(marker).unwrap() {
                        let id = claimed.done().unwrap();
                        assert!(seen.lock().unwrap().insert(id), "{marker:?} twice");
                    }
                }
            });
        }
    });
    assert_eq!(seen.lock().unwrap().len(), 100);
    for stage in [Stage::Making, Stage::Ready, Stage::Claimed] {
        assert_eq!(pool.markers(stage).unwrap(), []);
    }
}

#[test]
fn what_is_taken_back_is_not_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), 1);
    let [marker] = &pool.markers(Stage::Ready).unwrap()[..] else {
        panic!("not one");
    };
    assert!(pool.shift(marker, Stage::Ready, Stage::Making).unwrap());
    assert!(pool.claim(marker).unwrap().is_none());
    assert!(!pool.shift(marker, Stage::Ready, Stage::Making).unwrap());
}

#[test]
fn what_a_claimer_left_is_taken_over_when_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), 1);
    let [marker] = &pool.markers(Stage::Ready).unwrap()[..] else {
        panic!("not one");
    };
    let claimed = pool.claim(marker).unwrap().unwrap();
    assert!(pool.take_over(marker).unwrap().is_none());
    drop(claimed);
    let left = pool.take_over(marker).unwrap().unwrap();
    assert!(pool.take_over(marker).unwrap().is_none());
    left.done().unwrap();
    assert!(pool.take_over(marker).unwrap().is_none());
}

#[test]
fn one_process_keeps_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), 0);
    let keeping = pool.keep().unwrap();
    assert!(pool.keep().is_none());
    let record = Record {
        template: "web".to_owned(),
        count: 2,
    };
    pool.set_record(&keeping, &record).unwrap();
    assert_eq!(pool.record().unwrap(), Some(record));
    drop(keeping);
    pool.remove(&pool.keep().unwrap());
    assert!(!pool.dir.exists() && pool.keep().is_none());
}
