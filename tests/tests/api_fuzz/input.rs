//! What is sent: the description's own examples, one behind the other, with other values, headers,
//! framing and bytes.

use proptest::prelude::*;

use crate::examples::Example;

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
pub fn inputs(examples: Vec<Example>) -> impl Strategy<Value = (Vec<u8>, usize)> {
    let often = |example: Example| vec![example.clone(); if example.ends() { 1 } else { 12 }];
    let examples: Vec<_> = examples.into_iter().flat_map(often).collect();
    assert!(examples.len() > 500, "{}", examples.len());
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
