//! An agent that answers well, late, wrongly or not at all.

use std::io::{Read, Write};
use std::thread;

use super::*;

const EXEC: &[u8] =
    b"POST /v1/exec HTTP/1.1\r\nX-Evil: 1\r\nCookie: a\r\nContent-Type: application/json\r\n\
    Content-Length: 2\r\n\r\n{}";
const STREAM: &[u8] =
    b"POST /v1/exec HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: tine-stream/1\r\n\
    Content-Length: 2\r\n\r\n{}";

/// Reads a request up to the end of its head and `body` bytes more.
fn request(agent: &mut UnixStream, body: usize) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        agent.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let mut rest = vec![0; body];
    agent.read_exact(&mut rest).unwrap();
    bytes.extend(rest);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn without_an_agent_the_answer_names_the_state() {
    let bench = Bench::new();
    for path in ["/v1/exec", "/v1/files/stat?path=/", "/v1/processes"] {
        let (status, body) = bench.get(path);
        assert_eq!(status, 409);
        assert!(body.contains(r#""state":"created""#), "{body}");
    }
}

#[test]
fn known_headers_pass_and_others_stay_behind() {
    let bench = Bench::running();
    let mut client = bench.connect();
    client.write_all(EXEC).unwrap();
    let mut agent = bench.agent();
    let seen = request(&mut agent, 2).to_ascii_lowercase();
    assert!(seen.starts_with("post /v1/exec http/1.1\r\n"), "{seen}");
    assert!(seen.contains("content-type: application/json"), "{seen}");
    assert!(!seen.contains("evil") && !seen.contains("cookie"), "{seen}");
    let reply = b"HTTP/1.1 200 OK\r\nSet-Cookie: b\r\nContent-Type: application/json\r\n\
        Content-Length: 2\r\n\r\n{}";
    agent.write_all(reply).unwrap();
    let mut text = vec![0; 4096];
    let len = client.read(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text[..len]).to_ascii_lowercase();
    assert!(
        text.starts_with("http/1.1 200") && text.ends_with("{}"),
        "{text}"
    );
    assert!(!text.contains("cookie"), "{text}");
}

#[test]
fn a_connection_to_the_agent_serves_many_requests() {
    let bench = Bench::running();
    let mut agent = None;
    for _ in 0..5 {
        let mut client = bench.connect();
        client
            .write_all(b"GET /v1/processes HTTP/1.1\r\n\r\n")
            .unwrap();
        let agent = agent.get_or_insert_with(|| bench.agent());
        request(agent, 0);
        agent
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
            .unwrap();
        assert_eq!(answer(&mut client), (200, "[]".to_owned()));
        // The connection comes back when the answer is through, a moment later.
        thread::sleep(Duration::from_millis(20));
    }
    assert!(bench.dialled.try_recv().is_err(), "one is enough");
}

#[test]
fn lies_of_the_agent_are_errors_for_the_one_who_asked() {
    let flood = ["HTTP/1.1 200 OK\r\n", &"X-Flood: yes\r\n".repeat(50_000)].concat();
    let long = ["HTTP/1.1 200 OK\r\nX: ", &"y".repeat(1 << 20)].concat();
    for lie in [
        "no HTTP at all\r\n\r\n",
        "HTTP/1.1 99999 X\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "",
        &flood,
        &long,
    ] {
        let bench = Bench::running();
        let mut client = bench.connect();
        client.write_all(EXEC).unwrap();
        let mut agent = bench.agent();
        request(&mut agent, 2);
        // It may be cut off before it has said all.
        let _ = agent.write_all(lie.as_bytes());
        drop(agent);
        let (status, body) = answer(&mut client);
        assert_eq!(status, 502, "{:?}: {body}", &lie[..lie.len().min(60)]);
        assert_eq!(bench.get("/").0, 200);
    }
}

#[test]
fn the_end_of_the_machine_ends_those_who_wait_at_once() {
    let bench = Bench::running();
    let mut waiting: Vec<_> = (0..5).map(|_| bench.connect()).collect();
    let mut agents = Vec::new();
    for client in &mut waiting {
        client.write_all(EXEC).unwrap();
        agents.push(bench.agent());
    }
    let reason = "the guest's kernel panicked".to_owned();
    bench.handle.pretend(State::Failed, Some(reason));
    for client in &mut waiting {
        let (status, body) = answer(client);
        assert_eq!(status, 409);
        assert!(
            body.contains("panicked") && body.contains("failed"),
            "{body}"
        );
    }
}

#[test]
fn streams_pass_both_ways_and_so_does_each_sides_end() {
    let bench = Bench::running();
    let mut client = bench.connect();
    client.write_all(STREAM).unwrap();
    let mut agent = bench.agent();
    assert!(
        request(&mut agent, 2)
            .to_ascii_lowercase()
            .contains("upgrade: tine-stream/1")
    );
    agent
        .write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
            Upgrade: tine-stream/1\r\n\r\nearly",
        )
        .unwrap();
    let (status, early) = answer(&mut client);
    assert_eq!(status, 101);
    let mut rest = vec![0; 5 - early.len()];
    client.read_exact(&mut rest).unwrap();
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&bytes).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        agent.read_to_end(&mut got).unwrap();
        assert!(got == bytes, "{} bytes", got.len());
        // The client has said all, and still hears.
        agent.write_all(b"bye").unwrap();
    });
    drop(agent);
    let mut end = String::new();
    client.read_to_string(&mut end).unwrap();
    assert_eq!(end, "bye");
}

#[test]
fn a_client_that_leaves_a_stream_takes_its_connection_along() {
    let bench = Bench::running();
    let mut client = bench.connect();
    client.write_all(STREAM).unwrap();
    let mut agent = bench.agent();
    request(&mut agent, 2);
    let reply = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
        Upgrade: tine-stream/1\r\n\r\n";
    agent.write_all(reply).unwrap();
    assert_eq!(answer(&mut client).0, 101);
    drop(client);
    let mut end = [0];
    assert_eq!(agent.read(&mut end).unwrap(), 0);
    let start = std::time::Instant::now();
    while agent.write_all(b"output").is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_slow_client_slows_the_agent_down() {
    let bench = Bench::running();
    let mut client = bench.connect();
    client
        .write_all(b"GET /v1/files/content?path=/x HTTP/1.1\r\n\r\n")
        .unwrap();
    let mut agent = bench.agent();
    request(&mut agent, 0);
    agent
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        .unwrap();
    agent
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut sent = 0;
    while let Ok(len) = agent.write(&[7; 64 << 10]) {
        sent += len;
        assert!(sent < 8 << 20, "nobody reads, and {sent} bytes were taken");
    }
    assert_eq!(bench.get("/").0, 200);
    drop(client);
}

#[test]
fn a_client_that_has_gone_gives_up_its_place_and_one_that_has_said_all_does_not() {
    let bench = Bench::running();
    let ask = || {
        let mut client = bench.connect();
        client.write_all(EXEC).unwrap();
        let mut agent = bench.agent();
        let mut byte = [0];
        let mut head = Vec::new();
        while !head.ends_with(b"{}") {
            agent.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        (client, agent)
    };
    let (client, mut agent) = ask();
    drop(client);
    let mut rest = Vec::new();
    agent
        .read_to_end(&mut rest)
        .expect("the end, while the command still runs");
    let (mut client, mut agent) = ask();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    agent
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    assert!(agent.read(&mut [0]).is_err(), "it is still waited for");
    agent
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        .unwrap();
    assert_eq!(answer(&mut client), (200, "hi".to_owned()));
}
