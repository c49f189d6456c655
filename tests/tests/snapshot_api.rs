//! Snapshots through the socket of `tine-vmm`, with bare-metal guests: what is damaged is refused
//! by name, and what fails leaves the machine and earlier snapshots as they were.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tine_snapshot::{Snapshot, WorkingSet};
use tine_tests::api::{Answer, Vmm};
use tine_tests::text;

fn counting() -> Vmm {
    Vmm::running("counting")
}

fn take(vmm: &Vmm, dir: &Path) -> Answer {
    vmm.put("/v1/snapshots", &json!({ "path": dir }))
}

fn restore(dir: &Path) -> (Vmm, Answer) {
    let vmm = Vmm::start([] as [&str; 0]);
    let answer = vmm.put("/v1/restore", &json!({ "snapshot": dir }));
    (vmm, answer)
}

#[test]
fn a_machine_goes_on_in_another_process() {
    let vmm = counting();
    let dir = vmm.dir.path().join("snapshot");
    let taken = take(&vmm, &dir).expect(201).json();
    assert_eq!(taken["path"], json!(dir));
    assert!(taken["pause_us"].as_u64() > Some(0));
    vmm.goes_on();
    let (second, answer) = restore(&dir);
    answer.expect(204);
    second.goes_on();
    // A snapshot of a restored machine shares what has not changed.
    let again = vmm.dir.path().join("again");
    take(&second, &again).expect(201);
    let (first, later) = (stored(&dir), stored(&again));
    assert_eq!(later[0], first[0], "the lower layer is the same file");
    let manifest = Snapshot::open(&again).unwrap().manifest().clone();
    assert_eq!(manifest.generation, 1);
    assert_eq!(manifest.parent.unwrap().id.to_string(), taken["id"]);
    fs::remove_dir_all(&dir).unwrap();
    let (third, answer) = restore(&again);
    answer.expect(204);
    third.goes_on();
}

/// Field case 36. What may differ is the VM generation id, 16 bytes which each restore makes anew.
#[test]
fn a_machine_that_stands_still_is_the_same_after_four_rounds() {
    let first = counting();
    first.goes_on();
    first
        .patch("/vm", &json!({ "state": "Paused" }))
        .expect(204);
    let dir = first.dir.path().join("snapshot-0");
    take(&first, &dir).expect(201);
    let wanted = memory(&dir);
    assert!(wanted.iter().any(|byte| *byte != 0));
    let mut vmm = first;
    for round in 1..=4 {
        let before = vmm.dir.path().join(format!("snapshot-{}", round - 1));
        let next = Vmm::start([] as [&str; 0]);
        let request = json!({ "snapshot": before, "resume": false });
        next.put("/v1/restore", &request).expect(204);
        let dir = next.dir.path().join(format!("snapshot-{round}"));
        take(&next, &dir).expect(201);
        let now = memory(&dir);
        assert_eq!(now.len(), wanted.len());
        let pairs = wanted.iter().zip(&now).enumerate();
        let differ = pairs.filter(|(_, (wanted, now))| wanted != now);
        let differ: Vec<usize> = differ.map(|(at, _)| at).collect();
        let span = differ.last().map_or(0, |last| last - differ[0]);
        assert!(
            span < 16,
            "round {round}: {:x?}",
            &differ[..differ.len().min(20)]
        );
        vmm = next;
    }
    let last = vmm.dir.path().join("snapshot-4");
    let (goes, answer) = restore(&last);
    answer.expect(204);
    goes.goes_on();
}

/// All of a snapshot's guest memory.
fn memory(dir: &Path) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let layers = Snapshot::open(dir).unwrap().memory().unwrap();
    let mut memory = vec![0; layers.size().try_into().unwrap()];
    for run in layers.runs().unwrap() {
        let range = run.offset as usize..(run.offset + run.len) as usize;
        let file = layers.file(run.layer);
        file.read_exact_at(&mut memory[range], run.offset).unwrap();
    }
    memory
}

