//! The protocol between a machine's monitor and the agent inside its guest.
//!
//! This library holds types and framing alone, so that both sides share one definition; the agent itself is the
//! binary `tine-agent` of this package. The agent serves HTTP/1.1 on vsock port [`AGENT_PORT`], and announces
//! itself on the host's port [`HELLO_PORT`]. Streams are an `Upgrade` to the frames of [`frame`].
//!
//! Nothing here trusts its input: decoders are bounded, and an error says which field is at fault.

pub mod error;
pub mod exec;
pub mod fields;
pub mod files;
pub mod frame;
pub mod hello;
pub mod octets;
pub mod status;

/// The guest's vsock port on which the agent serves HTTP/1.1.
pub const AGENT_PORT: u32 = 1024;

/// The host's vsock port to which the agent connects once it is listening.
pub const HELLO_PORT: u32 = 1024;

/// Version of this protocol; the hello and `GET /v1/health` carry it.
pub const PROTOCOL_VERSION: u32 = 1;

/// The `Upgrade` token of a connection that goes on with [`frame`]s.
pub const STREAM_UPGRADE: &str = "tine-stream/1";

/// The `Upgrade` token of a connection that goes on as a plain byte stream (`/v1/ports`).
pub const RAW_UPGRADE: &str = "tine-raw/1";

/// Most bytes of a JSON request body; a larger one is answered with 413.
pub const MAX_JSON_BODY: usize = 1 << 20;
