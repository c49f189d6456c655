//! What concerns the machine as a whole: hello, health, processes, ports, shutdown, bad requests.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use common::{Agent, read_answer, read_head, request, send};
use serde_json::json;

#[test]
fn hello_comes_again_when_its_connection_has_ended() {
    let mut agent = Agent::start();
    let (first, conn) = agent.greeting.take().unwrap();
    assert_eq!((first.protocol, first.generation, first.hellos), (2, 0, 1));
    assert!(first.agent_started_ns < first.monotonic_ns);
    assert!(!first.boot_id.is_empty() && !first.kernel.is_empty());
    // It answers from the hello on.
    assert_eq!(agent.exec(&["true"], json!({}))["exit_code"], 0);
    drop(conn);
    let (second, conn) = agent.hello();
    assert_eq!((second.generation, second.hellos), (0, 2));
    assert_eq!(second.boot_id, first.boot_id);
    drop(conn);
    assert_eq!(agent.hello().0.hellos, 3);
}

#[test]
fn health() {
    let agent = Agent::start();
    agent.exec(&["true"], json!({}));
    let mut live = agent.stream(&["sleep", "60"], json!({}));
    live.control();
    let health = agent.call("GET", "/v1/health", b"").value();
    assert_eq!(health["protocol"], 2);
    assert_eq!(
        (&health["execs_running"], &health["execs_known"]),
        (&json!(1), &json!(2))
    );
    for figure in [
        &health["memory"]["total_bytes"],
        &health["memory"]["available_bytes"],
        &health["disk"]["total_bytes"],
        &health["uptime_s"],
        &health["agent_memory_bytes"],
    ] {
        assert!(figure.as_u64().unwrap() > 0, "{health}");
    }
}

#[test]
fn processes_are_listed_and_signalled() {
    let agent = Agent::start();
    let mut live = agent.stream(&["sh", "-c", "sleep 307 & wait"], json!({}));
    let started = live.control();
    let list = agent.call("GET", "/v1/processes", b"").value();
    let mut list = list.as_array().unwrap().iter();
    let shell = list
        .find(|process| process["pid"] == started["pid"])
        .unwrap();
    assert_eq!(shell["command"], "sh -c sleep 307 & wait");
    assert_eq!(shell["request_id"], started["request_id"]);
    let path = format!("/v1/processes/{}/signal", started["pid"]);
    assert_eq!(
        agent.json("POST", &path, json!({ "signal": 0 })).status,
        400
    );
    assert_eq!(
        agent.json("POST", &path, json!({ "signal": 15 })).status,
        204
    );
    assert_eq!(live.finish().record()["signal"], 15);
    assert_eq!(
        agent.json("POST", &path, json!({ "signal": 15 })).status,
        404
    );
    assert_eq!(
        agent
            .json("POST", "/v1/processes/1/signal", json!({ "signal": 15 }))
            .status,
        403
    );
}

#[test]
fn a_port_is_a_byte_stream_both_ways() {
    let agent = Agent::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut conn, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        conn.read_to_end(&mut all).unwrap();
        all.reverse();
        conn.write_all(&all).unwrap();
    });
    let mut conn = agent.connect();
    let upgrade = "Connection: Upgrade\r\nUpgrade: tine-raw/1\r\n";
    send(
        &mut conn,
        "POST",
        &format!("/v1/ports/{port}"),
        upgrade,
        b"",
    );
    assert_eq!(read_head(&mut conn).status, 101);
    let data: Vec<u8> = (0..1_000_000u32).map(|index| (index % 251) as u8).collect();
    conn.write_all(&data).unwrap();
    conn.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    conn.read_to_end(&mut back).unwrap();
    back.reverse();
    assert!(back == data);
    server.join().unwrap();
    // Nobody listens there any more.
    let mut conn = agent.connect();
    send(
        &mut conn,
        "POST",
        &format!("/v1/ports/{port}"),
        upgrade,
        b"",
    );
    let answer = read_answer(&mut conn);
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.value()["error"]["errno"], "ECONNREFUSED");
}

