//! A Linux guest that works on all of its devices while it is snapshotted and restored, round after
//! round: it looks at every byte that it has written, in memory and on its disk (field cases 29 and 32).

use std::fs;
use std::path::Path;
use std::process::Command;

use tine_tests::cli::{Place, with_vmm};
use tine_tests::linux::image;
use tine_tests::{host, require_kvm, worker};

const ROUNDS: usize = 10;

/// Starts the worker, and waits for its first round.
const START: &str = "mkdir -p /mnt /run/t; mount /dev/vda /mnt
/bin/worker /mnt /run/t/state < /dev/null > /dev/null 2>&1 &
until [ -s /run/t/state ]; do sleep 0.1; done; cat /run/t/state";

/// Waits until the worker is two rounds further, or has complained.
const GOES_ON: &str = "n=$(cat /run/t/state); while :; do
    s=$(cat /run/t/state); case $s in *:*) echo $s; exit 1;; esac
    [ $s -gt $((n + 1)) ] && break; sleep 0.1
done; echo on";

#[test]
fn ten_rounds_of_a_guest_that_works_on_all_devices() {
    require_kvm();
    with_vmm();
    image();
    let place = Place::new();
    let disk = place.ext4("data.img");
    let arg = disk.to_str().unwrap();
    place.ok([
        "run", "-d", "--name", "work", "--memory", "128M", "--disk", arg,
    ]);
    let stripped = place.path("worker");
    let from = worker().to_str().unwrap();
    host(&["strip", "-o", stripped.to_str().unwrap(), from]);
    place.ok(["cp", stripped.to_str().unwrap(), "work:/bin/worker"]);
    let sh = |script: &str| place.ok(["exec", "work", "--", "sh", "-c", script]);
    let first = sh(START);
    assert!(first.trim().parse::<u64>().is_ok(), "{first}");
    for round in 1..=ROUNDS {
        let dir = format!("round-{round}");
        place.ok(["snapshot", "--stop", "work", &dir]);
        place.ok(["rm", "work"]);
        place.ok(["restore", "-d", "--name", "work", &dir]);
        assert_eq!(sh(GOES_ON), "on\n", "round {round}");
    }
    let generation = sh("cat /run/tine/generation");
    assert_eq!(generation, format!("{ROUNDS}\n"));
    // Its file system is a sound one at the moment of a snapshot: the journal has what was under way.
    place.ok(["snapshot", "--stop", "work", "last"]);
    place.ok(["snapshot", "flatten", "last", "flat"]);
    place.ok(["snapshot", "verify", "flat"]);
    is_clean(&place.path("flat"), &place.path("flat.img"));
    place.ok(["rm", "work"]);
}

/// The disk of a flat snapshot, as another program reads it, has a sound file system.
fn is_clean(snapshot: &Path, raw: &Path) {
    let entries = fs::read_dir(snapshot).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_layer = |path: &Path| path.extension().is_some_and(|kind| kind == "qcow2");
    let layers: Vec<_> = paths.filter(|path| is_layer(path)).collect();
    let [layer] = &layers[..] else {
        panic!("one layer: {layers:?}");
    };
    let (layer, raw) = (layer.to_str().unwrap(), raw.to_str().unwrap());
    host(&["qemu-img", "check", "-q", layer]);
    host(&["qemu-img", "convert", "-O", "raw", layer, raw]);
    let played = Command::new("e2fsck").args(["-fy", raw]).output().unwrap();
    assert!(played.status.code() <= Some(1), "{played:?}");
    host(&["e2fsck", "-fn", raw]);
}