/// The inodes of the memory layers.
fn stored(dir: &Path) -> Vec<u64> {
    use std::os::unix::fs::MetadataExt;
    let layers = Snapshot::open(dir)
        .unwrap()
        .manifest()
        .memory
        .clone()
        .unwrap()
        .layers;
    let inode = |name: &str| fs::metadata(dir.join(name)).unwrap().ino();
    layers.iter().map(|layer| inode(&layer.file)).collect()
}

#[test]
fn the_known_apis_pair_of_files_goes_on_too() {
    let vmm = counting();
    let (state, memory) = (vmm.dir.path().join("state"), vmm.dir.path().join("memory"));
    let create = json!({ "snapshot_path": state, "mem_file_path": memory });
    let refused = vmm.put("/snapshot/create", &create).expect(400).body;
    assert!(refused.contains("paused"), "{refused}");
    vmm.patch("/vm", &json!({ "state": "Paused" })).expect(204);
    vmm.put("/snapshot/create", &create).expect(204);
    let load = json!({
        "snapshot_path": state,
        "mem_backend": { "backend_type": "File", "backend_path": memory },
    });
    let second = Vmm::start([] as [&str; 0]);
    second.put("/snapshot/load", &load).expect(204);
    assert_eq!(second.get("/").json()["state"], "Paused");
    second
        .patch("/vm", &json!({ "state": "Resumed" }))
        .expect(204);
    second.goes_on();
    let late = second.put("/snapshot/load", &load).expect(400).body;
    assert!(late.contains("after starting"), "{late}");
}

#[test]
fn a_snapshot_that_ends_its_machine() {
    let mut vmm = counting();
    let dir = vmm.dir.path().join("snapshot");
    let body = json!({ "path": dir, "stop": true });
    vmm.put("/v1/snapshots", &body).expect(201);
    assert!(vmm.wait().success());
    let (second, answer) = restore(&dir);
    answer.expect(204);
    second.goes_on();
}

/// Copies a snapshot, so that it can be damaged.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        fs::copy(from.join(&name), to.join(&name)).unwrap();
        fs::set_permissions(to.join(&name), fs::Permissions::from_mode(0o644)).unwrap();
    }
}

#[test]
fn damage_is_refused_by_name_and_the_socket_still_answers() {
    let vmm = counting();
    let whole = vmm.dir.path().join("whole");
    take(&vmm, &whole).expect(201);
    let other = vmm.dir.path().join("other");
    let process = Vmm::start([] as [&str; 0]);
    let mut number = 0;
    let mut refused = |what: &str, file: &str, damage: &dyn Fn(&Path)| {
        number += 1;
        let dir = vmm.dir.path().join(format!("damaged-{number}"));
        copy(&whole, &dir);
        damage(&dir);
        let answer = process.put("/v1/restore", &json!({ "snapshot": dir }));
        let body = answer.expect(400).body;
        assert!(body.contains(file), "{what}: {body}");
        assert_eq!(process.state(), "created", "{what}");
    };
    let state = fs::read(whole.join("state")).unwrap();
    // Every offset and byte is the business of the format's own tests; here are some of them.
    for at in (0..state.len()).step_by(997) {
        refused("a byte flipped", "state", &|dir| {
            let mut bytes = state.clone();
            bytes[at] ^= 0x10;
            fs::write(dir.join("state"), bytes).unwrap();
        });
        refused("cut off", "state", &|dir| {
            fs::write(dir.join("state"), &state[..at]).unwrap();
        });
    }
    for (name, change) in [("short", -4096_i64), ("long", 4096)] {
        refused(name, "memory-0", &|dir| {
            let file = fs::File::options()
                .write(true)
                .open(dir.join("memory-0"))
                .unwrap();
            let len = file.metadata().unwrap().len() as i64;
            file.set_len((len + change) as u64).unwrap();
        });
    }
    refused("a missing layer", "memory-0", &|dir| {
        fs::remove_file(dir.join("memory-0")).unwrap();
    });
    take(&vmm, &other).expect(201);
    refused("a layer of another snapshot", "memory-0", &|dir| {
        let lower = Snapshot::open(&other)
            .unwrap()
            .manifest()
            .memory
            .clone()
            .unwrap();
        let last = &lower.layers.last().unwrap().file;
        fs::copy(other.join(last), dir.join("memory-0")).unwrap();
    });
    refused("a newer version", "manifest.json", &|dir| {
        let text = fs::read_to_string(dir.join("manifest.json")).unwrap();
        let newer = text.replacen("\"version\": 1", "\"version\": 2", 1);
        assert_ne!(text, newer);
        fs::write(dir.join("manifest.json"), newer).unwrap();
    });
    refused("a link", "state", &|dir| {
        fs::remove_file(dir.join("state")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.join("state")).unwrap();
    });
    process
        .put("/v1/restore", &json!({ "snapshot": whole }))
        .expect(204);
    process.goes_on();
}

