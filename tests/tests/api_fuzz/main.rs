//! The HTTP and JSON front door on input that somebody made up: whatever comes, each answer is one
//! of HTTP, nothing panics or hangs, and the next client is served. Here proptest makes the input, for
//! a real process, out of the description's own examples: requests one behind the other, with other
//! JSON, other headers, other bytes. (`fuzz/` has a target that is guided by coverage.)
//!
//! `TINE_FUZZ=SECONDS,SEED` goes on for longer and from elsewhere.

mod answers;
mod examples;
mod input;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tine_tests::api::Vmm;
use tine_tests::sandbox::process;

/// How long it goes on in the suite, and from where chance begins.
const SECONDS_AND_SEED: &str = "10,1";

/// Behind this many inputs the process has to answer a sound request, and a new one takes its place
/// once its machine was started: before that, more can be asked for.
const ROUND: usize = 32;

/// Sends bytes to a process and takes what comes. Gives the number of answers.
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
    answers::count(&answers)
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
    let strategy = input::inputs(examples::all());
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
