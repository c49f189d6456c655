//! Writers that are killed: whatever the moment, what was flushed is there, and the image is whole
//! again when it is opened to be written. The writer is this program once more, as a child.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

const DIRECTORY: &str = "TINE_TEST_LAYERS";

/// How many clusters a round of the writer's covers, each with the round's number in it.
const ROUND: u64 = SIZE / CLUSTER;

/// Writes round after round, each flushed, with discards that make it use clusters again.
fn write_for_ever(dir: &Path) {
    let layers = vec![
        Layer::open(&dir.join("base.raw"), Format::Raw).unwrap(),
        Layer::open_writable(&dir.join("layer-1.qcow2"), Format::Qcow2).unwrap(),
    ];
    let mut chain = Chain::open(layers).unwrap();
    for round in 1_u64.. {
        for n in 0..ROUND {
            let offset = (n * 17 % ROUND) * CLUSTER;
            if (n + round) % 5 == 0 {
                chain.discard(offset, CLUSTER).unwrap();
            }
            chain
                .write(&round.to_le_bytes().repeat(512), offset + 4096)
                .unwrap();
        }
        chain.flush().unwrap();
        println!("round {round}");
    }
}

#[test]
fn a_killed_writer_loses_nothing_that_it_flushed() {
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        write_for_ever(dir.as_ref());
    }
    let stack = Stack::new(1);
    for kill in 0..25_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "layers::kill::a_killed_writer_loses_nothing_that_it_flushed",
            ])
            .arg("--nocapture")
            .env(DIRECTORY, stack.dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut flushed = 0;
        let mut note = |line: String| {
            if let Some(round) = line.strip_prefix("round ") {
                flushed = round.parse().unwrap();
            }
        };
        while !lines
            .by_ref()
            .next()
            .unwrap()
            .unwrap()
            .starts_with("round ")
        {}
        // Any moment will do: there is no event to wait for.
        std::thread::sleep(std::time::Duration::from_micros(kill * 3571 % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.map_while(Result::ok).for_each(&mut note);
        // Whoever opens it to be written makes it whole.
        let chain = stack.open();
        for n in 0..ROUND {
            let mut bytes = [0; 4096];
            chain.read(&mut bytes, n * CLUSTER + 4096).unwrap();
            let round = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            // It may have got further than it said; a cluster that it just discarded is zeroes.
            assert!(
                round == 0 || round >= flushed,
                "cluster {n}: {round}, not {flushed}"
            );
            assert!(bytes.chunks(8).all(|part| part == round.to_le_bytes()));
        }
        drop(chain);
        assert_clean(stack.top());
    }
}

#[test]
fn a_writer_that_never_flushed_leaves_a_whole_image() {
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        let dir: &Path = dir.as_ref();
        let base = dir.join("base.raw");
        let top = overlay(&dir.join("layer-1.qcow2"), &base, Format::Raw);
        let layers = vec![Layer::open(&base, Format::Raw).unwrap(), top];
        let mut chain = Chain::open(layers).unwrap();
        for n in 0..ROUND {
            chain.write(&[7; 4096], n * CLUSTER).unwrap();
        }
        std::process::abort();
    }
    let mut stack = Stack::new(0);
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "layers::kill::a_writer_that_never_flushed_leaves_a_whole_image",
        ])
        .env(DIRECTORY, stack.dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
    stack.layers.push(stack.dir.path().join("layer-1.qcow2"));
    // QEMU sees reference counts that are too low; after a writer has opened it there are none.
    assert!(
        !qemu_img(&["check"], &[stack.top()]).0,
        "there was nothing to repair"
    );
    drop(stack.open());
    assert_clean(stack.top());
    let mut chain = stack.open();
    stack.disk = read_all(&chain);
    for n in 0..20 {
        stack.write(&mut chain, n * 3 * CLUSTER + 1024, 8192, n);
    }
    drop(chain);
    stack.assert_right();
}
