//! Disks in snapshots of a Linux guest: what was written is there, copies write to their own, and
//! the caller's image is the machine's disk again when the snapshot has been taken.

use std::fs;
use std::path::Path;
use std::process::Command;

use tine_tests::cli::{Place, with_vmm};
use tine_tests::linux::image;
use tine_tests::{host, require_kvm, text};

/// A file in a file system that nobody has mounted.
fn cat(image: &Path, path: &str) -> String {
    let request = format!("cat {path}");
    let output = Command::new("debugfs")
        .args(["-R", &request])
        .arg(image)
        .output();
    text(&output.expect("debugfs; run ./setup").stdout)
}

#[test]
fn disks_are_part_of_a_snapshot() {
    require_kvm();
    with_vmm();
    image();
    let place = Place::new();
    let disk = place.ext4("data.img");
    let in_machine = |id: &str, script: &str| place.ok(["exec", id, "--", "sh", "-c", script]);

    let disk_arg = disk.to_str().unwrap();
    place.ok([
        "run", "-d", "--name", "first", "--memory", "128M", "--disk", disk_arg,
    ]);
    in_machine(
        "first",
        "mkdir /mnt; mount /dev/vda /mnt; echo before > /mnt/a; sync
         (i=0; while :; do i=$((i+1)); echo $i > /mnt/count; sync; done) < /dev/null > /dev/null 2>&1 &",
    );
    place.ok(["snapshot", "first", "base"]);
    in_machine("first", "echo after > /mnt/b; sync");
    place.ok(["snapshot", "first", "second"]);
    in_machine(
        "first",
        "kill $(jobs -p) 2> /dev/null; echo last > /mnt/c; sync",
    );
    place.ok(["rm", "-f", "first"]);
    // The image that was given is the disk, with all that was written, and nothing lies beside it.
    // The machine was ended while it was mounted: the journal is played back first.
    Command::new("e2fsck")
        .args(["-fy", disk_arg])
        .output()
        .unwrap();
    host(&["e2fsck", "-fn", disk_arg]);
    assert_eq!(cat(&disk, "/a"), "before\n");
    assert_eq!(cat(&disk, "/b"), "after\n");
    assert_eq!(cat(&disk, "/c"), "last\n");
    let left = fs::read_dir(disk.parent().unwrap()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().ends_with("qcow2")),
        "{left:?}"
    );

    // Two machines of one snapshot, at once, each with a disk of its own.
    for id in ["one", "two"] {
        place.ok(["restore", "-d", "--name", id, "base"]);
    }
    for id in ["one", "two"] {
        let script =
            format!("[ ! -e /mnt/b ] && echo {id} > /mnt/mine; sync; cat /mnt/a /mnt/mine");
        assert_eq!(in_machine(id, &script), format!("before\n{id}\n"));
    }
    for id in ["one", "two"] {
        // What the machine has not kept in memory comes from its disk.
        let script = "echo 3 > /proc/sys/vm/drop_caches; cat /mnt/mine";
        assert_eq!(in_machine(id, script), format!("{id}\n"));
    }
    place.ok(["snapshot", "--stop", "one", "third"]);
    place.ok(["rm", "-f", "one", "two"]);
    fs::remove_dir_all(place.path("base")).unwrap();
    let out = place.ok(["restore", "third", "--", "cat", "/mnt/a", "/mnt/mine"]);
    assert_eq!(out, "before\none\n");
    let out = place.ok(["restore", "second", "--", "cat", "/mnt/b"]);
    assert_eq!(out, "after\n");
    place.ok(["snapshot", "verify", "third"]);

    // Other tools read every layer, and one file of all of them is a sound file system.
    let third = place.path("third");
    let mut layers = 0;
    for entry in fs::read_dir(&third).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "qcow2")
        {
            host(&["qemu-img", "check", "-q", path.to_str().unwrap()]);
            layers += 1;
        }
    }
    assert!(layers > 0, "the machine's own layer");
    place.ok(["snapshot", "flatten", "third", "flat"]);
    let out = place.ok(["restore", "flat", "--", "cat", "/mnt/mine"]);
    assert_eq!(out, "one\n");
    let flat = fs::read_dir(place.path("flat")).unwrap();
    let flat = flat.map(|entry| entry.unwrap().path());
    let flat = flat.filter(|path| path.to_string_lossy().contains("disk-"));
    let flat: Vec<_> = flat.collect();
    assert_eq!(flat.len(), 1);
    let raw = place.path("flat.img");
    let (from, to) = (flat[0].to_str().unwrap(), raw.to_str().unwrap());
    host(&["qemu-img", "convert", "-O", "raw", from, to]);
    Command::new("e2fsck").args(["-fy", to]).output().unwrap();
    host(&["e2fsck", "-fn", to]);
    assert_eq!(cat(&raw, "/mine"), "one\n");
}
