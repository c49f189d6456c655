//! An agent's computer that is there next week: disks outlive their machine's memory, by a snapshot of
//! the disks alone, and by `tine stop` and `tine start`.

use std::fs;

use serde_json::Value;
use tine_tests::cli::{Place, with_vmm};
use tine_tests::linux::image;
use tine_tests::{host, require_kvm};

const MOUNT: &str = "mkdir -p /mnt; mount /dev/vda /mnt";

#[test]
fn disks_are_there_after_the_machine() {
    require_kvm();
    with_vmm();
    image();
    let place = Place::new();
    let disk = place.path("data.qcow2");
    let disk = disk.to_str().unwrap();
    let raw = place.path("data.img");
    fs::File::create(&raw).unwrap().set_len(24 << 20).unwrap();
    let raw = raw.to_str().unwrap();
    host(&["mkfs.ext4", "-q", raw]);
    host(&["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, disk]);
    let sh = |id: &str, script: &str| place.ok(["exec", id, "--", "sh", "-c", script]);
    let image = format!("{disk},qcow2");
    place.ok([
        "run", "-d", "--name", "pc", "--memory", "128M", "--disk", &image,
    ]);
    sh("pc", &format!("{MOUNT}; echo first > /mnt/a"));

    // Not synced: the guest's file system is written out for the moment. It goes on afterwards.
    place.ok(["snapshot", "--disk", "pc", "disks"]);
    sh("pc", "echo second > /mnt/b");
    let inspected = place.ok(["snapshot", "inspect", "disks"]);
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(inspected["kind"], "disk");
    assert!(inspected["memory"].is_null() && inspected["state"].is_null());
    place.ok(["snapshot", "verify", "disks"]);
    let layer = inspected["disks"][0]["layers"][0]["file"].as_str().unwrap();
    let layer = place.path("disks").join(layer);
    let frozen = place.path("frozen.img");
    let frozen = frozen.to_str().unwrap();
    host(&[
        "qemu-img",
        "convert",
        "-O",
        "raw",
        layer.to_str().unwrap(),
        frozen,
    ]);
    // Clean without its journal being played back.
    host(&["e2fsck", "-fn", frozen]);

    // Stopped in good order, and started again, with what was written.
    place.ok(["stop", "pc"]);
    let ps = place.ok(["ps", "-a"]);
    assert!(ps.contains("ended"), "{ps}");
    host(&["qemu-img", "check", "-q", disk]);
    place.ok(["stop", "pc"]);
    assert_eq!(place.ok(["start", "pc"]), "pc\n");
    let refused = place.fails(1, ["start", "pc"]);
    assert!(refused.contains("runs already"), "{refused}");
    assert_eq!(
        sh("pc", &format!("{MOUNT}; cat /mnt/a /mnt/b")),
        "first\nsecond\n"
    );

    // A fork's disks are in its own directory, and outlive both machines' memory.
    place.ok(["fork", "--name", "kid", "pc"]);
    sh("kid", "echo third > /mnt/c");
    place.ok(["stop", "kid"]);
    place.ok(["rm", "-f", "pc"]);
    fs::remove_file(disk).unwrap();
    place.ok(["start", "kid"]);
    let out = sh("kid", &format!("{MOUNT}; cat /mnt/a /mnt/b /mnt/c"));
    assert_eq!(out, "first\nsecond\nthird\n");
    place.ok(["rm", "-f", "kid"]);

    // A machine of the snapshot boots, and has what was there at its moment.
    place.ok(["restore", "-d", "--name", "old", "disks"]);
    assert_eq!(
        sh("old", &format!("{MOUNT}; cat /mnt/a; ls /mnt")),
        "first\na\nlost+found\n"
    );
    let refused = place.fails(1, ["start", "nobody"]);
    assert!(refused.contains("nobody"), "{refused}");
    place.ok(["rm", "-f", "old"]);
}
