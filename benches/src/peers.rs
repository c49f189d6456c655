//! Other monitors, by their public command lines. A line of [`KNOWN`] and a small function are
//! all that a monitor needs to take part.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::json;

use crate::guest::Reset;

/// The machine that a monitor is asked for: one vCPU, no devices but COM1 on standard output.
pub struct Machine<'a> {
    /// The guest, an ELF file.
    pub kernel: &'a Path,
    /// Memory in MiB.
    pub memory: u64,
    /// A directory for what the monitor has to be told in a file.
    pub dir: &'a Path,
}

/// A monitor whose command line is known.
pub struct Known {
    name: &'static str,
    /// How a guest ends this monitor's process.
    reset: Reset,
    arguments: fn(&Machine) -> io::Result<Vec<OsString>>,
}

/// Tine itself, through the same door as everyone else.
pub const TINE: Known = Known {
    name: "tine",
    reset: Reset::Keyboard,
    arguments: tine,
};

const KNOWN: [Known; 3] = [
    Known {
        name: "firecracker",
        reset: Reset::Keyboard,
        arguments: firecracker,
    },
    Known {
        name: "cloud-hypervisor",
        reset: Reset::Keyboard,
        arguments: cloud_hypervisor,
    },
    Known {
        name: "qemu",
        // Its microvm has no keyboard controller; with -no-reboot a triple fault ends it.
        reset: Reset::TripleFault,
        arguments: qemu,
    },
];

fn tine(machine: &Machine) -> io::Result<Vec<OsString>> {
    let memory = format!("{}M", machine.memory);
    let mut arguments = words(&["run", "--console", "stdout", "--vcpus", "1", "--memory"]);
    arguments.extend([memory.into(), "--kernel".into(), machine.kernel.into()]);
    Ok(arguments)
}

fn firecracker(machine: &Machine) -> io::Result<Vec<OsString>> {
    let config = json!({
        "boot-source": { "kernel_image_path": machine.kernel },
        "drives": [],
        "machine-config": { "vcpu_count": 1, "mem_size_mib": machine.memory },
    });
    let path = machine.kernel.with_extension("firecracker.json");
    let path = machine.dir.join(path.file_name().unwrap_or_default());
    fs::write(&path, config.to_string())?;
    let mut arguments = words(&["--no-api", "--level", "Off", "--config-file"]);
    arguments.push(path.into());
    Ok(arguments)
}

fn cloud_hypervisor(machine: &Machine) -> io::Result<Vec<OsString>> {
    let memory = format!("size={}M", machine.memory);
    let mut arguments = words(&["--serial", "tty", "--console", "off", "--cpus", "boot=1"]);
    arguments.extend(["--memory".into(), memory.into()]);
    arguments.extend(["--kernel".into(), machine.kernel.into()]);
    Ok(arguments)
}

