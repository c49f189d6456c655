//! Forks of a Linux guest by the command line: each copy is a machine of its own, in memory, on disk
//! and by name, and none sees what another one writes.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::{Value, json};
use tine_snapshot::Snapshot;
use tine_tests::cli::{Place, with_vmm};
use tine_tests::linux::image;
use tine_tests::{host, require_kvm, text};

/// Copies that write at the same time; `TINE_FORK_CHILDREN` sets another number. In these guests each takes
/// seconds: 64 of them, with bare-metal guests, write at once in `fork_marks`.
const CHILDREN: usize = 8;

const PREPARE: &str = "
mkdir -p /run/t /mnt; echo kept > /run/t/file
mount /dev/vda /mnt; echo disk > /mnt/a; sync
(sleep 1000000 | sh -c 'i=0; while :; do i=$((i+1)); echo $i > /run/t/count; read -t 1 x; done') \
    < /dev/null > /dev/null 2>&1 &
until [ -s /run/t/count ]; do sleep 0.1; done";

struct Prepared {
    place: Place,
    disk: PathBuf,
}

impl Prepared {
    /// A machine `parent` with a disk that is the caller's. One test at a time has it: of a machine
    /// one fork or snapshot is made at a time.
    fn get() -> MutexGuard<'static, Prepared> {
        static PREPARED: OnceLock<Mutex<Prepared>> = OnceLock::new();
        let prepared = PREPARED.get_or_init(|| {
            require_kvm();
            with_vmm();
            image();
            let place = Place::new();
            let disk = place.ext4("data.img");
            let arg = disk.to_str().unwrap();
            place.ok([
                "run", "-d", "--name", "parent", "--memory", "128M", "--disk", arg,
            ]);
            place.ok([
                "exec",
                "parent",
                "--request-id",
                "prepare",
                "--",
                "sh",
                "-c",
                PREPARE,
            ]);
            Mutex::new(Prepared { place, disk })
        });
        prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sh(&self, id: &str, script: &str) -> String {
        self.place.ok(["exec", id, "--", "sh", "-c", script])
    }
}

#[test]
fn each_copy_is_a_machine_of_its_own() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    let file = place.path("brought");
    fs::write(&file, "brought along").unwrap();
    let arg = format!("{}:/root/brought", file.display());
    let out = place.ok([
        "fork",
        "-n",
        "2",
        "--name",
        "own",
        "-e",
        "SIDE=left",
        "--file",
        &arg,
        "parent",
    ]);
    assert_eq!(out, "own-1\nown-2\n");
    let script =
        "cat /run/t/file /mnt/a /run/tine/generation /root/brought; echo; echo $SIDE; hostname
        cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1";
    let mut seen = HashSet::new();
    for id in ["own-1", "own-2"] {
        let out = prepared.sh(id, script);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(
            lines[..6],
            ["kept", "disk", "1", "brought along", "left", id]
        );
        for line in &lines[6..] {
            assert!(seen.insert(line.to_string()), "{line} twice");
        }
        // Its processes go on.
        let on =
            "n=$(cat /run/t/count); until [ 0$(cat /run/t/count) -gt 0$n ]; do sleep 0.2; done";
        prepared.sh(id, on);
        // What the parent was told once counts as told.
        let again = place.ok([
            "exec",
            "--json",
            id,
            "--request-id",
            "prepare",
            "--",
            "sh",
            "-c",
            PREPARE,
        ]);
        let record: Value = serde_json::from_str(&again).unwrap();
        assert_eq!(record["exit_code"], 0);
        assert_eq!(prepared.sh(id, "grep -c /mnt /proc/mounts"), "1\n");
        // Another command under the same id is refused, as the parent would.
        let refused = place.fails(1, ["exec", id, "--request-id", "prepare", "--", "true"]);
        assert!(refused.contains("prepare"), "{refused}");
    }
    // A copy of a copy, whose parent is gone.
    prepared.sh(
        "own-1",
        "echo grown > /run/t/more; echo grown > /mnt/more; sync",
    );
    place.ok(["fork", "--name", "grandchild", "own-1"]);
    place.ok(["rm", "-f", "own-1", "own-2"]);
    let script = "cat /run/t/file /run/t/more /run/tine/generation
        echo 3 > /proc/sys/vm/drop_caches; cat /mnt/a /mnt/more";
    let out = prepared.sh("grandchild", script);
    assert_eq!(out, "kept\ngrown\n2\ndisk\ngrown\n");
    place.ok(["rm", "-f", "grandchild"]);
}

#[test]
fn no_copy_sees_what_another_one_writes() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    let count = std::env::var("TINE_FORK_CHILDREN").ok();
    let count = count.map_or(CHILDREN, |n| n.parse().expect("a number"));
    let n = count.to_string();
    place.ok(["fork", "-n", &n, "--name", "writer", "parent"]);
    let ids: Vec<String> = (1..=count).map(|n| format!("writer-{n}")).collect();
    // Its own mark, over and over, to memory and to disk, all at once.
    let write = "read h < /proc/sys/kernel/hostname; m=mark-of-$h-end; all=$m
        for i in 1 2 3 4 5 6 7 8; do all=\"$all