#[test]
fn what_is_asked_for_wrongly_changes_nothing() {
    let vmm = counting();
    let there = vmm.dir.path().join("there");
    fs::create_dir(&there).unwrap();
    let body = take(&vmm, &there).expect(400).body;
    assert!(body.contains("is there already"), "{body}");
    let body = take(&vmm, Path::new("relative")).expect(400).body;
    assert!(body.contains("`path`"), "{body}");
    let body = take(&vmm, &vmm.dir.path().join("no/such")).expect(400).body;
    assert!(body.contains("the directory that is to hold"), "{body}");
    vmm.goes_on();
    let body = vmm
        .put("/v1/restore", &json!({ "snapshot": there }))
        .expect(409)
        .body;
    assert!(body.contains("after starting"), "{body}");
    let (_, answer) = restore(&there);
    assert!(answer.expect(400).body.contains("not a snapshot"));
    let (process, _) = restore(&there);
    let long = json!({ "snapshot": there, "hostname": "h".repeat(65) });
    let body = process.put("/v1/restore", &long).expect(400).body;
    assert!(body.contains("`hostname`"), "{body}");
}

#[test]
fn a_drives_id_leads_to_no_other_directory() {
    let vmm = Vmm::start([] as [&str; 0]);
    let image = vmm.dir.path().join("images/disk.img");
    fs::create_dir(image.parent().unwrap()).unwrap();
    let file = fs::File::create(&image).unwrap();
    file.set_len(4096).unwrap();
    let config = json!({
        "kernel": tine_tests::guest("counting"), "memory_mib": 64,
        "drives": [{ "id": "x/../../escaped", "path": image }],
    });
    vmm.put("/v1/config", &config).expect(204);
    vmm.start_machine().expect(204);
    let body = take(&vmm, &vmm.dir.path().join("snapshot"))
        .expect(400)
        .body;
    assert!(body.contains("cannot be in a snapshot"), "{body}");
    vmm.goes_on();
    let beside = fs::read_dir(image.parent().unwrap()).unwrap().count();
    assert_eq!(beside, 1, "the image alone");
}

/// A small file system, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, size: &str) -> Self {
        fs::create_dir(&at).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&at)
            .status();
        assert!(status.unwrap().success(), "mounting needs root");
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_costs_nothing_but_the_snapshot() {
    let vmm = counting();
    // Less than there is of its memory before it has done anything.
    let small = Small::mount(vmm.dir.path().join("small"), "16k");
    let body = take(&vmm, &small.0.join("snapshot")).expect(400).body;
    assert!(body.contains("needs") && body.contains("bytes"), "{body}");
    assert_eq!(
        fs::read_dir(&small.0).unwrap().count(),
        0,
        "nothing is left"
    );
    vmm.goes_on();
    take(&vmm, &vmm.dir.path().join("elsewhere")).expect(201);
}