#[test]
fn shutdown_ends_the_commands_and_the_agent() {
    let agent = Agent::start();
    let script = "trap 'echo bye; exit 4' TERM; echo go; while :; do sleep 0.05; done";
    let mut live = agent.stream(&["sh", "-c", script], json!({}));
    live.control();
    live.frame().unwrap();
    assert_eq!(
        agent
            .json("POST", "/v1/shutdown", json!({ "action": "halt" }))
            .status,
        400
    );
    assert_eq!(
        agent
            .json("POST", "/v1/shutdown", json!({ "action": "poweroff" }))
            .status,
        202
    );
    let whole = live.finish();
    assert_eq!(whole.stdout, b"bye\n");
}

#[test]
fn malformed_requests_are_told_the_field() {
    let agent = Agent::start();
    let good = request(&["true"], json!({}));
    let with = |name: &str, value: serde_json::Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    let cases = [
        (json!({ "argv": ["true"] }), "request_id"),
        (json!({ "request_id": "a" }), "argv"),
        (with("request_id", json!("a b")), "request_id"),
        (with("request_id", json!("")), "request_id"),
        (with("argv", json!([])), "argv"),
        (with("argv", json!([""])), "argv"),
        (with("argv", json!(["a\u{0}b"])), "argv"),
        (with("argv", json!([{ "base64": "!" }])), "argv"),
        (with("argv", json!("true")), "argv"),
        (with("env", json!({ "A=B": "c" })), "env"),
        (with("env", json!({ "A": 1 })), "env"),
        (with("cwd", json!("")), "cwd"),
        (with("timeout_ms", json!(-1)), "timeout_ms"),
        (with("timeout_ms", json!("1s")), "timeout_ms"),
        (with("tty", json!({ "rows": 1 })), "tty"),
        (with("tty", json!({ "rows": 1, "cols": 70000 })), "tty"),
        (with("background", json!("maybe")), "background"),
        (with("output_limit", json!(u64::MAX)), "output_limit"),
        (with("timeuot_ms", json!(1)), "timeuot_ms"),
    ];
    for (body, field) in cases {
        let answer = agent.json("POST", "/v1/exec", body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.value()["error"]["field"], field, "{}", answer.text());
    }
    for body in [&b"{"[..], b"[]", b"\xff", b"null"] {
        assert_eq!(agent.call("POST", "/v1/exec", body).status, 400);
    }
    // None of these ids was used up.
    assert_eq!(agent.json("POST", "/v1/exec", good).status, 200);
}

#[test]
fn other_bad_requests() {
    let agent = Agent::start();
    assert_eq!(agent.call("GET", "/v2", b"").status, 404);
    assert_eq!(agent.call("GET", "/v1/nothing", b"").status, 404);
    assert_eq!(agent.call("PUT", "/v1/exec", b"").status, 405);
    assert_eq!(agent.call("POST", "/v1/health", b"").status, 405);
    assert_eq!(
        agent
            .call("DELETE", "/v1/files/content?path=/x", b"")
            .status,
        405
    );
    let large = vec![b' '; 2 << 20];
    assert_eq!(agent.call("POST", "/v1/exec", &large).status, 413);
    // Ones that are no HTTP, or too much of it, end their connection alone.
    for bytes in [
        b"GET none HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 5000],
        vec![b'a'; 300_000],
    ] {
        let mut conn = agent.connect();
        let _ = conn.write_all(&bytes);
        let _ = conn.shutdown(Shutdown::Write);
        let mut all = Vec::new();
        let _ = conn.read_to_end(&mut all);
        let text = String::from_utf8_lossy(&all).into_owned();
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    // One that does not send what it announced waits alone.
    let mut conn = agent.connect();
    conn.write_all(b"POST /v1/exec HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n123456789")
        .unwrap();
    assert_eq!(agent.exec(&["echo", "hi"], json!({}))["stdout"], "hi\n");
    let mut conn = agent.connect();
    send(
        &mut conn,
        "POST",
        "/v1/exec",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"{}",
    );
    assert_eq!(read_answer(&mut conn).status, 400);
}

#[test]
fn connections_can_be_used_again() {
    let agent = Agent::start();
    let mut conn = agent.connect();
    for number in 0..3 {
        let body = request(&["echo", &number.to_string()], json!({})).to_string();
        send(&mut conn, "POST", "/v1/exec", "", body.as_bytes());
        assert_eq!(
            read_answer(&mut conn).value()["stdout"],
            format!("{number}\n")
        );
    }
}
