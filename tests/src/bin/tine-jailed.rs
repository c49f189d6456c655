//! Runs `tine-vmm` in a jail, with its files where they are on the host, so that tests that know
//! nothing of jails can run it: `TINE_JAILED_PROGRAM` is the program, `TINE_JAILED_BASE` where jails
//! are made, and `TINE_JAILED_FILES` names what is shown of the host, separated by blanks.
//!
//! It runs as root without any of root's rights, since the tests' files are root's.

use std::path::PathBuf;

use tine_jailer::{Bind, Config, Host, Network, enter, plan};

fn main() {
    let named = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    // The jailer names the machine: what a test calls it is what the jail is called.
    let id = match arguments.iter().position(|word| word == "--id") {
        Some(place) => arguments.drain(place..place + 2).next_back(),
        None => None,
    };
    let id = id.unwrap_or_else(|| "anonymous-instance".into());
    let id = match id.to_string_lossy().parse() {
        Ok(id) => id,
        Err(err) => {
            eprintln!("--id {err}");
            std::process::exit(2);
        }
    };
    let mut config = Config::new(id, named("TINE_JAILED_PROGRAM").into(), 0, 0);
    // Several tests may call theirs alike.
    config.base = PathBuf::from(named("TINE_JAILED_BASE")).join(std::process::id().to_string());
    std::fs::create_dir(&config.base).expect("a directory for the jail");
    config.network = Network::Host;
    for path in named("TINE_JAILED_FILES").split(' ') {
        config.binds.push(Bind {
            source: PathBuf::from(path),
            target: PathBuf::from(path),
            writable: true,
            owned: false,
        });
    }
    config.arguments = arguments;
    let host = Host::gather(&config.cgroup);
    let plan = plan(&config, &host).unwrap_or_else(|err| panic!("{err}"));
    let note = |text: &str| eprintln!("{text}");
    panic!("{:?}", enter(&plan, &note));
}