#[test]
fn a_killed_process_leaves_whole_snapshots_or_none() {
    let first = counting();
    let good = first.dir.path().join("good");
    take(&first, &good).expect(201);
    for round in 0..12_u64 {
        let (vmm, answer) = restore(&good);
        answer.expect(204);
        let target = first.dir.path().join(format!("killed-{round}"));
        let body = json!({ "path": target }).to_string();
        let mut stream = vmm.connect();
        let head = format!(
            "PUT /v1/snapshots HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        thread::sleep(Duration::from_micros(round * round * 250));
        vmm.signal(libc::SIGKILL);
        drop(vmm);
        if target.exists() {
            let snapshot = Snapshot::open(&target).expect("a whole one");
            snapshot
                .verify(|_| std::ops::ControlFlow::Continue(()))
                .unwrap();
        }
        // The next one of that name is not in the way of what was left.
        let (vmm, answer) = restore(&good);
        answer.expect(204);
        if !target.exists() {
            take(&vmm, &target).expect(201);
        }
        vmm.goes_on();
    }
    let left: Vec<_> = fs::read_dir(first.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("partial"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn events_tell_of_snapshots() {
    let vmm = counting();
    let mut stream = vmm.connect();
    std::io::Write::write_all(&mut stream, b"GET /v1/events HTTP/1.1\r\n\r\n").unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stream));
    let mut next = |event: &str| -> Value {
        loop {
            let line = lines.next().expect("more events").unwrap();
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            if value["event"] == event {
                return value;
            }
        }
    };
    assert_eq!(next("state")["state"], "starting");
    let dir = vmm.dir.path().join("snapshot");
    let id = take(&vmm, &dir).expect(201).json()["id"].clone();
    assert_eq!(next("state")["state"], "snapshotting");
    assert_eq!(next("state")["state"], "starting");
    let done = next("snapshot");
    assert_eq!((&done["stage"], &done["id"]), (&json!("done"), &id));
    let body = take(&vmm, &dir).expect(400).body;
    let failed = next("snapshot");
    assert_eq!(failed["stage"], "failed");
    assert!(body.contains("there already"), "{body}");
}

/// How many bytes of a file are in the host's memory.
fn resident(file: &Path) -> u64 {
    let output = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .arg(file)
        .output();
    let output = output.expect("fincore, of util-linux").stdout;
    text(&output).trim().parse().expect("a number")
}

/// Waits until the host has as much of a memory file as a working set names. Nobody else touches it.
fn wait_until_read(memory: &Path, set: &WorkingSet) {
    let start = std::time::Instant::now();
    while resident(memory) < set.bytes() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it is not read ahead"
        );
        thread::yield_now();
    }
}

