//! How the agent is to behave: from its arguments, or as PID 1 from the kernel's command line.

use tine_guest_agent::{AGENT_PORT, HELLO_PORT};

use super::effects::Effects;
use super::exec::store::Limits;

/// Where to listen or connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Vsock(u32),
    Unix(String),
}

/// Everything that can be chosen.
#[derive(Debug, Clone)]
pub struct Config {
    /// The agent is PID 1 and ends the machine when it ends.
    pub init: bool,
    pub listen: Endpoint,
    pub hello: Option<Endpoint>,
    /// Directory for the commands' control groups.
    pub cgroup: String,
    pub limits: Limits,
    pub effects: Effects,
    /// Off is done by a reset, for monitors that have no other way.
    pub off_by_reset: bool,
}

/// What only PID 1 needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootWords {
    /// The block device that becomes the root.
    pub root: Option<String>,
    pub root_type: Option<String>,
    pub root_read_only: bool,
    /// Seconds to wait for the device.
    pub root_wait: Option<u32>,
    pub hostname: Option<String>,
}

const USAGE: &str = "usage: tine-agent --listen vsock[:PORT]|unix:PATH [--hello vsock[:PORT]|unix:PATH] \
                     [--cgroup DIR] [--records N] [--record-bytes N] [--rehearse DIR: what concerns the machine as \
                     a whole is only written down there] (without --listen it must be PID 1)";

impl Default for Config {
    fn default() -> Self {
        Self {
            init: false,
            listen: Endpoint::Vsock(AGENT_PORT),
            hello: None,
            cgroup: "/sys/fs/cgroup".into(),
            limits: Limits::default(),
            effects: Effects::Machine,
            off_by_reset: false,
        }
    }
}

impl Config {
    /// From a program's arguments.
    pub fn from_arguments(arguments: &[String]) -> Result<Self, String> {
        let mut config = Self::default();
        let mut listen = None;
        let mut arguments = arguments.iter();
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or(USAGE)?;
            match option.as_str() {
                "--listen" => listen = Some(endpoint(value, AGENT_PORT)?),
                "--hello" => config.hello = Some(endpoint(value, HELLO_PORT)?),
                "--cgroup" => config.cgroup = value.clone(),
                "--rehearse" => config.effects = Effects::Rehearsed(value.into()),
                "--records" => config.limits.records = number(option, value)?,
                "--record-bytes" => config.limits.output_bytes = number(option, value)?,
                _ => return Err(format!("unknown option `{option}`; {USAGE}")),
            }
        }
        config.listen = listen.ok_or(USAGE)?;
        Ok(config)
    }

    /// From the kernel's command line. Words that begin with `tine.` and are not known are an error: a misspelt
    /// `tine.rot=` must not boot something else than what was asked for.
    pub fn from_cmdline(line: &str) -> Result<(Self, BootWords), String> {
        let hello = Some(Endpoint::Vsock(HELLO_PORT));
        let mut config = Self {
            init: true,
            hello,
            ..Self::default()
        };
        let mut boot = BootWords::default();
        for word in line.split_ascii_whitespace() {
            let Some(word) = word.strip_prefix("tine.") else {
                continue;
            };
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match name {
                "root" => boot.root = Some(value.into()),
                "rootfstype" => boot.root_type = Some(value.into()),
                "rootflags" => {
                    boot.root_read_only = match value {
                        "ro" => true,
                        "rw" => false,
                        _ => return Err(format!("tine.rootflags={value}: must be ro or rw")),
                    }
                }
                "rootwait" => boot.root_wait = Some(number(name, value)?),
                "hostname" => boot.hostname = Some(value.into()),
                "records" => config.limits.records = number(name, value)?,
                "record_bytes" => config.limits.output_bytes = number(name, value)?,
                "off" if value == "reset" => config.off_by_reset = true,
                _ => {
                    return Err(format!(
                        "unknown word tine.{word} on the kernel's command line"
                    ));
                }
            }
        }
        Ok((config, boot))
    }
}

fn endpoint(text: &str, port: u32) -> Result<Endpoint, String> {
    match text.split_once(':') {
        None if text == "vsock" => Ok(Endpoint::Vsock(port)),
        Some(("vsock", port)) => Ok(Endpoint::Vsock(number("vsock", port)?)),
        Some(("unix", path)) if !path.is_empty() => Ok(Endpoint::Unix(path.into())),
        _ => Err(format!("`{text}` is no address; {USAGE}")),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{name}: `{value}` is not a number in range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_words() {
        let line = "console=ttyS0 tine.root=/dev/vda tine.rootflags=ro root=/dev/x quiet tine.hostname=a\n";
        let (config, boot) = Config::from_cmdline(line).unwrap();
        assert!(config.init);
        assert_eq!(boot.root.as_deref(), Some("/dev/vda"));
        assert!(boot.root_read_only);
        assert_eq!(boot.hostname.as_deref(), Some("a"));
        assert!(
            Config::from_cmdline("tine.rot=/dev/vda")
                .unwrap_err()
                .contains("tine.rot")
        );
        assert!(
            Config::from_cmdline("tine.records=-1")
                .unwrap_err()
                .contains("records")
        );
    }

    #[test]
    fn arguments() {
        let parse = |line: &str| {
            let words: Vec<String> = line.split(' ').map(Into::into).collect();
            Config::from_arguments(&words)
        };
        let config = parse("--listen unix:/a --hello vsock:7").unwrap();
        assert_eq!(config.listen, Endpoint::Unix("/a".into()));
        assert_eq!(config.hello, Some(Endpoint::Vsock(7)));
        assert!(parse("--listen tcp:1").is_err());
        assert!(parse("--hello vsock").is_err());
        assert!(parse("--listen").is_err());
        assert!(parse("--what 1").unwrap_err().contains("--what"));
    }
}
