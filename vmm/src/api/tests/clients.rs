//! Clients that are slow, wrong or many.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use super::*;
use crate::api::{MAX_CONNECTIONS, MAX_HEADERS};

/// Field case 43.
#[test]
fn a_target_that_is_no_path_is_a_bad_request() {
    let bench = Bench::new();
    for target in ["none", "http://none/", "*"] {
        let (status, body) = bench.send(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(status, 400, "{target}: {body}");
    }
    for nonsense in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut stream = bench.connect();
        stream.write_all(nonsense).unwrap();
        assert!(matches!(answer(&mut stream).0, 0 | 400), "{nonsense:?}");
    }
    assert_eq!(bench.get("/").0, 200);
}

/// Field case 45.
#[test]
fn a_client_that_owes_half_its_body_waits_alone() {
    let bench = Bench::new();
    let mut slow = bench.connect();
    let head = b"PUT /machine-config HTTP/1.1\r\nContent-Length: 20\r\n\r\n{\"vcpu_co";
    slow.write_all(head).unwrap();
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(bench.get("/").0, 200);
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    slow.write_all(b"unt\":\"many\"}").unwrap();
    assert_eq!(answer(&mut slow).0, 400);
}

#[test]
fn requests_in_one_piece_are_answered_in_order() {
    let bench = Bench::new();
    let mut stream = bench.connect();
    let one = "GET /version HTTP/1.1\r\n\r\nGET /nope HTTP/1.1\r\n\r\n";
    let last = "GET /machine-config HTTP/1.1\r\nConnection: close\r\n\r\n";
    stream
        .write_all((one.repeat(20) + last).as_bytes())
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let codes: Vec<_> = text
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|part| &part[..3])
        .collect();
    assert_eq!(codes.len(), 41);
    assert_eq!(codes[..4], ["200", "400", "200", "400"]);
    assert!(text.ends_with("\"huge_pages\":\"None\"}"));
}

#[test]
fn a_connection_of_http_1_0_is_kept_for_the_known_api_alone() {
    let bench = Bench::new();
    let mut stream = bench.connect();
    for _ in 0..3 {
        stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(answer(&mut stream).0, 200);
        let put = b"PUT /machine-config HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(put).unwrap();
        assert_eq!(answer(&mut stream).0, 400);
    }
    let mut stream = bench.connect();
    stream
        .write_all(b"GET /v1/machine HTTP/1.0\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 200"), "{text}");
}

#[test]
fn a_client_that_says_no_more_still_gets_its_answer() {
    let bench = Bench::new();
    let mut stream = bench.connect();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answer(&mut stream).0, 200);
}

#[test]
fn heads_and_bodies_have_limits() {
    let bench = Bench::new();
    let many = "X: y\r\n".repeat(MAX_HEADERS + 1);
    let (status, _) = bench.send(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes());
    assert_eq!(status, 431);
    let mut stream = bench.connect();
    // The server may close before all is written.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nX: ");
    let _ = stream.write_all(&[b'x'; 64 << 10]);
    let mut first = [0; 12];
    if stream.read_exact(&mut first).is_ok() {
        assert_eq!(&first, b"HTTP/1.1 431");
    }
    // Who is refused while sending may send the rest, and sees the answer.
    let mut stream = bench.connect();
    let length = 4 << 20;
    let head = format!("PUT /v1/nothing HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (status, _) = answer(&mut stream);
    assert_eq!(status, 404);
    stream.write_all(&vec![b'x'; length]).unwrap();
    assert_eq!(
        stream.read(&mut [0]).unwrap(),
        0,
        "it is not served any further"
    );
    drop(stream);
    for head in ["Content-Length: 70000", "Transfer-Encoding: chunked"] {
        let mut stream = bench.connect();
        let body = "x".repeat(70_000);
        let body = match head.starts_with('T') {
            true => format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
            false => body,
        };
        let request = format!("PUT /actions HTTP/1.1\r\n{head}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let (status, body) = answer(&mut stream);
        assert_eq!(status, 413, "{head}");
        assert!(body.contains("65536 bytes"), "{body}");
    }
}

#[test]
fn a_head_with_two_meanings_is_refused() {
    let bench = Bench::new();
    let both = "PUT /actions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!";
    assert_eq!(bench.send(both.as_bytes()).0, 400);
    assert_eq!(bench.get("/").0, 200);
}

#[test]
fn the_connection_that_rested_longest_makes_room() {
    let bench = Bench::new();
    let mut resting: Vec<_> = (0..MAX_CONNECTIONS).map(|_| bench.connect()).collect();
    for stream in &mut resting {
        stream.write_all(b"GET /version HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(answer(stream).0, 200);
    }
    assert_eq!(bench.get("/").0, 200);
    let mut end = [0];
    assert_eq!(resting[0].read(&mut end).unwrap(), 0, "the first one goes");
    let last = resting.last_mut().unwrap();
    last.write_all(b"GET /version HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(answer(last).0, 200, "the last one stays");
}

#[test]
fn connections_cut_anywhere_leave_nothing_behind() {
    let bench = Bench::new();
    let whole = b"PUT /machine-config HTTP/1.1\r\nContent-Length: 36\r\n\r\n\
        {\"vcpu_count\":1,\"mem_size_mib\":1024}GET /v1/events HTTP/1.1\r\n\r\n";
    for round in 0..300 {
        let mut stream = bench.connect();
        stream.write_all(&whole[..round % whole.len()]).unwrap();
        if round % 3 == 0 {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
    let start = Instant::now();
    let open = || {
        let counters = bench.handle.counters();
        counters
            .connections
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    while open() > 1 {
        assert!(start.elapsed() < Duration::from_secs(5), "{} open", open());
        bench.get("/");
    }
}
