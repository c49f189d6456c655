//! A guest that has taken over its monitor writes what it likes in its machine's directory, and answers
//! what it likes at its socket. `tine`, which is root and in no jail, gives it nothing for that.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};
use tine_tests::cli::{Place, eventually, with_vmm};
use tine_tests::jail::seen::{is_jailed, mounts, names, status};
use tine_tests::jail::{alive, private_mounts};
use tine_tests::{guest, text};

const SECRET: &str = "root:$6$secret";

/// In a mount namespace of the test's own, with an empty `/run`.
fn place() -> Place {
    private_mounts();
    with_vmm();
    Place::new()
}

fn secret(place: &Place) -> PathBuf {
    let secret = place.path("secret");
    fs::write(&secret, SECRET).unwrap();
    secret
}

/// A machine with a disk that has ended: its kernel is what `kernel` is by then. Gives its directory and
/// record.
fn ended(place: &Place) -> (PathBuf, Value) {
    let kernel = place.path("kernel");
    fs::copy(guest("poweroff"), &kernel).unwrap();
    fs::write(place.path("disk"), [0; 1 << 16]).unwrap();
    let output = place.bare("m", &kernel, &["--disk", "disk"]).output();
    assert_eq!(text(&output.unwrap().stderr), "");
    let dir = place.run().join("m");
    let record = dir.join("machine.json");
    eventually(|| record.exists() && UnixStream::connect(dir.join("api.sock")).is_err());
    let record = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    (dir, record)
}

fn write(dir: &Path, record: &Value) {
    fs::write(dir.join("machine.json"), record.to_string()).unwrap();
}

#[test]
fn a_machine_starts_with_what_it_had_and_nothing_that_it_names_itself() {
    let place = place();
    let secret = secret(&place);
    let (dir, record) = ended(&place);
    symlink(&secret, dir.join("link")).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut record = record.clone();
        *record.pointer_mut(pointer).unwrap() = value;
        record
    };
    let lower = json!([{ "path": secret, "format": "raw" }]);
    let mut layered = record.clone();
    layered["drives"][0]["lower"] = lower;
    let tap = json!([{ "id": "eth0", "tap": "tap0" }]);
    let cases = [
        (with("/kernel", json!(secret)), "secret"),
        (with("/initrd", json!(secret)), "secret"),
        (with("/drives/0/path", json!(secret)), "secret"),
        (with("/drives/0/path", json!(dir.join("link"))), "m/link"),
        (
            with("/drives/0/path", json!(place.path("kernel"))),
            "written",
        ),
        (layered, "secret"),
        (with("/console", json!(secret)), "secret"),
        (with("/console", json!(dir.join("link"))), "m/link"),
        (with("/network", tap), "network"),
    ];
    for (record, named) in cases {
        write(&dir, &record);
        for how in ["--jail", "--no-jail"] {
            let said = place.fails(1, ["start", how, "--no-wait", "m"]);
            assert!(said.contains(named), "{said}");
            assert!(said.contains("cannot be started again"), "{said}");
            assert!(!said.contains(SECRET), "{said}");
        }
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), SECRET);

    // What it had it has again, and no more than it had.
    write(&dir, &record);
    fs::copy(guest("hang"), place.path("kernel")).unwrap();
    place.ok(["start", "--no-wait", "m"]);
    let pid = place.pid("m");
    let user: u32 = status(pid, "Uid")
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    is_jailed(pid, user, user);
    let real = |path: PathBuf| path.canonicalize().unwrap().display().to_string();
    let mut shown = [dir.clone(), place.path("disk"), place.path("kernel")]
        .map(real)
        .to_vec();
    shown.extend(["/".to_owned(), "/dev".to_owned()]);
    shown.sort();
    assert_eq!(mounts(pid), shown);
    // The note of that goes with the machine.
    assert_eq!(names(place.run()), [".jails", ".m.shown", "m"]);
    place.ok(["rm", "-f", "m"]);
    assert_eq!(names(place.run()), [] as [&str; 0]);
}

#[test]
fn no_note_outlives_its_machine() {
    let place = place();
    ended(&place);
    // As if `tine rm` had been killed on its way.
    fs::remove_dir_all(place.run().join("m")).unwrap();
    place.ok(["gc"]);
    assert_eq!(names(place.run()), [] as [&str; 0]);
    // A machine of that id without a jail is held to nothing.
    ended(&place);
    fs::remove_dir_all(place.run().join("m")).unwrap();
    let mut bare = place.bare("m", &guest("hang"), &["--no-jail"]);
    assert!(bare.output().unwrap().status.success());
    assert!(!place.run().join(".m.shown").exists());
    place.ok(["rm", "-f", "m"]);
}

