//! After a restore or fork: what the guest cannot know by itself. And around a snapshot of its disks: holding writes.
//!
//! A restored machine's monitor resets vsock: the kernel ends the agent's old connections, its listening socket
//! stays. The host's quickest way to a usable machine is one connection to [`crate::AGENT_PORT`] and one
//! `POST /v1/refresh`, answered with the [`crate::hello::Hello`]; from that answer on the machine is `running`. The
//! agent also says its hello again, as after every reset, but in its own time and not before the refresh is done.
//!
//! Programs in the guest learn of it from [`GENERATION_FILE`], which is there from boot on (generation 0) and is
//! replaced by a rename as the last step of a refresh: watch its directory with inotify for `IN_MOVED_TO`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::exec::check_env;
use crate::fields::{FieldError, Fields};
use crate::files::check_path;
use crate::octets::Octets;

/// Holds the generation as a decimal number and a newline.
pub const GENERATION_FILE: &str = "/run/tine/generation";

/// Fewest bytes of entropy that make a guest's random numbers its own.
pub const MIN_ENTROPY: usize = 32;
/// Most bytes of entropy taken: more would be work without gain.
pub const MAX_ENTROPY: usize = 512;
/// Most bytes of a host name, as the kernel has it.
pub const MAX_HOSTNAME: usize = 64;
/// Most files that a refresh can bring.
pub const MAX_FILES: usize = 64;
/// Most network interfaces that a refresh can change.
pub const MAX_INTERFACES: usize = 64;
/// File systems are thawed after this time when the request does not say.
pub const DEFAULT_FREEZE_MS: u64 = 10_000;
/// They are thawed after this time whatever the request says.
pub const MAX_FREEZE_MS: u64 = 60_000;

/// The body of `POST /v1/refresh`. Sending the same again does no harm: all of it is done again, and it counts as
/// the same generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Refresh {
    /// Which restore or fork this is: the host's number, above every earlier one in this guest's history. A lower one
    /// is refused.
    pub generation: u64,
    /// The time: nanoseconds since 1970, UTC. Taken as late as possible.
    pub clock_ns: u64,
    /// [`MIN_ENTROPY`] to [`MAX_ENTROPY`] random bytes that no other machine gets.
    pub entropy: Octets,
    /// A new host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// A new content of `/etc/machine-id`: 32 lower-case hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// Variables that later commands start with, behind the defaults and before their own; takes the place of an
    /// earlier refresh's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, Octets>>,
    /// Files to be written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<NewFile>,
    /// What becomes another one of network interfaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<NewInterface>,
}

/// A network interface's new addresses. What is not given stays. An interface that the guest's kernel does not have
/// is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewInterface {
    /// Which: its place among the machine's, from 0 on.
    pub place: u8,
    /// Its link address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<[u8; 6]>,
    /// Its IPv4 address, in the place of all that it has. Routes by those go with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Where everything goes that no other route is for, by this interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv4Addr>,
}

/// An IPv4 address and how many of its bits are the network's, as `172.16.0.2/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// The address.
    pub ip: Ipv4Addr,
    /// 1 to 32.
    pub prefix: u8,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(ip, bits)| Some((ip.parse().ok()?, bits.parse().ok()?)));
        match parts {
            Some((ip, prefix)) if (1..=32).contains(&prefix) => Ok(Self { ip, prefix }),
            _ => Err(format!(
                "{text:?} is no address with a prefix, like 172.16.0.2/24"
            )),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// A small file, written under a temporary name and renamed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewFile {
    /// Where. Its directory is made if it is missing.
    pub path: Octets,
    /// Permission bits; those of the file that is replaced, or 0644, when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The bytes.
    pub content: Octets,
}

impl Refresh {
    /// Reads and checks a request body.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            generation: fields.required("generation")?,
            clock_ns: fields.required("clock_ns")?,
            entropy: fields.required("entropy")?,
            hostname: fields.optional("hostname")?,
            machine_id: fields.optional("machine_id")?,
            env: fields.optional("env")?,
            files: fields.optional("files")?.unwrap_or_default(),
            interfaces: fields.optional("interfaces")?.unwrap_or_default(),
        };
        fields.finish()?;
        request.check()?;
        Ok(request)
    }

    /// What the agent would refuse. The error names the field.
    pub fn check(&self) -> Result<(), FieldError> {
        let wrong = |field, message: String| Err(FieldError::new(field, message));
        if self.generation == 0 {
            return wrong(
                "generation",
                "is 0, which is the machine as it was booted".into(),
            );
        }
        if i64::try_from(self.clock_ns).is_err() {
            return wrong("clock_ns", "is beyond the year 2262".into());
        }
        if !(MIN_ENTROPY..=MAX_ENTROPY).contains(&self.entropy.0.len()) {
            return wrong(
                "entropy",
                format!("must have {MIN_ENTROPY} to {MAX_ENTROPY} bytes"),
            );
        }
        let fits = |name: &String| (1..=MAX_HOSTNAME).contains(&name.len()) && !name.contains('\0');
        if self.hostname.as_ref().is_some_and(|name| !fits(name)) {
            return wrong("hostname", format!("must have 1 to {MAX_HOSTNAME} bytes"));
        }
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let fits = |id: &String| id.len() == 32 && id.bytes().all(digit);
        if self.machine_id.as_ref().is_some_and(|id| !fits(id)) {
            return wrong(
                "machine_id",
                "must be 32 lower-case hexadecimal digits".into(),
            );
        }
        if let Some(env) = &self.env {
            check_env(env)?;
        }
        if self.files.len() > MAX_FILES {
            return wrong("files", format!("has more than {MAX_FILES} entries"));
        }
        for file in &self.files {
            check_path("files", &file.path)?;
        }
        if self.interfaces.len() > MAX_INTERFACES {
            let message = format!("has more than {MAX_INTERFACES} entries");
            return wrong("interfaces", message);
        }
        Ok(())
    }
}

/// The body of `POST /v1/freeze`: writes everything out and holds further writes until `POST /v1/thaw`.
///
/// It concerns every file system on a block device that the agent sees and that is not read-only; of another kind
/// (memory, network) there is no disk to be copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Freeze {
    /// Thawed after this time in any case, [`DEFAULT_FREEZE_MS`] when not given and [`MAX_FREEZE_MS`] at most: a host
    /// that goes away must not leave the guest without its disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl Freeze {
    /// Reads a request body.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let timeout_ms = fields.optional("timeout_ms")?;
        fields.finish()?;
        if timeout_ms.is_some_and(|limit| !(1..=MAX_FREEZE_MS).contains(&limit)) {
            let message = format_args!("must be 1 to {MAX_FREEZE_MS}");
            return Err(FieldError::new("timeout_ms", message));
        }
        Ok(Self { timeout_ms })
    }
}

/// The answer to `POST /v1/freeze`. While file systems are frozen another freeze is refused with 409.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// Mount points of what is held now.
    pub frozen: Vec<Octets>,
    /// Mount points that cannot be held, because their kind of file system knows no such thing; they were synced.
    pub synced: Vec<Octets>,
}

/// The answer to `POST /v1/thaw`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thawed {
    /// What was frozen has been so until now. False: the time was up before, or nothing was frozen; a copy made of
    /// the disks meanwhile may not be consistent.
    pub held: bool,
}