fn qemu(machine: &Machine) -> io::Result<Vec<OsString>> {
    let mut arguments = words(&["-M", "microvm,pit=off,pic=off,rtc=off", "-accel", "kvm"]);
    arguments.extend(words(&["-nodefaults", "-no-user-config", "-no-reboot"]));
    arguments.extend(words(&[
        "-serial", "stdio", "-display", "none", "-smp", "1",
    ]));
    arguments.extend(["-m".into(), machine.memory.to_string().into()]);
    arguments.extend(["-kernel".into(), machine.kernel.into()]);
    Ok(arguments)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// How the command line of a monitor is made.
#[derive(Clone)]
enum Style {
    Known(&'static Known),
    /// Words with `{kernel}` and `{memory}` in them.
    Template(Vec<String>),
}

/// A monitor to compare with.
#[derive(Clone)]
pub struct Peer {
    /// What it is called in reports.
    pub name: String,
    /// Its program.
    pub program: PathBuf,
    style: Style,
}

impl Peer {
    /// The monitor `known`, whose program is `program`.
    pub fn known(known: &'static Known, program: PathBuf) -> Self {
        Self {
            name: known.name.to_owned(),
            program,
            style: Style::Known(known),
        }
    }

    /// The name that the monitor is known by, if it is.
    pub fn known_as(&self) -> Option<&'static str> {
        match &self.style {
            Style::Known(known) => Some(known.name),
            Style::Template(_) => None,
        }
    }

    /// How a guest ends the monitor's process.
    pub fn reset(&self) -> Reset {
        match &self.style {
            Style::Known(known) => known.reset,
            Style::Template(_) => Reset::Keyboard,
        }
    }

    /// The arguments for `machine`. May write files to its directory.
    pub fn arguments(&self, machine: &Machine) -> io::Result<Vec<OsString>> {
        match &self.style {
            Style::Known(known) => (known.arguments)(machine),
            Style::Template(words) => Ok(words.iter().map(|word| fill(word, machine)).collect()),
        }
    }

    /// Whether the program can be asked for `--version`.
    pub fn tells_version(&self) -> bool {
        matches!(self.style, Style::Known(_))
    }
}

fn fill(word: &str, machine: &Machine) -> OsString {
    let memory = machine.memory.to_string();
    let mut filled = OsString::new();
    for (number, part) in word.split("{kernel}").enumerate() {
        if number > 0 {
            filled.push(machine.kernel);
        }
        filled.push(part.replace("{memory}", &memory));
    }
    filled
}

/// Understands NAME=PATH and NAME='COMMAND LINE'. Words of a command line are separated by
/// blanks, and there is no quoting.
pub fn parse(text: &str) -> Result<Peer, String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, value)| !name.is_empty() && !value.trim().is_empty())
        .ok_or("NAME=PATH or NAME='COMMAND LINE' is needed")?;
    if name.starts_with("tine") {
        return Err("a name that starts with \"tine\" would be mistaken for Tine's".to_owned());
    }
    if value.contains("{kernel}") {
        let mut words = value.split_whitespace().map(str::to_owned);
        let program = words.next().ok_or("the command line is empty")?;
        return Ok(Peer {
            name: name.to_owned(),
            program: program.into(),
            style: Style::Template(words.collect()),
        });
    }
    match KNOWN.iter().find(|known| known.name == name) {
        Some(known) => Ok(Peer::known(known, value.into())),
        None => {
            let known: Vec<_> = KNOWN.iter().map(|known| known.name).collect();
            Err(format!(
                "{name} is none of {}: give its command line, with {{kernel}} and {{memory}}",
                known.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(peer: &str, dir: &Path) -> Vec<String> {
        let machine = Machine {
            kernel: &dir.join("hello.elf"),
            memory: 128,
            dir,
        };
        let arguments = parse(peer).unwrap().arguments(&machine).unwrap();
        let lossy = |word: OsString| word.to_string_lossy().into_owned();
        arguments.into_iter().map(lossy).collect()
    }

    #[test]
    fn a_template_is_filled_in() {
        let line = "x=/opt/my-vmm -k file={kernel} -m {memory}M";
        let arguments = arguments(line, Path::new("/d"));
        assert_eq!(arguments, ["-k", "file=/d/hello.elf", "-m", "128M"]);
        assert_eq!(parse(line).unwrap().program, Path::new("/opt/my-vmm"));
    }

    #[test]
    fn firecracker_gets_a_configuration_file() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = arguments("firecracker=/bin/fc", dir.path());
        let config = fs::read(arguments.last().unwrap()).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(config["machine-config"]["mem_size_mib"], 128);
        assert_eq!(config["drives"], json!([]));
    }

    #[test]
    fn every_known_monitor_is_told_kernel_and_memory() {
        for name in ["cloud-hypervisor", "qemu"] {
            let line = arguments(&format!("{name}=/bin/x"), Path::new("/d")).join(" ");
            assert!(
                line.contains("/d/hello.elf") && line.contains("128"),
                "{line}"
            );
        }
    }

    #[test]
    fn what_makes_no_peer_is_refused() {
        for text in [
            "",
            "x",
            "=x",
            "x=",
            "x= ",
            "unheard-of=/bin/x",
            "tine=/bin/tine",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