#[test]
fn links_in_a_machines_directory_are_not_written_or_read_through() {
    let place = place();
    let secret = secret(&place);
    let (dir, mut record) = ended(&place);
    let log = dir.join("vmm.log");
    fs::remove_file(&log).unwrap();
    symlink(&secret, &log).unwrap();
    let said = place.fails(1, ["start", "--no-wait", "m"]);
    assert!(said.contains("vmm.log"), "{said}");
    assert!(said.contains("a symbolic link"), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), SECRET);
    // A start that fails tells what the console said last, which is not this.
    fs::remove_file(&log).unwrap();
    let console = dir.join("console.log");
    fs::remove_file(&console).unwrap();
    symlink(&secret, &console).unwrap();
    record["console"] = json!("none");
    write(&dir, &record);
    fs::write(place.path("kernel"), "no kernel").unwrap();
    let said = place.fails(1, ["start", "--no-wait", "m"]);
    assert!(said.contains("neither an ELF kernel"), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    place.ok(["rm", "m"]);
    assert_eq!(fs::read_to_string(&secret).unwrap(), SECRET);
}

/// Answers like a machine, and to the order to fork with `forked`, until it is not asked any more.
fn liar(dir: &Path, forked: Value) {
    let socket = dir.join("api.sock");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut first, mut length) = (String::new(), 0);
            stream.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let line = line.trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            let (status, body) = match first.starts_with("POST /v1/fork ") {
                true => ("201 Created", forked.to_string()),
                false => (
                    "200 OK",
                    json!({ "id": "m", "state": "running" }).to_string(),
                ),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let stream = stream.get_mut();
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
}

#[test]
fn a_fork_is_taken_from_its_machines_directory_alone() {
    let place = place();
    let secret = secret(&place);
    let dir = place.run().join("m");
    fs::create_dir(&dir).unwrap();
    let dir = dir.canonicalize().unwrap();
    let outside = place.path("fork-0a.sock");
    let _outside = UnixListener::bind(&outside).unwrap();
    let _inside = UnixListener::bind(dir.join("fork-1b.sock")).unwrap();
    symlink(&outside, dir.join("fork-2c.sock")).unwrap();
    fs::write(dir.join("fork-3d.sock"), "").unwrap();
    symlink(place.path(""), dir.join(".fork-4e")).unwrap();
    fs::write(place.path("disk-root-0.raw"), SECRET).unwrap();
    let good = dir.join("fork-1b.sock");
    let cases = [
        (json!(secret), Value::Null, "secret"),
        (json!("/etc/shadow"), Value::Null, "/etc/shadow"),
        (json!(outside), Value::Null, "fork-0a.sock"),
        (json!(dir.join("fork-2c.sock")), Value::Null, "fork-2c.sock"),
        (json!(dir.join("fork-3d.sock")), Value::Null, "fork-3d.sock"),
        (json!(good), json!("/etc"), "/etc"),
        (
            json!(good),
            json!(place.path("")),
            "no directory in its own",
        ),
        (json!(good), json!(dir.join(".fork-4e")), ".fork-4e"),
    ];
    for (socket, layers, named) in cases {
        let forked = json!({
            "socket": socket, "layers": layers, "count": u32::MAX, "generation": 1, "pause_us": 1,
        });
        liar(&dir, forked);
        let said = place.fails(1, ["fork", "--name", "copy", "m"]);
        assert!(said.contains(named), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(names(place.run()), ["m"], "no copy was begun");
    }
}

#[test]
fn a_link_to_another_machines_socket_leads_nowhere() {
    let place = place();
    let output = place.bare("good", &guest("hang"), &[]).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    let pid = place.pid("good");
    let dir = place.run().join("evil");
    fs::create_dir(&dir).unwrap();
    symlink("../good/api.sock", dir.join("api.sock")).unwrap();
    let said = place.fails(1, ["exec", "evil", "--", "true"]);
    assert!(said.contains("a symbolic link"), "{said}");
    let ps = place.ok(["ps", "-a"]);
    assert!(ps.contains("silent"), "{ps}");
    assert_eq!(place.ok(["rm", "-f", "evil"]), "evil\n");
    assert!(alive(pid), "another machine was ended");
    assert_eq!(place.pid("good"), pid);
    place.ok(["rm", "-f", "good"]);
}

#[test]
fn a_process_is_ended_by_what_was_noted_of_it() {
    let place = place();
    let output = place.bare("m", &guest("hang"), &[]).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    let pid = place.pid("m");
    let jails = place.run().canonicalize().unwrap().join(".jails");
    // There is nothing to kill there, which is fine.
    tine_jailer::kill(&jails, "tine-vmm", "other").unwrap();
    assert!(alive(pid));
    tine_jailer::kill(&jails, "tine-vmm", "m").unwrap();
    assert!(!alive(pid));
    tine_jailer::kill(&jails, "tine-vmm", "m").unwrap();
    place.ok(["rm", "m"]);
    assert_eq!(names(place.run()), [] as [&str; 0]);
}
