//! One command in the guest: what is asked, what is said while it runs, and the record of it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use serde::{Deserialize, Serialize};

use crate::fields::{FieldError, Fields};
use crate::octets::{Octets, encode_base64};

/// Most bytes of a request id.
pub const MAX_REQUEST_ID: usize = 128;
/// Bytes kept of each output stream when the request does not say.
pub const DEFAULT_OUTPUT_LIMIT: u64 = 1 << 20;
/// Most bytes kept of each output stream.
pub const MAX_OUTPUT_LIMIT: u64 = 4 << 20;
/// Bytes of standard input after which the agent tells at the latest that they were taken. A host that keeps more than
/// this of what it has sent never has to wait in vain.
pub const STDIN_TOLD: u64 = 64 << 10;
/// From SIGTERM to SIGKILL when the request does not say.
pub const DEFAULT_GRACE_MS: u64 = 1000;

/// A request to run a command: the body of `POST /v1/exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExecRequest {
    /// Names the command; accepted at most once per machine. Letters, digits and `._:-`.
    pub request_id: String,
    /// Program and arguments. A program without `/` is looked up in `PATH`.
    pub argv: Vec<Octets>,
    /// Variables added to the default environment (`PATH`, `HOME`, `USER`, and `TERM` with a terminal).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Octets>,
    /// Start from an empty environment instead of the default one.
    #[serde(skip_serializing_if = "is_default")]
    pub clear_env: bool,
    /// Working directory; `/` when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Octets>,
    /// `name`, `uid` or `uid:gid`; root when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The command gets a standard input that the stream feeds; otherwise it reads end of file at once.
    #[serde(skip_serializing_if = "is_default")]
    pub stdin: bool,
    /// The whole standard input, given with the request. Not together with `stdin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Octets>,
    /// Run on a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// End the command and all its children after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Time from SIGTERM to SIGKILL on time-out and cancel; [`DEFAULT_GRACE_MS`] when not given, 0 kills at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Bytes kept of each output stream; [`DEFAULT_OUTPUT_LIMIT`] when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u64>,
    /// What happens to children that outlive the command.
    #[serde(skip_serializing_if = "is_default")]
    pub background: Background,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// What happens to children that outlive the command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Background {
    /// They go on; what they still write to the command's output is read and dropped.
    #[default]
    Keep,
    /// They are killed when the command ends.
    Kill,
}

impl ExecRequest {
    /// Reads and checks a request body.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            request_id: fields.required("request_id")?,
            argv: fields.required("argv")?,
            env: fields.optional("env")?.unwrap_or_default(),
            clear_env: fields.optional("clear_env")?.unwrap_or_default(),
            cwd: fields.optional("cwd")?,
            user: fields.optional("user")?,
            stdin: fields.optional("stdin")?.unwrap_or_default(),
            input: fields.optional("input")?,
            tty: fields.optional("tty")?,
            timeout_ms: fields.optional("timeout_ms")?,
            grace_ms: fields.optional("grace_ms")?,
            output_limit: fields.optional("output_limit")?,
            background: fields.optional("background")?.unwrap_or_default(),
        };
        fields.finish()?;
        request.check()?;
        Ok(request)
    }

    /// Checks what the types alone do not say.
    pub fn check(&self) -> Result<(), FieldError> {
        check_request_id(&self.request_id)?;
        if self.argv.first().is_none_or(|program| program.0.is_empty()) {
            return Err(FieldError::new("argv", "must name a program"));
        }
        if self.argv.iter().any(|argument| argument.0.contains(&0)) {
            return Err(FieldError::new("argv", "must not hold NUL bytes"));
        }
        check_env(&self.env)?;
        if self
            .cwd
            .as_ref()
            .is_some_and(|cwd| cwd.0.is_empty() || cwd.0.contains(&0))
        {
            return Err(FieldError::new("cwd", "must be a path"));
        }
        if self.user.as_ref().is_some_and(String::is_empty) {
            return Err(FieldError::new("user", "must not be empty"));
        }
        if self.stdin && self.input.is_some() {
            return Err(FieldError::new("input", "cannot be combined with `stdin`"));
        }
        if self
            .output_limit
            .is_some_and(|limit| limit > MAX_OUTPUT_LIMIT)
        {
            return Err(FieldError::new(
                "output_limit",
                format_args!("is above {MAX_OUTPUT_LIMIT}"),
            ));
        }
        Ok(())
    }

    /// A digest that is equal for equal requests, so that a repeated one is told from a different one.
    ///
    /// It guards against mistakes, not against a caller that constructs collisions (who harms only itself).
    pub fn digest(&self) -> u128 {
        // Serialising plain data to memory cannot fail.
        let canonical = serde_json::to_vec(self).unwrap_or_default();
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(salt);
            hasher.write(&canonical);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    }
}

