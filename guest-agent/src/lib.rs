//! The protocol between a machine's monitor and the agent inside its guest.
//!
//! This library holds types and framing alone, so that both sides share one definition; the agent itself is the
//! binary `tine-agent` of this package. The agent serves HTTP/1.1 on vsock port [`AGENT_PORT`], and announces
//! itself on the host's port [`HELLO_PORT`]. Streams are an `Upgrade` to the frames of [`frame`].
//!
//! | request | does |
//! |---|---|
//! | `POST /v1/exec` ([`exec::ExecRequest`], `?wait=false`, `?wait=MS`) | runs a command at most once; answers 200 with its [`exec::Record`], 202 while it runs; with `Upgrade: tine-stream/1` 101 and frames |
//! | `GET /v1/exec` | the records of all commands, without output |
//! | `GET /v1/exec/{id}` (`?wait`, `?wait=MS`) | the record |
//! | `DELETE /v1/exec/{id}` (`?wait=false`) | cancels: SIGTERM, grace, SIGKILL for the whole tree; answers the record |
//! | `POST /v1/exec/{id}/signal` ([`status::SignalRequest`]) | a signal to the command's process group |
//! | `POST /v1/exec/{id}/attach` ([`exec::AttachRequest`]), `Upgrade: tine-stream/1` | frames, from what is kept of the output on |
//! | `/v1/files/..` | see [`files`] |
//! | `POST /v1/ports/{port}`, `Upgrade: tine-raw/1` | a byte stream to that TCP port of the guest's loopback |
//! | `GET /v1/processes` | [`status::Process`] each |
//! | `POST /v1/processes/{pid}/signal` ([`status::SignalRequest`]) | a signal to one process |
//! | `GET /v1/health` | [`status::Health`] |
//! | `GET /v1/events` | [`events::Event`] lines: ends of commands, warnings |
//! | `POST /v1/refresh` ([`refresh::Refresh`]) | after a restore or fork: clock, entropy, names; answers the [`hello::Hello`] |
//! | `POST /v1/freeze` ([`refresh::Freeze`]), `POST /v1/thaw` | holds writes to disks for a copy: [`refresh::Frozen`], [`refresh::Thawed`] |
//! | `POST /v1/shutdown` ([`status::ShutdownRequest`]) | ends everything in order, then the machine |
//!
//! An answer from 400 on has an [`error::ErrorBody`]: 400 names the `field`, 404 unknown, 405 method, 409 conflict
//! (same id and another request; not running; the machine is ending), 410 the id's record is no longer kept, 413 body
//! too large, 503 and 507 no room. As PID 1 the agent takes these words of the kernel's command line:
//! `tine.root=DEVICE tine.rootflags=ro|rw tine.rootfstype=TYPE tine.rootwait=SECONDS tine.hostname=NAME
//! tine.records=N tine.record_bytes=N tine.off=reset`; another word that begins with `tine.` ends the machine with a
//! line on the console.
//!
//! Nothing here trusts its input: decoders are bounded, and an error says which field is at fault.

pub mod error;
pub mod events;
pub mod exec;
pub mod fields;
pub mod files;
pub mod frame;
pub mod hello;
mod objects;
pub mod octets;
pub mod refresh;
pub mod status;

/// The guest's vsock port on which the agent serves HTTP/1.1.
pub const AGENT_PORT: u32 = 1024;

/// The host's vsock port to which the agent connects once it is listening.
pub const HELLO_PORT: u32 = 1024;

/// Version of this protocol; the hello and `GET /v1/health` carry it.
pub const PROTOCOL_VERSION: u32 = 2;

/// The `Upgrade` token of a connection that goes on with [`frame`]s.
pub const STREAM_UPGRADE: &str = "tine-stream/1";

/// The `Upgrade` token of a connection that goes on as a plain byte stream (`/v1/ports`).
pub const RAW_UPGRADE: &str = "tine-raw/1";

/// Most bytes of a JSON request body; a larger one is answered with 413.
pub const MAX_JSON_BODY: usize = 1 << 20;
