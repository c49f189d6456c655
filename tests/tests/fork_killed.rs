//! Forks of which somebody is killed, at any moment: the machine, its copies, who makes them, all of
//! them. Whoever is not killed goes on, what they share stays as it was, and after `tine rm -f` nothing is
//! left. The guests write to their disks all the time, and find what they wrote. `pool_linux` kills
//! pools and their machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use serde_json::json;
use tine_tests::cli::{Place, eventually, with_vmm};
use tine_tests::left::{Random, files, kill};
use tine_tests::{host, require_kvm, text};

/// How often somebody is killed.
const ROUNDS: usize = 16;
/// Layers of memory that a machine has at most.
const LAYERS: usize = tine::memory::MAX_LAYERS;
/// Copies each time.
const COPIES: &str = "5";

struct Snapshot {
    place: Place,
    dir: PathBuf,
}

impl Snapshot {
    /// A full snapshot, with its disk, of a machine that is gone.
    fn take() -> Self {
        require_kvm();
        with_vmm();
        let place = Place::new();
        let disk = place.path("disk.img");
        fs::File::create(&disk).unwrap().set_len(4 << 20).unwrap();
        let disk = ["--disk", disk.to_str().unwrap()];
        place.run_bare("first", "writing", &disk);
        place.ok(["snapshot", "first", "snapshot"]);
        place.ok(["rm", "-f", "first"]);
        let dir = place.path("snapshot");
        Self { place, dir }
    }

    /// A machine out of it, under the name `parent`.
    fn parent(&self) {
        let dir = self.dir.to_str().unwrap();
        let restored = ["restore", "-d", "--no-wait", "--name", "parent", dir];
        self.place.ok(restored);
    }

    /// Copies of it, on their way.
    fn copies(&self) -> std::process::Child {
        let args = ["fork", "--no-wait", "-n", COPIES, "--name", "kid", "parent"];
        self.place.tine(args).spawn().unwrap()
    }

    /// Kills all machines' processes; one may just be on its way.
    fn kill_all(&self) {
        eventually(|| {
            let all = self.place.processes();
            all.iter().for_each(|(pid, _)| kill(*pid));
            all.is_empty()
        });
    }

    /// A machine's guest has not missed anything, and a copy of it has not either.
    fn is_sound(&self, id: &str) {
        let place = &self.place;
        eventually(|| {
            let output = place.output(["fork", "--no-wait", "--name", "again", id]);
            let said = text(&output.stderr);
            // The one whose maker was killed may not be over yet.
            assert!(
                output.status.success() || said.contains("is going on"),
                "{said}"
            );
            output.status.success()
        });
        for id in [id, "again"] {
            assert!(place.process(id).is_some(), "{id} has ended");
            let said = fs::read(place.run().join(id).join("console.log")).unwrap();
            assert_eq!(text(&said), "", "the guest of {id}");
        }
        place.ok(["rm", "-f", "again"]);
    }

    /// What is left of the disks of those that were killed can be gone on with, once its counts have
    /// been made anew (which `tine start` does by itself): no block is anywhere twice. Each layer by
    /// itself: who is killed on its way up has not given all of them their names.
    fn disks_are_sound(&self) {
        for id in self.place.machines() {
            for (layer, _) in files(&self.place.run().join(id)) {
                if layer.extension().is_some_and(|ext| ext == "qcow2") {
                    is_sound(&layer);
                }
            }
        }
    }
}

fn is_sound(layer: &Path) {
    let file = json!({ "driver": "file", "filename": layer });
    let image = json!({ "driver": "qcow2", "file": file, "backing": null });
    let image = format!("json:{image}");
    // What it says of an image that it had to repair is of no use; afterwards it is as good as new.
    let mut repair = Command::new("qemu-img");
    let repair = repair.args(["check", "-q", "-r", "all", &image]);
    repair.output().expect("qemu-img; run ./setup");
    host(&["qemu-img", "check", &image]);
}

