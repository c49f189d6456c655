//! The HTTP and JSON front door on input that somebody made up: whatever comes, each answer is one
//! of HTTP, nothing panics or hangs, and the next client is served. [`fuzz`] is the target: it
//! takes the bytes that a fuzzer makes. Here proptest makes them, out of the description's own
//! examples: requests one behind the other, with other JSON, other headers, other bytes.
//!
//! `TINE_FUZZ=SECONDS,SEED` goes on for longer and from elsewhere.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;
use tine_tests::api::Vmm;
use tine_tests::sandbox::process;

/// How long it goes on in the suite, and from where chance begins.
const SECONDS_AND_SEED: &str = "10,1";

/// Behind this many inputs the process has to answer a sound request, and a new one takes its place
/// once its machine was started: before that, more can be asked for.
const ROUND: usize = 32;

/// What may stand where a value stood.
const VALUES: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1",
    "18446744073709551615",
    "1e999",
    "1.5",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[[[",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"/srv\"",
    "\"/dev/zero\"",
    "\"/srv/fifo\"",
    "\"/srv/disk.img\"",
    "\"/nowhere/x\"",
    "\"../x\"",
    "\"Running\"",
    "\"Paused\"",
    "{\"size\":1}",
];

/// Headers that frame, and that ask for something else.
const HEADERS: &[&str] = &[
    "Content-Length: 0",
    "Content-Length: 1",
    "Content-Length: -1",
    "Content-Length: 99999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Expect: 100-continue",
    "Upgrade: tcp\r\nConnection: Upgrade",
    "Connection: close",
    "Connection: keep-alive",
    "Content-Type: text/plain",
    "Accept: */*",
    "Host:",
    ": no name",
    "X: \u{0}",
    " folded: x",
    "Cookie: a\r\nCookie: b",
];

/// Bytes that mean something where they stand.
const MARKS: &[&[u8]] = &[b"\r\n", b"\r\n\r\n", b"\n", b":", b"\"", b"\0"];

/// One request before anything is wrong with it.
#[derive(Debug, Clone)]
struct Example {
    method: String,
    target: String,
    body: Option<String>,
}

/// The description's own.
fn examples() -> Vec<Example> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vmm/openapi.yaml");
    let all: Value = serde_yaml_ng::from_reader(File::open(path).unwrap()).unwrap();
    let mut examples = Vec::new();
    for (path, item) in all["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            // A stream has no end to wait for.
            if method == "parameters" || operation["x-needs"] == "stream" {
                continue;
            }
            let json = &operation["requestBody"]["content"]["application/json"];
            let id = path.split(['{', '}']).nth(1).unwrap_or_default();
            let example = Example {
                method: method.to_uppercase(),
                target: path.replace(&format!("{{{id}}}"), "eth0"),
                body: json.get("example").map(Value::to_string),
            };
            // Behind these there is less to ask for: they come more seldom.
            let ends = method == "delete" || path == "/actions";
            examples.extend(vec![example; if ends { 1 } else { 12 }]);
        }
    }
    assert!(examples.len() > 500, "{}", examples.len());
    examples
}

