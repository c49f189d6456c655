//! Assembles the guests that drive devices: `bare/NAME.S` becomes an ELF kernel of a few hundred
//! bytes. They are part of the program: it needs no assembler when it runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=bare");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for entry in fs::read_dir("bare").expect("the directory of guests") {
        let source = entry.expect("a directory entry").path();
        if source.extension().is_some_and(|extension| extension == "S") {
            let name = source.file_stem().expect("a file name");
            assemble(&source, &out.join(name).with_extension("elf"));
        }
    }
}

fn assemble(source: &Path, target: &Path) {
    // The C compiler is there wherever Rust links programs.
    let status = Command::new("cc")
        .args(["-nostdlib", "-static", "-no-pie", "-Ibare", "-Wa,-Ibare"])
        .args([
            "-Wl,--build-id=none",
            "-Wl,-z,noexecstack",
            "-Wl,-T,bare/guest.ld",
        ])
        .arg(source)
        .arg("-o")
        .arg(target)
        .status()
        .expect("cc can be started: install a C compiler (gcc)");
    assert!(status.success(), "cc cannot assemble {}", source.display());
}
