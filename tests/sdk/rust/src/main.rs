//! Runs a machine's life by a published SDK: boot, pause, resume, snapshot, load.
//!
//! `SCENARIO VMM DIR KERNEL [INITRD]`: the program to start in the place of Firecracker, an empty
//! directory for its files, and what to boot. Nothing else tells an SDK that this is another monitor.

mod by_fctools;
mod by_firecracker_rs_sdk;
mod letters;

use std::path::PathBuf;

/// What can go wrong in an SDK, in words.
type Error = Box<dyn std::error::Error>;

/// What all scenarios need.
struct Setting {
    vmm: PathBuf,
    dir: PathBuf,
    kernel: PathBuf,
    initrd: Option<PathBuf>,
}

impl Setting {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let mut next = |name: &str| args.next().ok_or(format!("an argument is missing: {name}"));
    let scenario = next("SCENARIO")?;
    let setting = Setting {
        vmm: next("VMM")?.into(),
        dir: next("DIR")?.into(),
        kernel: next("KERNEL")?.into(),
        initrd: next("INITRD").ok().map(PathBuf::from),
    };
    match scenario.as_str() {
        "fctools" => by_fctools::snapshot_of_linux(&setting),
        "fctools-json" => by_fctools::boot_by_a_json_file(&setting),
        "firecracker-rs-sdk" => by_firecracker_rs_sdk::snapshot(&setting),
        other => Err(format!("there is no scenario {other:?}").into()),
    }
}

/// Says how far it is.
fn step(words: &str) {
    println!("step: {words}");
}
