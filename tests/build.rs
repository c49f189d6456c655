//! Assembles the bare-metal guests: `guests/NAME.S` becomes an ELF kernel of a few hundred bytes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=guests");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut sources: Vec<_> = fs::read_dir("guests")
        .expect("the guests directory")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "S"))
        .collect();
    sources.sort();
    for source in sources {
        let name = source.file_stem().expect("a file name");
        assemble(&source, &out.join(name).with_extension("elf"));
    }
    println!("cargo::rustc-env=TINE_GUESTS={}", out.display());
}

fn assemble(source: &Path, target: &Path) {
    // The C compiler is there wherever Rust links programs.
    let status = Command::new("cc")
        .args([
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,-z,noexecstack",
        ])
        .arg("-Wl,-T,guests/guest.ld")
        .arg(source)
        .arg("-o")
        .arg(target)
        .status()
        .expect("cc can be started: install a C compiler (gcc)");
    assert!(status.success(), "cc cannot assemble {}", source.display());
}
