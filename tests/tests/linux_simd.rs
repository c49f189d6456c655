//! Programs of a Linux guest keep all of their registers, whatever interrupts them.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tine_tests::linux::{Guest, argv};
use tine_tests::text;

/// A static program from `programs/NAME.c`.
fn compile(name: &str) -> Vec<u8> {
    let dir = TempDir::new().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let status = Command::new("cc")
        .args(["-static", "-O1", "-s", "-o"])
        .arg(dir.path().join(name))
        .arg(source.join(name).with_extension("c"))
        .status()
        .expect("cc can be started: install a C compiler (gcc)");
    assert!(status.success(), "cc cannot compile {name}");
    std::fs::read(dir.path().join(name)).expect("the program")
}

#[test]
fn vector_registers_survive_other_processes_and_signals() {
    if !is_x86_feature_detected!("avx2") {
        return;
    }
    // Two vCPUs: processes also move from one to the other.
    let guest = Guest::boot(2);
    assert_eq!(guest.out("nproc"), "2");
    let upload = argv(["sh", "-c", "cat >/tmp/simd && chmod +x /tmp/simd"]);
    let uploaded = guest.exec(upload, &compile("simd"));
    assert_eq!(uploaded.record.exit_code, Some(0));
    let ran = guest.sh("/tmp/simd 10");
    let said = text(&ran.stdout);
    assert_eq!(ran.record.exit_code, Some(0), "{said}");
    // The test has seen nothing if no signal came.
    assert!(said.contains(" 3 interrupted"), "{said}");
}