/// What becomes of one request.
#[derive(Debug, Clone)]
enum Change {
    /// Another value in the place of the nth one of the body.
    Value { nth: usize, value: &'static str },
    /// A field once more.
    Twice { nth: usize },
    /// A header more, without which the body would be framed well.
    Header(&'static str),
    /// The body in chunks.
    Chunked { size: usize },
    /// A query, or a path that goes on.
    Target(String),
    /// Very much of something.
    Long { what: u8, len: usize },
}

fn change() -> impl Strategy<Value = Change> {
    let nth = 0..40_usize;
    prop_oneof![
        6 => (nth.clone(), prop::sample::select(VALUES))
            .prop_map(|(nth, value)| Change::Value { nth, value }),
        1 => nth.prop_map(|nth| Change::Twice { nth }),
        3 => prop::sample::select(HEADERS).prop_map(Change::Header),
        2 => (1..40_usize).prop_map(|size| Change::Chunked { size }),
        1 => "(\\?[a-z]{1,9}=[ -~]{0,9}|/[ -~]{0,20}|%[0-9a-z]{2})".prop_map(Change::Target),
        1 => (any::<u8>(), 1..40_000_usize).prop_map(|(what, len)| Change::Long { what, len }),
    ]
}

/// What becomes of the bytes of them all.
#[derive(Debug, Clone)]
enum Damage {
    Write { at: usize, bytes: Vec<u8> },
    Insert { at: usize, bytes: Vec<u8> },
    Remove { at: usize, len: usize },
    Copy { from: usize, to: usize, len: usize },
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || 0..4000_usize;
    let bytes = || {
        let few = prop::collection::vec(any::<u8>(), 1..20);
        let telling = prop::sample::select(MARKS);
        prop_oneof![few, telling.prop_map(<[u8]>::to_vec)]
    };
    prop_oneof![
        (at(), bytes()).prop_map(|(at, bytes)| Damage::Write { at, bytes }),
        (at(), bytes()).prop_map(|(at, bytes)| Damage::Insert { at, bytes }),
        (at(), 1..200_usize).prop_map(|(at, len)| Damage::Remove { at, len }),
        (at(), at(), 1..200_usize).prop_map(|(from, to, len)| Damage::Copy { from, to, len }),
    ]
}

impl Damage {
    fn apply(&self, all: &mut Vec<u8>) {
        let clamp = |at: usize| at % (all.len() + 1);
        let end = |at: usize, len: usize| (at + len).min(all.len());
        match self {
            Self::Write { at, bytes } => {
                let at = clamp(*at);
                all.splice(at..end(at, bytes.len()), bytes.iter().copied());
            }
            Self::Insert { at, bytes } => {
                let at = clamp(*at);
                all.splice(at..at, bytes.iter().copied());
            }
            Self::Remove { at, len } => {
                let at = clamp(*at);
                all.drain(at..end(at, *len));
            }
            Self::Copy { from, to, len } => {
                let (from, to) = (clamp(*from), clamp(*to));
                let part = all[from..end(from, *len)].to_vec();
                all.splice(to..to, part);
            }
        }
    }
}

/// Where in JSON text the nth value stands: what follows a colon.
fn value_at(body: &str, nth: usize) -> Option<std::ops::Range<usize>> {
    let colons: Vec<_> = body.match_indices("\":").map(|(at, _)| at + 2).collect();
    let start = *colons.get(nth % colons.len().max(1))?;
    let len = body[start..]
        .find([',', '}', ']'])
        .unwrap_or(body.len() - start);
    Some(start..start + len)
}

/// A request as bytes.
fn write(example: &Example, changes: &[Change]) -> Vec<u8> {
    let Example {
        method,
        mut target,
        body,
    } = example.clone();
    let mut body = body.unwrap_or_default();
    let (mut headers, mut chunks) = (String::new(), None);
    for change in changes {
        match change {
            Change::Value { nth, value } => {
                if let Some(range) = value_at(&body, *nth) {
                    body.replace_range(range, value);
                }
            }
            Change::Twice { nth } => {
                if let Some(range) = value_at(&body, *nth) {
                    let start = body[..range.start].rfind(['{', ',']).map_or(0, |at| at + 1);
                    let field = format!("{},", &body[start..range.end]);
                    body.insert_str(start, &field);
                }
            }
            Change::Header(header) => headers += &format!("{header}\r\n"),
            Change::Chunked { size } => chunks = Some(*size),
            Change::Target(more) => target += more,
            Change::Long { what: 0..64, len } => headers += &format!("X: {}\r\n", "x".repeat(*len)),
            Change::Long { what: 64..128, len } => target += &"x".repeat(*len),
            Change::Long {
                what: 128..192,
                len,
            } => body += &" ".repeat(*len),
            Change::Long { len, .. } => headers += &"X: y\r\n".repeat(len / 100),
        }
    }
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: x\r\n{headers}").into_bytes();
    match chunks {
        None => {
            bytes.extend(format!("Content-Length: {}\r\n\r\n{body}", body.len()).bytes());
        }
        Some(size) => {
            bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in body.as_bytes().chunks(size) {
                bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                bytes.extend(chunk);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\n\r\n");
        }
    }
    bytes
}

/// Bytes, and how many of them are sent at a time.
fn input(examples: Vec<Example>) -> impl Strategy<Value = (Vec<u8>, usize)> {
    let request = (
        prop::sample::select(examples),
        prop::collection::vec(change(), 0..3),
    );
    let requests = prop::collection::vec(request, 1..6);
    let damages = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(damage(), 1..4),
    ];
    let at_once = prop_oneof![Just(usize::MAX), 1..700_usize];
    (requests, damages, at_once).prop_map(|(requests, damages, at_once)| {
        let mut all = Vec::new();
        let last = requests.len() - 1;
        for (nth, (example, mut changes)) in requests.into_iter().enumerate() {
            // The end of the answers to what is sound is told, and not waited for.
            changes.extend((nth == last).then_some(Change::Header("Connection: close")));
            all.extend(write(&example, &changes));
        }
        damages.iter().for_each(|damage| damage.apply(&mut all));
        (all, at_once)
    })
}

/// The target: sends bytes to a process and takes what comes. Gives the number of answers.
fn fuzz(mut stream: UnixStream, bytes: &[u8], at_once: usize) -> usize {
    stream
        .set_write_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(40)))
        .unwrap();
    for part in bytes.chunks(at_once.min(bytes.len().max(1))) {
        // It may have been told to go already.
        if stream.write_all(part).is_err() {
            break;
        }
    }
    let mut answers = Vec::new();
    let mut buffer = [0; 4096];
    let mut ended = false;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answers.extend_from_slice(&buffer[..count]),
            // It waits for more, or takes its time: now nothing more comes.
            Err(err) if err.kind() == ErrorKind::WouldBlock && !ended => {
                ended = true;
                let _ = stream.shutdown(Shutdown::Write);
                stream
                    .set_read_timeout(Some(Duration::from_secs(20)))
                    .unwrap();
            }
            Err(err) if err.kind() == ErrorKind::WouldBlock => panic!("it hangs"),
            Err(_) => break,
        }
    }
    answered(&answers)
}

