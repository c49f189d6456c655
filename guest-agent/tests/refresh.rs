//! What the agent does after a restore and around a snapshot of disks. The effects are rehearsed: nothing of the host
//! that runs the tests is changed.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{Agent, PATIENCE, send};
use serde_json::{Value, json};
use tine_guest_agent::octets::encode_base64;

/// An agent whose effects go to a directory.
fn rehearse() -> (Agent, tempfile::TempDir) {
    let stage = tempfile::tempdir().unwrap();
    let agent = Agent::start_with(&["--rehearse", stage.path().to_str().unwrap()]);
    (agent, stage)
}

/// A request with the fields that must be there.
fn refresh(generation: u64, more: Value) -> Value {
    let entropy = encode_base64(&[0xfe; 32]);
    let mut body = json!({
        "generation": generation,
        "clock_ns": 1_900_000_000_123_456_789u64,
        "entropy": { "base64": entropy },
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn a_refresh_does_everything_and_answers_with_the_hello() {
    let (agent, stage) = rehearse();
    let read = |name: &str| std::fs::read_to_string(stage.path().join(name)).unwrap();
    let body = refresh(
        7,
        json!({
            "hostname": "child",
            "machine_id": "0123456789abcdef0123456789abcdef",
            "env": { "CHILD": "7", "PATH": "/bin:/usr/bin" },
            "files": [
                { "path": "/run/secrets/token", "mode": 0o600, "content": { "base64": "AP8=" } },
                { "path": "/etc/empty", "content": "" },
            ],
            "interfaces": [
                { "place": 0, "mac": [2, 0, 0, 0, 0, 1], "address": "10.0.0.2/24", "gateway": "10.0.0.1" },
                { "place": 1 },
            ],
        }),
    );
    let answer = agent.json("POST", "/v1/refresh", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let hello = answer.value();
    let first = &agent.greeting.as_ref().unwrap().0;
    assert_eq!((&hello["generation"], first.generation), (&json!(7), 0));
    assert_eq!(hello["boot_id"], first.boot_id);
    assert!(hello["monotonic_ns"].as_u64().unwrap() > first.monotonic_ns);
    assert_eq!(read("clock"), "1900000000123456789");
    assert_eq!(
        std::fs::read(stage.path().join("entropy")).unwrap(),
        [0xfe; 32]
    );
    assert_eq!(read("hostname"), "child");
    assert_eq!(read("neighbours"), "forgotten");
    let interfaces: Value = serde_json::from_str(&read("interfaces")).unwrap();
    assert_eq!(interfaces[0]["address"], "10.0.0.2/24");
    assert_eq!(interfaces[1], json!({ "place": 1 }));
    assert_eq!(read("etc/machine-id"), "0123456789abcdef0123456789abcdef\n");
    assert_eq!(read("run/tine/generation"), "7\n");
    let token = stage.path().join("run/secrets/token");
    assert_eq!(std::fs::read(&token).unwrap(), [0, 0xff]);
    let mode = token.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(read("etc/empty"), "");
    // Nothing is left of the temporary names.
    let names = std::fs::read_dir(stage.path().join("run/tine")).unwrap();
    assert_eq!(names.count(), 1);
    let record = agent.exec(&["sh", "-c", "echo $CHILD $PATH"], json!({}));
    assert_eq!(record["stdout"], "7 /bin:/usr/bin\n");
    let own = json!({ "env": { "CHILD": "own" } });
    assert_eq!(
        agent.exec(&["sh", "-c", "echo $CHILD"], own)["stdout"],
        "own\n"
    );
    let none = json!({ "clear_env": true });
    assert_eq!(
        agent.exec(&["/bin/sh", "-c", "echo $CHILD"], none)["stdout"],
        "\n"
    );
}

#[test]
fn a_program_can_wait_for_the_generation() {
    let (agent, stage) = rehearse();
    let place = stage.path().join("run/tine");
    std::fs::create_dir_all(&place).unwrap();
    // The agent's own watch stands for any program's inotify.
    let path = format!("/v1/files/watch?path={}", place.display());
    let mut watch = agent.connect();
    send(&mut watch, "GET", &path, "", b"");
    assert_eq!(common::read_head(&mut watch).status, 200);
    assert_eq!(
        agent
            .json("POST", "/v1/refresh", refresh(1, json!({})))
            .status,
        200
    );
    let wanted = place.join("generation");
    loop {
        let chunk = common::read_chunk(&mut watch).expect("an event");
        let text = String::from_utf8(chunk).unwrap();
        let of_it = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            event["change"] == "created" && event["path"] == wanted.to_str().unwrap()
        };
        if text.lines().any(of_it) {
            break;
        }
    }
    assert_eq!(std::fs::read_to_string(&wanted).unwrap(), "1\n");
}

#[test]
fn ids_of_before_are_known_as_the_parents_and_not_run_again() {
    let (agent, _stage) = rehearse();
    let file = agent.dir().join("count");
    let script = format!("echo x >> {}", file.display());
    let body = common::request(&["sh", "-c", &script], json!({}));
    let first = agent.json("POST", "/v1/exec", body.clone()).value();
    assert_eq!(first.get("inherited"), None);
    let mut running = agent.stream(&["sleep", "60"], json!({}));
    let started = running.control();
    assert_eq!(
        agent
            .json("POST", "/v1/refresh", refresh(1, json!({})))
            .status,
        200
    );
    let again = agent.json("POST", "/v1/exec", body.clone()).value();
    assert_eq!(again["inherited"], true);
    assert_eq!(again["ended_at"], first["ended_at"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x\n");
    // What was running runs on.
    let path = format!("/v1/exec/{}", started["request_id"].as_str().unwrap());
    let record = agent.call("GET", &path, b"").value();
    assert_eq!(
        (&record["state"], &record["inherited"]),
        (&json!("running"), &json!(true))
    );
    assert_eq!(agent.exec(&["true"], json!({})).get("inherited"), None);
    // The same refresh once more is no further generation.
    assert_eq!(
        agent
            .json("POST", "/v1/refresh", refresh(1, json!({})))
            .status,
        200
    );
    let list = agent.call("GET", "/v1/exec", b"").value();
    let inherited = |record: &&Value| record["inherited"] == true;
    assert_eq!(list.as_array().unwrap().iter().filter(inherited).count(), 2);
}

#[test]
fn a_past_generation_and_malformed_requests_are_refused() {
    let (agent, stage) = rehearse();
    let post = |body: Value| agent.json("POST", "/v1/refresh", body);
    assert_eq!(post(refresh(5, json!({}))).status, 200);
    let past = post(refresh(4, json!({ "hostname": "old" })));
    assert_eq!(past.status, 409, "{}", past.text());
    assert!(!stage.path().join("hostname").exists());
    let cases = [
        (refresh(0, json!({})), "generation"),
        (refresh(6, json!({ "clock_ns": u64::MAX })), "clock_ns"),
        (refresh(6, json!({ "entropy": "short" })), "entropy"),
        (refresh(6, json!({ "entropy": "x".repeat(513) })), "entropy"),
        (refresh(6, json!({ "hostname": "" })), "hostname"),
        (refresh(6, json!({ "machine_id": "ABC" })), "machine_id"),
        (refresh(6, json!({ "env": { "A=": "b" } })), "env"),
        (
            refresh(6, json!({ "files": [{ "path": "a", "content": "" }] })),
            "files",
        ),
        (
            refresh(6, json!({ "files": [{ "path": "/a", "contnet": "" }] })),
            "files",
        ),
        (refresh(6, json!({ "hosntame": "x" })), "hosntame"),
    ];
    for (body, field) in cases {
        let answer = post(body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.value()["error"]["field"], field, "{}", answer.text());
    }
    let unwritable = json!({ "files": [{ "path": "/run/tine/generation/x", "content": "" }] });
    let answer = post(refresh(6, unwritable));
    assert_eq!(answer.status, 409, "{}", answer.text());
    let text = std::fs::read_to_string(stage.path().join("run/tine/generation")).unwrap();
    assert_eq!(text, "5\n", "a refresh that failed is not announced");
    assert_eq!(agent.call("GET", "/v1/refresh", b"").status, 405);
}

#[test]
fn after_a_refresh_the_hello_has_the_generation() {
    let (mut agent, _stage) = rehearse();
    let (first, conn) = agent.greeting.take().unwrap();
    assert_eq!((first.generation, first.hellos), (0, 1));
    assert_eq!(
        agent
            .json("POST", "/v1/refresh", refresh(3, json!({})))
            .status,
        200
    );
    drop(conn);
    let (second, _conn) = agent.hello();
    assert_eq!((second.generation, second.hellos), (3, 2));
}

const MOUNTS: &str = "\
    1 0 0:2 / / rw - rootfs rootfs rw\n\
    22 1 254:0 / / rw - ext4 /dev/vda rw\n\
    24 22 254:16 / /tmp rw - ext4 /dev/vdb rw\n";

fn held(stage: &tempfile::TempDir) -> String {
    std::fs::read_to_string(stage.path().join("held")).unwrap_or_default()
}

/// Waits until the log of held file systems has this many lines.
fn until_lines(stage: &tempfile::TempDir, count: usize) -> String {
    let deadline = std::time::Instant::now() + PATIENCE;
    while held(stage).lines().count() < count {
        assert!(std::time::Instant::now() < deadline, "{}", held(stage));
        std::thread::sleep(Duration::from_millis(5));
    }
    held(stage)
}

#[test]
fn disks_are_held_until_thawed() {
    let (agent, stage) = rehearse();
    std::fs::create_dir_all(stage.path().join("proc/self")).unwrap();
    std::fs::write(stage.path().join("proc/self/mountinfo"), MOUNTS).unwrap();
    assert_eq!(
        agent.json("POST", "/v1/thaw", json!({})).value(),
        json!({ "held": false })
    );
    let answer = agent.json("POST", "/v1/freeze", json!({}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        answer.value(),
        json!({ "frozen": ["/tmp", "/"], "synced": [] })
    );
    let second = agent.json("POST", "/v1/freeze", json!({}));
    assert_eq!(second.status, 409, "{}", second.text());
    assert_eq!(held(&stage), "freeze /tmp\nfreeze /\n");
    assert_eq!(
        agent.json("POST", "/v1/thaw", json!({})).value(),
        json!({ "held": true })
    );
    assert_eq!(held(&stage), "freeze /tmp\nfreeze /\nthaw /\nthaw /tmp\n");
    assert_eq!(
        agent.json("POST", "/v1/thaw", json!({})).value(),
        json!({ "held": false })
    );
}

#[test]
fn disks_of_a_host_that_went_away_are_thawed() {
    let (agent, stage) = rehearse();
    std::fs::create_dir_all(stage.path().join("proc/self")).unwrap();
    std::fs::write(stage.path().join("proc/self/mountinfo"), MOUNTS).unwrap();
    let begun = std::time::Instant::now();
    let answer = agent.json("POST", "/v1/freeze", json!({ "timeout_ms": 300 }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        until_lines(&stage, 4),
        "freeze /tmp\nfreeze /\nthaw /\nthaw /tmp\n"
    );
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        agent.json("POST", "/v1/thaw", json!({})).value(),
        json!({ "held": false })
    );
    // An earlier freeze's timer does not end a later freeze.
    assert_eq!(
        agent
            .json("POST", "/v1/freeze", json!({ "timeout_ms": 300 }))
            .status,
        200
    );
    assert_eq!(
        agent.json("POST", "/v1/thaw", json!({})).value(),
        json!({ "held": true })
    );
    assert_eq!(
        agent
            .json("POST", "/v1/freeze", json!({ "timeout_ms": 60_000 }))
            .status,
        200
    );
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(
        agent.json("POST", "/v1/thaw", json!({})).value(),
        json!({ "held": true })
    );
    for limit in [0, 60_001] {
        let answer = agent.json("POST", "/v1/freeze", json!({ "timeout_ms": limit }));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.value()["error"]["field"], "timeout_ms");
    }
}

#[test]
fn a_machine_restored_with_its_disks_held_gets_them_back() {
    let (agent, stage) = rehearse();
    std::fs::create_dir_all(stage.path().join("proc/self")).unwrap();
    std::fs::write(stage.path().join("proc/self/mountinfo"), MOUNTS).unwrap();
    assert_eq!(agent.json("POST", "/v1/freeze", json!({})).status, 200);
    assert_eq!(
        agent
            .json("POST", "/v1/refresh", refresh(1, json!({})))
            .status,
        200
    );
    assert!(
        held(&stage).ends_with("thaw /\nthaw /tmp\n"),
        "{}",
        held(&stage)
    );
}