$all\"; done
        for file in /run/t/mine /mnt/mine; do echo \"$all\" > $file; done
        sync; echo 3 > /proc/sys/vm/drop_caches
        for file in /run/t/mine /mnt/mine; do echo $(grep -c \"^$m$\" $file) $m; done
        umount /mnt";
    let children: Vec<_> = ids
        .iter()
        .map(|id| {
            let mut tine = place.tine(["exec", id, "--", "sh", "-c", write]);
            tine.spawn().expect("tine can be started")
        })
        .collect();
    for (id, child) in ids.iter().zip(children) {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let wanted = format!("256 mark-of-{id}-end\n").repeat(2);
        assert_eq!(text(&output.stdout), wanted);
    }
    // All bytes of a machine are in its snapshot: its own mark is there, and no other's.
    for id in &ids {
        place.ok(["snapshot", "--stop", id, &format!("{id}.snapshot")]);
        let found = marks(&place.path(format!("{id}.snapshot")));
        assert_eq!(found, HashSet::from([id.clone()]));
        is_clean(&place.path(format!("{id}.snapshot")), &place.path("seen"));
        fs::remove_dir_all(place.path(format!("{id}.snapshot"))).unwrap();
    }
    assert_eq!(marks(&prepared.disk), HashSet::new(), "the caller's image");
    // The parent has none of it.
    let out = prepared.sh("parent", "cat /mnt/a; ls /mnt /run/t | grep -c mine; true");
    assert_eq!(out, "disk\n0\n");
    let all: Vec<&str> = ["rm", "-f"]
        .into_iter()
        .chain(ids.iter().map(String::as_str))
        .collect();
    place.ok(all);
}

/// The disk of a snapshot, whose file system was not mounted any more: each layer is sound, and so is
/// what they are together, as other programs see it.
fn is_clean(snapshot: &Path, seen: &Path) {
    let opened = Snapshot::open(snapshot).unwrap();
    let mut chain = Value::Null;
    for layer in &opened.manifest().disks[0].layers {
        let path = snapshot.join(&layer.file);
        if layer.file.ends_with(".qcow2") {
            host(&["qemu-img", "check", "-q", path.to_str().unwrap()]);
        }
        let file = json!({ "driver": "file", "filename": path });
        let mut image = json!({ "driver": layer.format, "file": file });
        if !chain.is_null() {
            image["backing"] = chain;
        }
        chain = image;
    }
    let (chain, seen) = (format!("json:{chain}"), seen.to_str().unwrap());
    host(&["qemu-img", "convert", "-O", "raw", &chain, seen]);
    // Without its journal being played back.
    host(&["e2fsck", "-fn", seen]);
}

/// Whose marks are in a file, or in the files of a directory.
fn marks(path: &Path) -> HashSet<String> {
    let files: Vec<PathBuf> = match path.is_dir() {
        true => fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect(),
        false => vec![path.to_owned()],
    };
    let (before, after) = (b"mark-of-writer-", b"-end");
    let mut found = HashSet::new();
    for path in files {
        let file = fs::File::open(&path).unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut rest = &bytes[..];
        while let Some(at) = find(rest, before) {
            rest = &rest[at + before.len()..];
            // Whole ones; the script itself and torn ones are in memory, too.
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits > 0 && rest[digits..].starts_with(after) {
                let number = String::from_utf8_lossy(&rest[..digits]);
                found.insert(format!("writer-{number}"));
            }
        }
    }
    found
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == what[0])?;
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
}

#[test]
fn one_that_fails_does_not_fail_the_others() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    fs::create_dir(place.run().join("some-2")).unwrap();
    let output = place.output(["fork", "-n", "3", "--name", "some", "--json", "parent"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("some-2") && !said.contains("some-1"),
        "{said}"
    );
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = list.as_array().unwrap();
    assert_eq!((list.len(), &list[0]["id"]), (3, &Value::from("some-1")));
    assert!(
        list[1]["error"]
            .as_str()
            .is_some_and(|err| err.contains("some-2"))
    );
    for id in ["some-1", "some-3"] {
        assert_eq!(prepared.sh(id, "cat /run/t/file"), "kept\n");
    }
    // Nothing waits for the one that did not come.
    let left = fs::read_dir(place.run().join("parent")).unwrap();
    let left = left
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| name.contains("fork")).collect();
    assert_eq!(left, [] as [String; 0]);
    place.ok(["rm", "-f", "some-1", "some-3"]);
    let refused = place.fails(1, ["fork", "-n", "2", "nobody"]);
    assert!(refused.contains("there is no machine nobody"), "{refused}");
    place.fails(2, ["fork", "-n", "0", "parent"]);
}

#[test]
fn many_from_a_snapshot() {
    let prepared = Prepared::get();
    let place = &prepared.place;
    place.ok(["snapshot", "parent", "base"]);
    let out = place.ok(["restore", "-d", "-n", "3", "--name", "many", "base"]);
    assert_eq!(out, "many-1\nmany-2\nmany-3\n");
    for id in ["many-1", "many-2", "many-3"] {
        assert_eq!(
            prepared.sh(id, "cat /mnt/a; hostname"),
            format!("disk\n{id}\n")
        );
    }
    place.ok(["rm", "-f", "many-1", "many-2", "many-3"]);
}