/// Looks at answers one behind the other: a head with a known status, and a body of its length.
fn answered(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            panic!("no answer: {}", bytes.escape_ascii())
        };
        let head = std::str::from_utf8(&bytes[..end]).expect("a head of text");
        // A client of HTTP/1.0 is answered as one.
        let version = head.strip_prefix("HTTP/1.1 ");
        let version = version.or_else(|| head.strip_prefix("HTTP/1.0 "));
        let status = version.and_then(|rest| rest.get(..3)?.parse().ok());
        let status: u16 = status.expect(head);
        assert!(status < 500 || status == 501 || status == 503, "{head}");
        bytes = &bytes[end + 4..];
        count += 1;
        // What follows an upgrade is another protocol; what has no end is a stream.
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is = name.eq_ignore_ascii_case("content-length");
            is.then(|| value.trim().parse::<usize>().expect(head))
        });
        match length {
            _ if status == 204 || status == 100 => {}
            // The answer to a HEAD has no body.
            Some(_) if bytes.starts_with(b"HTTP/1.") => {}
            Some(length) => bytes = &bytes[length.min(bytes.len())..],
            None => return count,
        }
    }
    count
}

/// The process is there and sound. Says whether it can go on being asked.
fn look(vmm: &mut Vmm, last: &VecDeque<Vec<u8>>) -> bool {
    let start = Instant::now();
    let there = UnixStream::connect(vmm.socket()).is_ok_and(|mut stream| {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut answer = Vec::new();
        let ask = b"GET /v1/machine HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let asked = stream.write_all(ask);
        let told = asked.and_then(|()| stream.read_to_end(&mut answer));
        told.is_ok() && String::from_utf8_lossy(&answer).contains("\"state\":\"created\"")
    });
    assert!(start.elapsed() < Duration::from_secs(10), "{}", shown(last));
    let said = std::fs::read_to_string(vmm.dir.path().join("stderr")).unwrap();
    assert!(!said.contains("panicked"), "{said}{}", shown(last));
    if !there && ends(vmm) {
        // A deletion ends it, and nothing else does.
        let status = vmm.child.wait().unwrap();
        let deleted = last.iter().any(|bytes| contains(bytes, b"DELETE"));
        assert!(
            deleted && status.success(),
            "{status}: {said}{}",
            shown(last)
        );
    }
    there
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}

/// Whether its socket is gone, and the process within a moment.
fn ends(vmm: &mut Vmm) -> bool {
    let start = Instant::now();
    while UnixStream::connect(vmm.socket()).is_err() {
        if vmm.child.try_wait().unwrap().is_some() {
            return true;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no socket");
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Says which input it was that something went wrong by.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("by the input: {}", self.0.escape_ascii());
        }
    }
}

fn shown(last: &VecDeque<Vec<u8>>) -> String {
    let line = |bytes: &Vec<u8>| format!("\n{}", bytes.escape_ascii());
    last.iter().map(line).collect()
}

#[test]
fn whatever_comes_is_answered_or_refused() {
    let asked = std::env::var("TINE_FUZZ").unwrap_or_else(|_| SECONDS_AND_SEED.to_owned());
    let (seconds, seed) = asked.split_once(',').expect("SECONDS,SEED");
    let (seconds, seed): (u64, u64) = (seconds.parse().unwrap(), seed.parse().unwrap());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = input(examples());
    let start = Instant::now();
    let (mut inputs, mut answers, mut processes) = (0_usize, 0, 1);
    let mut vmm = process();
    let mut last = VecDeque::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..ROUND {
            let (bytes, at_once) = strategy.new_tree(&mut runner).unwrap().current();
            last.push_back(bytes);
            last.drain(..last.len().saturating_sub(ROUND));
            let bytes = last.back().unwrap();
            let Ok(stream) = UnixStream::connect(vmm.socket()) else {
                break;
            };
            let _shown = Shown(bytes);
            answers += fuzz(stream, bytes, at_once);
            inputs += 1;
        }
        if !look(&mut vmm, &last) {
            vmm = process();
            processes += 1;
            last.clear();
        }
    }
    println!("{inputs} inputs, {answers} answers, {processes} processes");
    assert!(
        inputs >= 100 && answers > inputs,
        "{inputs} inputs, {answers} answers"
    );
}
