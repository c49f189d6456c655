//! Forks of machines with disks, with a bare-metal guest. Not in a jail: a layer is reached there by
//! /proc, which a jail has not.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tine_tests::api::{Answer, Vmm};

fn fork(vmm: &Vmm, count: u32) -> PathBuf {
    let answer = vmm.request(
        "POST",
        "/v1/fork",
        Some(&json!({ "count": count }).to_string()),
    );
    let forked = answer.expect(201).json();
    assert_eq!(forked["count"], count);
    assert!(forked["pause_us"].as_u64() > Some(0));
    forked["socket"].as_str().unwrap().into()
}

fn take(socket: &Path) -> (Vmm, Answer) {
    let vmm = Vmm::start([] as [&str; 0]);
    let answer = vmm.put("/v1/restore", &json!({ "fork": socket }));
    (vmm, answer)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        thread::yield_now();
    }
}

#[test]
fn copies_have_the_disks_in_layers_of_their_own() {
    let vmm = Vmm::start([] as [&str; 0]);
    let image = vmm.dir.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let config = json!({
        "kernel": tine_tests::guest("counting"), "memory_mib": 64,
        "drives": [{ "id": "data", "path": image }],
    });
    vmm.put("/v1/config", &config).expect(204);
    vmm.start_machine().expect(204);
    let socket = fork(&vmm, 2);
    let copies: Vec<_> = (0..2).map(|_| take(&socket)).collect();
    let own = |vmm: &Vmm| {
        let config = vmm.request("GET", "/v1/config", None).expect(200).json();
        PathBuf::from(config["drives"][0]["path"].as_str().unwrap())
    };
    for (copy, answer) in &copies {
        answer.clone().expect(204);
        copy.goes_on();
        let layer = own(copy);
        assert!(layer.starts_with(copy.dir.path()), "{layer:?}");
        assert_eq!(&fs::read(&layer).unwrap()[..4], b"QFI\xfb");
    }
    vmm.goes_on();
    assert_eq!(
        own(&vmm),
        image,
        "the caller's own image stays the machine's"
    );
    let (again, answer) = take(&fork(&copies[0].0, 1));
    answer.expect(204);
    again.goes_on();
    assert!(own(&again).starts_with(again.dir.path()));
    until("no copy of the disk stays", || {
        let left = fs::read_dir(vmm.dir.path()).unwrap().flatten();
        left.map(|entry| entry.file_name())
            .all(|name| !name.to_string_lossy().starts_with(".fork-"))
    });
}