/// Whether `id` can name a request.
pub fn check_request_id(id: &str) -> Result<(), FieldError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if id.is_empty() || id.len() > MAX_REQUEST_ID || !id.bytes().all(fits) {
        return Err(FieldError::new(
            "request_id",
            format_args!("must be 1 to {MAX_REQUEST_ID} letters, digits or `._:-`"),
        ));
    }
    Ok(())
}

/// Whether these can be variables of an environment.
pub fn check_env(env: &BTreeMap<String, Octets>) -> Result<(), FieldError> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.0.contains(&0) {
            let message = format_args!("`{name}` cannot be a variable");
            return Err(FieldError::new("env", message));
        }
    }
    Ok(())
}

/// How far a command has come, or how it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not ended yet.
    #[default]
    Running,
    /// Ended by itself with an exit code.
    Exited,
    /// Ended by a signal, or cancelled.
    Killed,
    /// Ended because its time was up.
    TimedOut,
    /// Could not be started.
    Failed,
}

/// How output bytes are spelt in a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Encoding {
    /// As they are.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64, because they are not UTF-8.
    #[serde(rename = "base64")]
    Base64,
}

/// What a command used, it and the children that it waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time in microseconds, user and system together.
    pub cpu_us: u64,
    /// Largest resident memory of any one process.
    pub max_memory_bytes: u64,
}

/// What is known of a command: the answer to `POST /v1/exec` and `GET /v1/exec/{id}`, and the last control frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The caller's name for it.
    pub request_id: String,
    /// How far it has come.
    pub state: State,
    /// Its exit code; for `failed` what a shell would say (127 not found, 126 not executable).
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// In words, where state and code do not say all.
    pub reason: Option<String>,
    /// Standard output as far as it is kept (empty in the last frame of a stream, which has had it).
    pub stdout: String,
    /// Standard error likewise.
    pub stderr: String,
    /// How `stdout` is spelt.
    #[serde(default)]
    pub stdout_encoding: Encoding,
    /// How `stderr` is spelt.
    #[serde(default)]
    pub stderr_encoding: Encoding,
    /// There was more standard output than is kept.
    pub stdout_truncated: bool,
    /// There was more standard error than is kept.
    pub stderr_truncated: bool,
    /// When it was started: RFC 3339, UTC, milliseconds.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// What it used; known when it has ended.
    pub usage: Option<Usage>,
    /// It was accepted before the machine was restored or forked, and so is known to its parent and siblings too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub inherited: bool,
}

/// Spells output bytes for a record.
pub fn spell(bytes: &[u8]) -> (String, Encoding) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), Encoding::Utf8),
        Err(_) => (encode_base64(bytes), Encoding::Base64),
    }
}

/// The first control frame of a stream, once the command has been started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Always `running`.
    pub state: State,
    /// The caller's name for the command.
    pub request_id: String,
    /// The guest's process number.
    pub pid: u32,
    /// Position in the whole standard output at which this stream begins.
    pub stdout_offset: u64,
    /// Position in the whole standard error at which this stream begins.
    pub stderr_offset: u64,
    /// Bytes of standard input that the command has been given so far. Older agents do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_offset: Option<u64>,
}

/// A control frame from the agent on a connection that sends input: now and then, how much of it has been taken. What
/// the connection has sent beyond it may still be lost when it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdinTaken {
    /// Bytes of standard input that the command has been given so far, whoever sent them.
    pub stdin_offset: u64,
}

/// A control frame from the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum HostControl {
    /// The terminal has a new size.
    Resize(TtySize),
    /// Send this signal to the command's process group.
    Signal(i32),
}

/// The body of `POST /v1/exec/{id}/attach`: from where missed output is wanted. Empty: all that is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AttachRequest {
    /// Bytes of standard output that the caller already has.
    pub stdout_offset: u64,
    /// Bytes of standard error that the caller already has.
    pub stderr_offset: u64,
    /// Input comes from this connection from now on: what those of before have sent and the command has not been given
    /// is dropped. So `stdin_offset` of [`Started`] says exactly from where input is to be sent again.
    #[serde(skip_serializing_if = "is_default")]
    pub take_stdin: bool,
}

impl AttachRequest {
    /// Reads a request body.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            stdout_offset: fields.optional("stdout_offset")?.unwrap_or_default(),
            stderr_offset: fields.optional("stderr_offset")?.unwrap_or_default(),
            take_stdin: fields.optional("take_stdin")?.unwrap_or_default(),
        };
        fields.finish()?;
        Ok(request)
    }
}
