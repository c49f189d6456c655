//! What an agent says to those who ask it, when its guest is hostile: an input is its answer, to one of
//! each request that there is. The clients get answers, with nothing in their heads that was not let
//! through; nothing panics, and the next client is served.

#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use libfuzzer_sys::fuzz_target;
use tine_fuzz::bounded::Bounded;
use tine_fuzz::server::{self, Place, ask, hear};

#[global_allocator]
static ALLOCATOR: Bounded<{ 16 << 20 }> = Bounded;

/// What is asked for.
const ASKED: [&str; 13] = [
    "POST /v1/exec HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "POST /v1/exec HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: tine-stream/1\r\nContent-Length: 2\r\n\r\n{}",
    "POST /v1/exec/x/attach HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: tine-stream/1\r\n\r\n",
    "POST /v1/ports/80 HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: tine-raw/1\r\n\r\n",
    "GET /v1/exec/x?wait=1s HTTP/1.1\r\n\r\n",
    "DELETE /v1/exec/x HTTP/1.1\r\n\r\n",
    "GET /v1/files/content?path=/x HTTP/1.1\r\nRange: bytes=1-\r\n\r\n",
    "PUT /v1/files/content?path=/x HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
    "GET /v1/files/tar?path=/x HTTP/1.1\r\n\r\n",
    "GET /v1/files/watch?path=/x HTTP/1.1\r\n\r\n",
    "GET /v1/processes HTTP/1.0\r\n\r\n",
    "HEAD /v1/health HTTP/1.1\r\n\r\n",
    "GET /v1/health HTTP/1.1\r\n\r\n",
];
/// What is asked for beside them, and has no end.
const FOLLOWED: &str = "GET /v1/events HTTP/1.1\r\n\r\n";

/// Of the heads that clients get.
const PASS: [&str; 8] = [
    "accept-ranges",
    "allow",
    "connection",
    "content-length",
    "content-range",
    "content-type",
    "transfer-encoding",
    "upgrade",
];

const ANSWERS: [&str; 8] = [
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: y\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: tine-stream/1\r\n\r\n\
     \x01\0\0\0\0\0\0\x02hi\x03\0\0\0\0\0\0\x02{}",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: tine-raw/1\r\n\r\nhi",
    "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-2/3\r\nAccept-Ranges: bytes\r\n\r\nhi",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nSet-Cookie: x\r\n\r\n",
    "HTTP/1.1 404 Not Found\r\nContent-Length: 31\r\n\r\n{\"error\":\"x\",\"message\":\"nothing\"}",
    "HTTP/1.0 200 OK\r\n\r\n",
];

thread_local! {
    static PLACE: Place = Place::new();
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = ANSWERS.map(|answer| answer.as_bytes().to_vec()).to_vec();
    let lines = [
        r#"{"exec":{"request_id":"x","state":"exited","exit_code":0,"signal":null}}"#,
        r#"{"restored":{"generation":1}}"#,
        r#"{"warning":{"kind":"memory","available_bytes":1,"total_bytes":2}}"#,
    ];
    seeds.push(format!("HTTP/1.1 200 OK\r\n\r\n{}\n", lines.join("\n")).into_bytes());
    seeds
}

fn run(place: &Place, data: &[u8]) {
    let (dial, dialled) = server::agent();
    let server = place.serve(Some(dial));
    let agent = std::thread::spawn({
        let words = data.to_vec();
        // Until the server ends, which then makes no more connections.
        move || {
            std::thread::scope(|scope| {
                for stream in dialled {
                    scope.spawn(|| answer(stream, &words));
                }
            })
        }
    });
    let mut follower = place.connect();
    ask(&mut follower, FOLLOWED.as_bytes());
    // All at once, as some are waited for.
    let clients = ASKED.map(|asked| {
        let mut client = place.connect();
        ask(&mut client, asked.as_bytes());
        client
    });
    for mut client in clients {
        if let Some(answer) = hear(&mut client) {
            look_at(&answer);
        }
    }
    drop(follower);
    place.end(server);
    agent.join().expect("an end in good order");
}

fn answer(mut stream: UnixStream, words: &[u8]) {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head).expect("a request, or the end");
    let _ = stream.write_all(words);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Nothing in the answer's head was put there by the guest but what may be.
fn look_at(answer: &[u8]) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let head = &answer[..end.expect("an answer")];
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let shown = || head.escape_ascii();
    assert!(
        first.starts_with(b"HTTP/1.1 ") || first.starts_with(b"HTTP/1.0 "),
        "{}",
        shown()
    );
    for line in lines {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        assert!(PASS.contains(&name.as_str()), "{}", shown());
    }
}

fuzz_target!(
    init: tine_fuzz::begin(seeds),
    |data: &[u8]| PLACE.with(|place| run(place, data))
);