/// Makes the host forget a file's content, as far as its file system can: one in memory cannot.
fn forget(file: &Path) {
    let file = fs::File::open(file).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn what_machines_touch_first_is_read_ahead() {
    let vmm = counting();
    let booted = vmm.put("/v1/working-set", &json!({ "path": "/tmp/none" }));
    let booted = booted.expect(400).body;
    assert!(booted.contains("not one of a snapshot"), "{booted}");
    let dir = vmm.dir.path().join("snapshot");
    let taken = take(&vmm, &dir).expect(201).json();
    let path = vmm.dir.path().join("set");
    let record = |vmm: &Vmm| vmm.put("/v1/working-set", &json!({ "path": path }));
    let restore_with = |set: Option<&Path>| {
        let vmm = Vmm::start([] as [&str; 0]);
        let request = json!({ "snapshot": dir, "resume": false, "working_set": set });
        let answer = vmm.put("/v1/restore", &request);
        (vmm, answer)
    };

    // What a machine has touched is in its working set, and little else.
    let (second, answer) = restore(&dir);
    answer.expect(204);
    second.goes_on();
    let recorded = record(&second).expect(201).json();
    let set = WorkingSet::read(&path).unwrap();
    assert_eq!(recorded["snapshot"], taken["id"]);
    assert_eq!(recorded["bytes"], set.bytes());
    assert_eq!(recorded["ranges"], set.ranges.len());
    let guest_code = 0x10_0000..0x10_1000;
    let has = |range: &std::ops::Range<u64>| {
        range.start <= guest_code.start && guest_code.end <= range.end
    };
    assert!(set.ranges.iter().any(has), "{set:?}");
    assert!(set.bytes() < set.size / 8, "{set:?}");

    // One that names what nobody else would touch.
    let memory = dir.join("memory-0");
    let far = WorkingSet {
        ranges: std::iter::once(16 << 20..24 << 20).collect(),
        ..set
    };
    let far_path = vmm.dir.path().join("far");
    far.write(&far_path).unwrap();
    let of_nothing = |set: Option<&Path>| {
        forget(&memory);
        let before = resident(&memory);
        let (vmm, answer) = restore_with(set);
        answer.expect(204);
        (vmm, before)
    };
    let (_third, before) = of_nothing(None);
    let without = resident(&memory) - before;
    let (_fourth, before) = of_nothing(Some(&far_path));
    wait_until_read(&memory, &far);
    if before == 0 {
        assert!(
            without < far.bytes(),
            "{without} bytes are read by themselves"
        );
    }

    // Of another snapshot, or damaged, or for no snapshot: refused, and the process can be told better.
    let other = vmm.dir.path().join("other");
    take(&vmm, &other).expect(201);
    let fifth = Vmm::start([] as [&str; 0]);
    let refused = |request: serde_json::Value| fifth.put("/v1/restore", &request).expect(400).body;
    let said = refused(json!({ "snapshot": other, "working_set": path }));
    assert!(
        said.contains("record one of this") && said.contains(path.to_str().unwrap()),
        "{said}"
    );
    let said = refused(json!({ "fork": other, "working_set": path }));
    assert!(said.contains("in memory already"), "{said}");
    fs::write(&far_path, &fs::read(&path).unwrap()[1..]).unwrap();
    let said = refused(json!({ "snapshot": dir, "working_set": far_path }));
    assert!(said.contains("not the working set"), "{said}");
    fifth
        .put(
            "/v1/restore",
            &json!({ "snapshot": dir, "working_set": path }),
        )
        .expect(204);
    fifth.goes_on();
}

#[test]
fn a_working_set_in_the_snapshots_directory_needs_not_be_named() {
    let vmm = counting();
    let dir = vmm.dir.path().join("snapshot");
    take(&vmm, &dir).expect(201);
    let own = dir.join(WorkingSet::OWN);
    let manifest = Snapshot::open(&dir).unwrap().manifest().clone();
    // What nobody would touch.
    let far = WorkingSet {
        snapshot: manifest.id,
        size: manifest.machine.memory_bytes,
        ranges: std::iter::once(16 << 20..24 << 20).collect(),
    };
    far.write(&own).unwrap();
    let memory = dir.join("memory-0");
    forget(&memory);
    let (third, answer) = restore(&dir);
    answer.expect(204);
    wait_until_read(&memory, &far);
    third.goes_on();
    // Damage is told, by whoever reads it.
    let mut bytes = fs::read(&own).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&own, bytes).unwrap();
    let (_fourth, answer) = restore(&dir);
    let said = answer.expect(400).body;
    assert!(said.contains(own.to_str().unwrap()), "{said}");
    let snapshot = Snapshot::open(&dir).unwrap();
    let damage = snapshot.verify(|_| ControlFlow::Continue(()));
    let damage = damage.unwrap_err().to_string();
    assert!(damage.contains(own.to_str().unwrap()), "{damage}");
    fs::remove_file(&own).unwrap();
    snapshot.verify(|_| ControlFlow::Continue(())).unwrap();
    let (fifth, answer) = restore(&dir);
    answer.expect(204);
    fifth.goes_on();
}
