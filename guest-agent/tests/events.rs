//! What listeners are told.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;

use common::{Agent, request};
use serde_json::{Value, json};

/// A listener whose subscription stands.
struct Listener(BufReader<UnixStream>);

impl Listener {
    fn to(agent: &Agent) -> Self {
        let mut conn = agent.connect();
        common::send(&mut conn, "GET", "/v1/events", "", b"");
        let head = common::read_head(&mut conn);
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), Some("application/x-ndjson"));
        Self(BufReader::new(conn))
    }

    /// The next event, past chunk sizes and signs of life.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let count = self.0.read_line(&mut line).expect("an event in time");
            assert!(count > 0, "the stream has ended");
            if line.starts_with('{') {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    /// The next event that is no warning: the machine that runs the tests may be short of something.
    fn next_exec(&mut self) -> Value {
        loop {
            let event = self.next();
            if event.get("warning").is_none() {
                return event;
            }
        }
    }
}

#[test]
fn ends_of_commands_are_told_to_every_listener() {
    let agent = Agent::start();
    let mut listeners = [Listener::to(&agent), Listener::to(&agent)];
    let ended = agent.exec(&["sh", "-c", "exit 3"], json!({}));
    let killed = agent.exec(&["sh", "-c", "kill -9 $$"], json!({}));
    let timed_out = agent.exec(&["sleep", "60"], json!({ "timeout_ms": 20 }));
    let failed = agent.exec(&["no-such-program"], json!({}));
    for listener in &mut listeners {
        let end = |record: &Value| {
            json!({ "exec": {
                "request_id": record["request_id"],
                "state": record["state"],
                "exit_code": record["exit_code"],
                "signal": record["signal"],
            }})
        };
        for record in [&ended, &killed, &timed_out, &failed] {
            assert_eq!(listener.next_exec(), end(record));
        }
    }
    assert_eq!(ended["exit_code"], 3);
    assert_eq!(timed_out["state"], "timed_out");
}

#[test]
fn a_refresh_is_told() {
    let stage = tempfile::tempdir().unwrap();
    let agent = Agent::start_with(&["--rehearse", stage.path().to_str().unwrap()]);
    let mut listener = Listener::to(&agent);
    let body =
        json!({ "generation": 2, "clock_ns": 1, "entropy": "0123456789abcdef0123456789abcdef" });
    for _ in 0..2 {
        assert_eq!(agent.json("POST", "/v1/refresh", body.clone()).status, 200);
    }
    assert_eq!(
        listener.next_exec(),
        json!({ "restored": { "generation": 2 } })
    );
    // The repetition is no event.
    agent.exec(&["true"], json!({}));
    assert!(listener.next_exec().get("exec").is_some());
}

#[test]
fn a_listener_that_does_not_read_holds_nobody_up_and_is_told_what_it_missed() {
    let agent = Agent::start_with(&["--records", "4000"]);
    let mut lazy = Listener::to(&agent);
    // More than its queue and the sockets hold.
    let wave = || {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut conn = agent.connect();
                    for _ in 0..250 {
                        let body = request(&["no-such-program"], json!({})).to_string();
                        common::send(&mut conn, "POST", "/v1/exec", "", body.as_bytes());
                        assert_eq!(common::read_answer(&mut conn).status, 200);
                    }
                });
            }
        });
        2000
    };
    let mut sent = wave();
    let mut seen = 0;
    let missed = loop {
        let event = lazy.next_exec();
        if let Some(count) = event["lost"]["count"].as_u64() {
            break count;
        }
        seen += 1;
        // It is the next event that brings the word of those that were missed.
        if seen % 100 == 0 {
            agent.exec(&["true"], json!({}));
            sent += 1;
        }
    };
    assert!(
        missed > 0 && seen + missed <= sent,
        "{seen} {missed} {sent}"
    );
    // From then on it hears everything again.
    let last = agent.exec(&["true"], json!({}));
    while lazy.next_exec()["exec"]["request_id"] != last["request_id"] {}
}

#[test]
fn listeners_are_limited_and_make_room_when_they_go() {
    let agent = Agent::start();
    let mut all: Vec<_> = (0..16).map(|_| Listener::to(&agent)).collect();
    assert_eq!(agent.call("GET", "/v1/events", b"").status, 503);
    assert_eq!(agent.call("POST", "/v1/events", b"").status, 405);
    all.pop();
    // It is noticed at the next line for it.
    for _ in 0..50 {
        agent.exec(&["true"], json!({}));
        let mut conn = agent.connect();
        common::send(&mut conn, "GET", "/v1/events", "", b"");
        let mut status = [0; 12];
        conn.read_exact(&mut status).unwrap();
        if status.ends_with(b"200") {
            return;
        }
    }
    panic!("the place is not free");
}
