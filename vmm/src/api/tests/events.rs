//! The guest's events, from agents that tell them well, wrongly, and without end.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use super::*;

const FOLLOW: &[u8] = b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n";

/// Reads the agent's request and answers that lines follow.
fn subscribe(agent: &mut UnixStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        agent.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"GET /v1/events HTTP/1.1\r\n"));
    let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\
        Transfer-Encoding: chunked\r\n\r\n";
    agent.write_all(answer).unwrap();
}

fn say(agent: &mut UnixStream, lines: &str) -> std::io::Result<()> {
    let chunk = format!("{:x}\r\n{lines}\r\n", lines.len());
    agent.write_all(chunk.as_bytes())
}

fn end(id: &str) -> String {
    format!(
        "{{\"exec\":{{\"request_id\":\"{id}\",\"state\":\"exited\",\"exit_code\":3,\"signal\":null}}}}\n"
    )
}

/// The next event; chunk sizes and signs of life are no events.
fn next(client: &mut impl BufRead) -> serde_json::Value {
    loop {
        let mut line = String::new();
        assert!(
            client.read_line(&mut line).expect("an event") > 0,
            "the end"
        );
        if line.starts_with('{') {
            return serde_json::from_str(&line).unwrap();
        }
    }
}

#[test]
fn ends_of_commands_come_to_those_who_follow_and_the_agent_is_asked_only_for_them() {
    let bench = Bench::running();
    bench.get("/");
    assert!(bench.dialled.try_recv().is_err(), "nobody follows");
    let mut client = bench.connect();
    client.write_all(FOLLOW).unwrap();
    let mut agent = bench.agent();
    subscribe(&mut agent);
    let mut reader = BufReader::new(client.try_clone().unwrap());
    assert_eq!(next(&mut reader)["event"], "state");
    // Cut anywhere, and more than one at once.
    let lines = [end("a").as_str(), "\n", "{\"newer\":1}\n", &end("b")].concat();
    for part in lines.as_bytes().chunks(7) {
        say(&mut agent, std::str::from_utf8(part).unwrap()).unwrap();
    }
    for id in ["a", "b"] {
        let event = next(&mut reader);
        assert_eq!(
            (&event["event"], &event["request_id"]),
            (&"exec".into(), &id.into())
        );
        assert_eq!(
            (&event["state"], &event["exit_code"]),
            (&"exited".into(), &3.into())
        );
        assert!(event["at"].is_string());
    }
    // A second follower needs no second connection.
    let mut other = bench.connect();
    other.write_all(FOLLOW).unwrap();
    let mut other = BufReader::new(other);
    assert_eq!(next(&mut other)["event"], "state");
    say(&mut agent, &end("c")).unwrap();
    assert_eq!(next(&mut other)["request_id"], "c");
    assert_eq!(next(&mut reader)["request_id"], "c");
    assert!(bench.dialled.try_recv().is_err(), "one is enough");
    // The agent that goes away is asked again.
    drop(agent);
    let mut agent = bench.agent();
    subscribe(&mut agent);
    say(&mut agent, &end("d")).unwrap();
    assert_eq!(next(&mut reader)["request_id"], "d");
}

#[test]
fn an_agent_that_tells_nothing_holds_no_follower_up() {
    let bench = Bench::running();
    let begun = Instant::now();
    let mut client = bench.connect();
    client.write_all(FOLLOW).unwrap();
    let mut agent = bench.agent();
    let mut head = [0; 16];
    agent.read_exact(&mut head).unwrap();
    let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    agent.write_all(answer).unwrap();
    assert_eq!(next(&mut BufReader::new(client))["event"], "state");
    // Less than the patience with one that does not answer.
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[test]
fn an_agent_that_lies_or_floods_is_kept_at_bay() {
    let bench = Bench::running();
    let mut client = bench.connect();
    client.write_all(FOLLOW).unwrap();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let long = "x".repeat(5000);
    for lie in [
        long.as_str(),
        "no json\n",
        "{\"exec\":{\"request_id\":\"\\u001b\",\"state\":\"exited\"}}\n",
    ] {
        let mut agent = bench.agent();
        subscribe(&mut agent);
        let _ = say(&mut agent, lie);
        let _ = say(&mut agent, "\n");
        // Its connection is ended, after what of it is in the sockets.
        let mut rest = Vec::new();
        let _ = agent.read_to_end(&mut rest);
        assert_eq!(bench.get("/").0, 200);
    }
    assert_eq!(next(&mut reader)["event"], "state");
    let mut agent = bench.agent();
    subscribe(&mut agent);
    let flood = std::thread::spawn(move || {
        let lines = end("flood").repeat(100);
        let begun = Instant::now();
        let mut said = 0;
        while begun.elapsed() < Duration::from_secs(2) {
            // It ends when nobody takes any more for the time that this socket waits.
            if say(&mut agent, &lines).is_err() {
                break;
            }
            said += 100;
        }
        said
    });
    // Others are answered meanwhile, and what comes through is little.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(bench.get("/").0, 200);
    }
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut told = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        let mut line = String::new();
        if reader.read_line(&mut line).is_ok() && line.contains("flood") {
            told += 1;
        }
    }
    assert!((256..=256 * 5).contains(&told), "{told}");
    client.shutdown(std::net::Shutdown::Both).unwrap();
    drop(bench);
    flood.join().unwrap();
}
