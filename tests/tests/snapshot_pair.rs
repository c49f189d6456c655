//! The known API's snapshots of machines with drives, which stay where they are. With a bare-metal
//! guest.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tine_tests::api::Vmm;

/// Where a machine's pair of files is.
fn pair(vmm: &Vmm) -> (PathBuf, PathBuf) {
    (vmm.dir.path().join("state"), vmm.dir.path().join("memory"))
}

/// Pauses it and writes its pair; gives the request that loads it.
fn create(vmm: &Vmm) -> Value {
    let (state, memory) = pair(vmm);
    vmm.patch("/vm", &json!({ "state": "Paused" })).expect(204);
    let create = json!({ "snapshot_path": state, "mem_file_path": memory });
    vmm.put("/snapshot/create", &create).expect(204);
    json!({
        "snapshot_path": state,
        "mem_backend": { "backend_type": "File", "backend_path": memory },
        "resume_vm": true,
    })
}

fn empty() -> Vmm {
    Vmm::start([] as [&str; 0])
}

/// A guest that writes a drive's first byte over and over.
fn reading(image: &Path, read_only: bool) -> Vmm {
    let vmm = empty();
    let kernel = tine_tests::guest("drive");
    let source = json!({ "kernel_image_path": kernel, "boot_args": "console=ttyS0" });
    vmm.put("/boot-source", &source).expect(204);
    let drive = json!({
        "drive_id": "scratch", "path_on_host": image, "is_root_device": false,
        "is_read_only": read_only,
    });
    vmm.put("/drives/scratch", &drive).expect(204);
    vmm.start_machine().expect(204);
    vmm
}

/// An image whose first byte is this.
fn fill(image: &Path, letter: u8) {
    fs::write(image, vec![letter; 8192]).unwrap();
}

/// Waits until the guest has read this byte, and none before it.
fn reads(vmm: &mut Vmm, letter: u8) {
    let mut said = [0; 3];
    vmm.child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut said)
        .unwrap();
    assert_eq!(said, [letter; 3], "{}", said.escape_ascii());
}

#[test]
fn a_drive_is_read_where_it_was() {
    let dir = tempfile::TempDir::new().unwrap();
    let image = dir.path().join("disk.img");
    fill(&image, b'a');
    let mut first = reading(&image, false);
    reads(&mut first, b'a');
    let load = create(&first);
    assert_eq!(
        fs::read(&image).unwrap().len(),
        8192,
        "the image is the disk"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "alone");

    // Each refusal names the drive, and leaves a process that can be told better.
    let mut second = empty();
    let refused = |why: &str| {
        let fault = second.put("/snapshot/load", &load).expect(400).fault();
        assert!(
            fault.contains("scratch") && fault.contains(why),
            "{why}: {fault}"
        );
        assert_eq!(second.state(), "created");
    };
    refused("in use by another machine");
    end(&mut first);
    let away = dir.path().join("away");
    fs::rename(&image, &away).unwrap();
    refused("No such file");
    fs::create_dir(&image).unwrap();
    refused("directory");
    fs::remove_dir(&image).unwrap();
    fs::write(&image, vec![b'a'; 4096]).unwrap();
    refused("size");
    fill(&image, b'b');
    second.put("/snapshot/load", &load).expect(204);
    let config = second.get("/vm/config").expect(200).json();
    assert_eq!(config["drives"][0]["path_on_host"], json!(image));
    reads(&mut second, b'b');

    // The drive is the caller's as before, also in a directory.
    let again = create(&second);
    second
        .put(
            "/v1/snapshots",
            &json!({ "path": second.dir.path().join("dir") }),
        )
        .expect(201);
    end(&mut second);
    fill(&image, b'c');
    let mut third = empty();
    third.put("/snapshot/load", &again).expect(204);
    reads(&mut third, b'c');
}

/// Ends the process; its directory stays.
fn end(vmm: &mut Vmm) {
    vmm.child.kill().unwrap();
    vmm.child.wait().unwrap();
}

#[test]
fn a_drive_that_is_only_read_is_shared() {
    let dir = tempfile::TempDir::new().unwrap();
    let image = dir.path().join("disk.img");
    fill(&image, b'r');
    let mut first = reading(&image, true);
    let load = create(&first);
    let mut second = empty();
    second.put("/snapshot/load", &load).expect(204);
    first
        .patch("/vm", &json!({ "state": "Resumed" }))
        .expect(204);
    reads(&mut second, b'r');
    reads(&mut first, b'r');
}

#[test]
fn a_machines_own_disks_are_no_part_of_a_pair() {
    let dir = tempfile::TempDir::new().unwrap();
    let image = dir.path().join("disk.img");
    fill(&image, b'a');
    let first = reading(&image, false);
    let snapshot = dir.path().join("snapshot");
    first
        .put("/v1/snapshots", &json!({ "path": snapshot }))
        .expect(201);
    let second = empty();
    second
        .put("/v1/restore", &json!({ "snapshot": snapshot }))
        .expect(204);
    second
        .patch("/vm", &json!({ "state": "Paused" }))
        .expect(204);
    let (state, memory) = pair(&second);
    let request = json!({ "snapshot_path": state, "mem_file_path": memory });
    let fault = second.put("/snapshot/create", &request).expect(400).fault();
    assert!(
        fault.contains("scratch") && fault.contains("/v1/snapshots"),
        "{fault}"
    );
    assert!(!state.exists() && !memory.exists());
    assert_eq!(second.state(), "paused");
}