/// Ids that were printed.
fn made(output: &Output) -> Vec<String> {
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn whoever_is_killed_leaves_nothing_and_harms_nobody() {
    let snapshot = Snapshot::take();
    let place = &snapshot.place;
    let before = files(&snapshot.dir);
    let mut random = Random::new();
    // How long it takes when nobody is killed.
    snapshot.parent();
    let start = Instant::now();
    let output = snapshot.copies().wait_with_output().unwrap();
    let whole = start.elapsed();
    assert_eq!(made(&output).len(), 5, "{}", text(&output.stderr));
    let mut killed = [0; 4];
    for round in 0..ROUNDS {
        let ids: Vec<String> = place.machines().into_iter().collect();
        let words = ["rm", "-f"]
            .into_iter()
            .chain(ids.iter().map(String::as_str));
        place.ok(words);
        eventually(|| place.processes().is_empty());
        assert_eq!(files(&place.run()).len(), 0, "before round {round}");
        assert_eq!(files(&snapshot.dir), before, "before round {round}");

        snapshot.parent();
        let mut maker = snapshot.copies();
        // Another moment each time; no event of it is waited for.
        thread::sleep(random.within(whole));
        let parent = place.process("parent").expect("it runs");
        let kids = place.processes().into_iter().map(|(pid, _)| pid);
        let kids: Vec<i32> = kids.filter(|pid| *pid != parent).collect();
        // The first time each, in order; then by chance.
        let who = match round {
            0..4 => round,
            _ => random.below(4) as usize,
        };
        match who {
            0 => kill(parent),
            1 => maker.kill().unwrap(),
            2 => random.one_of(&kids).copied().into_iter().for_each(kill),
            _ => {
                maker.kill().unwrap();
                snapshot.kill_all();
            }
        }
        killed[who] += 1;
        let output = maker.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert!(!said.contains("panicked"), "{said}");
        match who {
            0 => eventually(|| place.process("parent").is_none()),
            1 => snapshot.is_sound("parent"),
            2 => {
                snapshot.is_sound("parent");
                // What became of one is nothing to the others.
                assert!(made(&output).len() >= 4, "{said}");
            }
            _ => {}
        }
        // Those that it says are there are, unless they were killed.
        let all = made(&output);
        let gone = all.iter().filter(|id| place.process(id).is_none());
        let gone = gone.count();
        assert!(gone <= [0, 0, 1, all.len()][who], "{gone} of {all:?}");
        let alive = made(&output)
            .into_iter()
            .find(|id| place.process(id).is_some());
        if let Some(id) = alive {
            snapshot.is_sound(&id);
        }
        snapshot.kill_all();
        snapshot.disks_are_sound();
    }
    println!(
        "killed: the machine {}, who copies it {}, a copy {}, all {}",
        killed[0], killed[1], killed[2], killed[3]
    );
    // And what was shared all the time is as good as on the first day.
    place.ok(["snapshot", "verify", "snapshot"]);
}

#[test]
fn a_machine_keeps_nothing_of_copies_that_are_gone() {
    require_kvm();
    with_vmm();
    let place = Place::new();
    place.run_bare("parent", "counting", &[]);
    let parent = place.process("parent").unwrap();
    let count = |dir: &str| fs::read_dir(dir).unwrap().count();
    let fds = || count(&format!("/proc/{parent}/fd"));
    let files = || count(place.run().join("parent").to_str().unwrap());
    let (few, own) = (fds(), files());
    for round in 0..LAYERS + 4 {
        place.ok(["fork", "--no-wait", "--name", "kid", "parent"]);
        if round % 2 == 0 {
            kill(place.process("kid").unwrap());
        }
        place.ok(["rm", "-f", "kid"]);
        // A layer of memory for each, until they become one; the last that came may be on its way out.
        eventually(|| fds() <= few + LAYERS + 2 && files() <= own);
    }
    let said = fs::read(place.run().join("parent/console.log")).unwrap();
    assert_eq!(text(&said), "", "its guest");
}

#[test]
fn a_machine_of_which_nobody_makes_copies_any_more_is_removed_at_once() {
    let snapshot = Snapshot::take();
    let place = &snapshot.place;
    let mut random = Random::new();
    snapshot.parent();
    let start = Instant::now();
    let output = snapshot.copies().wait_with_output().unwrap();
    let whole = start.elapsed();
    assert!(output.status.success(), "{}", text(&output.stderr));
    for round in 0..ROUNDS {
        snapshot.kill_all();
        for id in place.machines() {
            place.ok(["rm", "-f", &id]);
        }
        assert_eq!(files(&place.run()).len(), 0, "before round {round}");
        snapshot.parent();
        let mut maker = snapshot.copies();
        // Another moment each time; no event of it is waited for.
        thread::sleep(random.within(whole));
        maker.kill().unwrap();
        maker.wait().unwrap();
        // Of its own accord: one that has to be killed for it is named on standard error.
        place.ok(["rm", "-f", "parent"]);
    }
    snapshot.kill_all();
}
