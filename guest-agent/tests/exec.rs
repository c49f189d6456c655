//! Commands and their records.

mod common;

use std::time::{Duration, Instant};

use common::{Agent, request, unique};
use serde_json::json;

#[test]
fn output_and_exit_code() {
    let agent = Agent::start();
    let record = agent.exec(&["sh", "-c", "echo out; echo err >&2; exit 7"], json!({}));
    assert_eq!(record["state"], "exited");
    assert_eq!(record["exit_code"], 7);
    assert_eq!(record["signal"], json!(null));
    assert_eq!(record["stdout"], "out\n");
    assert_eq!(record["stderr"], "err\n");
    assert_eq!(record["stdout_truncated"], false);
    assert!(record["started_at"].as_str().unwrap() <= record["ended_at"].as_str().unwrap());
    assert!(record["usage"]["max_memory_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn result_comes_with_the_command_and_not_with_its_background_child() {
    let agent = Agent::start();
    let start = Instant::now();
    let record = agent.exec(&["sh", "-c", "sleep 300 & echo hi"], json!({}));
    assert_eq!(record["stdout"], "hi\n");
    assert_eq!(record["exit_code"], 0);
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(
        agent
            .call("GET", "/v1/processes", b"")
            .text()
            .contains("sleep 300")
    );
}

#[test]
fn background_children_are_killed_when_asked() {
    let agent = Agent::start();
    let mark = unique("3");
    let script =
        format!("setsid sh -c 'sleep 301; : {mark}' & sh -c 'sleep 302; : {mark}' & echo hi");
    let record = agent.exec(&["sh", "-c", &script], json!({ "background": "kill" }));
    assert_eq!(
        (&record["stdout"], &record["exit_code"]),
        (&json!("hi\n"), &json!(0))
    );
    assert!(
        !agent
            .call("GET", "/v1/processes", b"")
            .text()
            .contains(&mark)
    );
}

#[test]
fn background_child_may_go_on_writing() {
    let agent = Agent::start();
    let done = agent.dir().join("done");
    let script = format!(
        "(read x < {0}; head -c 200000 /dev/zero; echo $? > {1}) & mkfifo {0}; echo hi",
        agent.dir().join("fifo").display(),
        done.display()
    );
    // The child opens the pipe only after the command has made it, or fails and is tried again.
    let script = script.replace("(read x", "(while [ ! -p FIFO ]; do :; done; read x");
    let script = script.replace("FIFO", agent.dir().join("fifo").to_str().unwrap());
    assert_eq!(
        agent.exec(&["sh", "-c", &script], json!({}))["stdout"],
        "hi\n"
    );
    std::fs::write(agent.dir().join("fifo"), "go\n").unwrap();
    let wait = format!("while [ ! -s {} ]; do sleep 0.01; done", done.display());
    agent.exec(&["sh", "-c", &wait], json!({ "timeout_ms": 20_000 }));
    assert_eq!(std::fs::read_to_string(done).unwrap(), "0\n");
}

#[test]
fn timeout_ends_the_whole_tree_and_keeps_the_output() {
    let agent = Agent::start();
    let mark = unique("4");
    let script = format!("echo so far; setsid sh -c 'sleep 303; : {mark}' & sleep 304 & wait");
    for grace in [0, 1000] {
        let more = json!({ "timeout_ms": 50, "grace_ms": grace });
        let record = agent.exec(&["sh", "-c", &script], more);
        assert_eq!(record["state"], "timed_out");
        assert_eq!(record["stdout"], "so far\n");
        assert!(record["reason"].as_str().unwrap().contains("50 ms"));
        assert!(
            !agent
                .call("GET", "/v1/processes", b"")
                .text()
                .contains(&mark)
        );
    }
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let agent = Agent::start();
    let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let record = agent.exec(
        &["sh", "-c", script],
        json!({ "timeout_ms": 200, "grace_ms": 100 }),
    );
    assert_eq!(record["state"], "timed_out");
    assert_eq!(record["signal"], 9);
    assert_eq!(record["stdout"], "ready\n");
}

#[test]
fn orphans_are_reaped() {
    let agent = Agent::start();
    for _ in 0..100 {
        agent.exec(&["sh", "-c", "sleep 0.1 &"], json!({}));
    }
    agent.exec(&["sleep", "0.3"], json!({}));
    assert_eq!(agent.zombies(), 0);
}

#[test]
fn death_by_signal() {
    let agent = Agent::start();
    let record = agent.exec(&["sh", "-c", "kill -9 $$"], json!({}));
    assert_eq!(record["state"], "killed");
    assert_eq!(record["signal"], 9);
    assert_eq!(record["exit_code"], json!(null));
}

#[test]
fn what_cannot_be_started_says_why_as_a_shell_would() {
    let agent = Agent::start();
    let script = agent.dir().join("script");
    std::fs::write(&script, "#!/no/such/interpreter -x\n").unwrap();
    let plain = agent.dir().join("plain");
    std::fs::write(&plain, "echo hi\n").unwrap();
    let (script, plain) = (script.to_str().unwrap(), plain.to_str().unwrap());
    for path in [script, plain] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    let cases = [
        (
            vec!["no-such-command-x"],
            127,
            "no-such-command-x: command not found",
        ),
        (vec!["/no/such/command"], 127, "ENOENT"),
        (vec!["/etc/passwd/x"], 127, "ENOTDIR"),
        (vec![script], 127, "/no/such/interpreter"),
        (vec!["/etc/passwd"], 126, "EACCES"),
        (vec!["/etc"], 126, "EACCES"),
        (vec![plain], 126, "ENOEXEC"),
    ];
    for (argv, code, reason) in cases {
        let record = agent.exec(&argv, json!({}));
        assert_eq!(record["state"], "failed", "{argv:?}");
        assert_eq!(record["exit_code"], code, "{argv:?}");
        assert!(
            record["reason"].as_str().unwrap().contains(reason),
            "{record}"
        );
    }
    let record = agent.exec(&["true"], json!({ "cwd": "/no/such/dir" }));
    assert_eq!(record["state"], "failed");
    assert!(record["reason"].as_str().unwrap().contains("/no/such/dir"));
    let record = agent.exec(&["true"], json!({ "user": "no-such-user" }));
    assert_eq!(record["state"], "failed");
    assert!(record["reason"].as_str().unwrap().contains("no-such-user"));
    assert_eq!(agent.exec(&["true"], json!({}))["state"], "exited");
}

#[test]
fn environment_directory_and_user() {
    let agent = Agent::start();
    let record = agent.exec(&["env"], json!({ "env": { "A": "b c" } }));
    let lines: Vec<_> = record["stdout"]
        .as_str()
        .unwrap()
        .lines()
        .map(String::from)
        .collect();
    for line in ["A=b c", "HOME=/root", "USER=root"] {
        assert!(lines.iter().any(|other| other == line), "{lines:?}");
    }
    let record = agent.exec(
        &["/usr/bin/env"],
        json!({ "clear_env": true, "env": { "X": "1" } }),
    );
    assert_eq!(record["stdout"], "X=1\n");
    let record = agent.exec(&["pwd"], json!({ "cwd": "/usr/bin" }));
    assert_eq!(record["stdout"], "/usr/bin\n");
    assert_eq!(agent.exec(&["pwd"], json!({}))["stdout"], "/\n");
    let script = "id -u; id -g; id -G; echo $HOME $USER";
    let record = agent.exec(&["sh", "-c", script], json!({ "user": "1234:5678" }));
    assert_eq!(record["stdout"], "1234\n5678\n5678\n/ 1234\n");
    let record = agent.exec(
        &["sh", "-c", "id -un; echo $USER"],
        json!({ "user": "daemon" }),
    );
    assert_eq!(record["stdout"], "daemon\ndaemon\n");
}

#[test]
fn arguments_and_values_are_bytes() {
    let agent = Agent::start();
    let id = unique("r");
    let body = json!({
        "request_id": id,
        "argv": ["sh", "-c", "printf '%s|%s' \"$1\" \"$V\"", "sh", { "base64": "/w==" }],
        "env": { "V": { "base64": "gA==" } },
    });
    let record = agent.json("POST", "/v1/exec", body).value();
    assert_eq!(record["stdout_encoding"], "base64");
    assert_eq!(record["stdout"], "/3yA");
}

#[test]
fn output_bytes_are_exact() {
    let agent = Agent::start();
    let record = agent.exec(&["printf", "\\377"], json!({}));
    assert_eq!(
        (&record["stdout"], &record["stdout_encoding"]),
        (&json!("/w=="), &json!("base64"))
    );
    // 64 KiB and one byte of two-byte characters, the last one cut.
    let script =
        "i=0; while [ $i -lt 32768 ]; do printf '\\303\\251'; i=$((i+1)); done; printf '\\303'";
    let record = agent.exec(&["bash", "-c", script], json!({}));
    assert_eq!(record["stdout_encoding"], "base64");
    let bytes =
        tine_guest_agent::octets::decode_base64(record["stdout"].as_str().unwrap()).unwrap();
    assert_eq!(bytes.len(), 65537);
    assert!(bytes[..65536].chunks(2).all(|pair| pair == [0xc3, 0xa9]));
    assert_eq!(bytes[65536], 0xc3);
}

#[test]
fn collected_output_is_cut_at_the_limit_and_marked() {
    let agent = Agent::start();
    let script =
        "head -c 4194304 /dev/zero | tr '\\0' a & head -c 4194304 /dev/zero | tr '\\0' b >&2; wait";
    let more = json!({ "output_limit": 99_328 });
    let record = agent.exec(&["sh", "-c", script], more);
    assert_eq!(record["exit_code"], 0);
    assert_eq!(record["stdout"].as_str().unwrap(), "a".repeat(99_328));
    assert_eq!(record["stderr"].as_str().unwrap(), "b".repeat(99_328));
    assert_eq!(
        (&record["stdout_truncated"], &record["stderr_truncated"]),
        (&json!(true), &json!(true))
    );
    let record = agent.exec(
        &["sh", "-c", "head -c 99328 /dev/zero | tr '\\0' a"],
        json!({}),
    );
    assert_eq!(record["stdout"].as_str().unwrap().len(), 99_328);
    assert_eq!(record["stdout_truncated"], false);
}

#[test]
fn input() {
    let agent = Agent::start();
    assert_eq!(agent.exec(&["cat"], json!({}))["exit_code"], 0);
    let record = agent.exec(&["wc", "-c"], json!({ "input": { "base64": "AAEC/w==" } }));
    assert_eq!(record["stdout"].as_str().unwrap().trim(), "4");
    // More than a pipe holds, to a command that does not read it.
    let long = "x".repeat(500_000);
    assert_eq!(
        agent.exec(&["true"], json!({ "input": long }))["exit_code"],
        0
    );
}

#[test]
fn a_long_command_holds_up_no_other() {
    let agent = Agent::start();
    let mut conn = agent.connect();
    let body = request(&["sleep", "60"], json!({})).to_string();
    common::send(&mut conn, "POST", "/v1/exec", "", body.as_bytes());
    let start = Instant::now();
    assert_eq!(agent.exec(&["echo", "hi"], json!({}))["stdout"], "hi\n");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn fifty_at_once() {
    let agent = Agent::start();
    std::thread::scope(|scope| {
        for number in 0..50 {
            let agent = &agent;
            scope.spawn(move || {
                let script = format!("sleep 0.2; echo {number}");
                let record = agent.exec(&["sh", "-c", &script], json!({}));
                assert_eq!(record["stdout"], format!("{number}\n"));
            });
        }
    });
    assert_eq!(agent.zombies(), 0);
    assert!(agent.peak_memory() < 16 << 20, "{}", agent.peak_memory());
}

#[test]
fn nothing_of_the_agent_leaks_into_a_command() {
    let agent = Agent::start();
    let record = agent.exec(
        &[
            "sh",
            "-c",
            "ls /proc/self/fd | wc -l; grep Sig /proc/self/status",
        ],
        json!({}),
    );
    let text = record["stdout"].as_str().unwrap();
    // 0, 1, 2 and the one that lists.
    assert!(text.starts_with("4\n"), "{text}");
    for name in ["SigBlk:", "SigIgn:"] {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let set = u64::from_str_radix(line.trim(), 16).unwrap();
        // Above are the C library's own signals, which it ignores in what it spawns, as here the agent.
        assert_eq!(set & 0x7fff_ffff, 0, "{name} {set:x}");
    }
}

#[test]
fn a_limit_of_nothing_ends_the_command_before_it_has_begun() {
    let agent = Agent::start();
    let record = agent.exec(&["sleep", "300"], json!({ "timeout_ms": 0, "grace_ms": 0 }));
    assert_eq!(record["state"], "timed_out");
    assert_eq!(agent.zombies(), 0);
}
