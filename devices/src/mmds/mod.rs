//! The metadata store: a JSON document that the machine's owner writes and the guest reads, at
//! `http://169.254.169.254/`.
//!
//! [`Mmds`] is the store, a handle that is cloned freely. A [`Responder`] made from it is a host of
//! its own inside a network device (see [`crate::virtio::net::Detour`]): it answers ARP and TCP in
//! place of the network, which never sees any of it. The host's own network is not involved.
//!
//! | module | holds |
//! |---|---|
//! | `config` | how the store is reached, and why it could not be changed |
//! | `document` | the document: replaced, merged, looked into |
//! | `token` | the sessions of version 2 |
//! | `render` | values as the guest reads them |
//! | `http` | from a request's bytes to an answer's |
//! | `link`, `server` | from frames to requests |
//!
//! # What a hostile guest can use up
//!
//! [`MAX_CONNECTIONS`] connections with [`MAX_REQUEST_LEN`] bytes of request and one answer each,
//! [`MAX_TOKENS`] tokens, and a few dozen frames. What goes beyond is refused or dropped. There is
//! nothing of it before the guest has sent a first frame.

mod config;
mod document;
mod http;
mod link;
mod render;
mod server;
mod token;

use std::sync::{Arc, Mutex};

use serde_json::Value;

pub use config::{MmdsConfig, MmdsError, MmdsVersion};
pub use server::Responder;

use self::document::Document;
use self::token::Tokens;
use crate::bus::lock;

/// The largest document, written as compact JSON, where no other limit is given.
pub const DEFAULT_LIMIT: usize = 51_200;
/// Connections at a time.
pub const MAX_CONNECTIONS: usize = 16;
/// The longest request, its body included.
pub const MAX_REQUEST_LEN: usize = 8 << 10;
/// Tokens that are good at a time; the one that expires first gives way to a new one.
pub const MAX_TOKENS: usize = 256;

/// The metadata store of a machine.
#[derive(Clone)]
pub struct Mmds(Arc<Mutex<State>>);

struct State {
    config: MmdsConfig,
    document: Document,
    tokens: Tokens,
}

impl Mmds {
    /// An empty store whose document may have `limit` bytes as compact JSON.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            config: MmdsConfig::default(),
            document: Document::new(limit),
            tokens: Tokens::default(),
        })))
    }

    /// Changes how the guest reaches the store. The address holds for responders made from now on.
    pub fn configure(&self, config: MmdsConfig) -> Result<(), MmdsError> {
        config.check()?;
        lock(&self.0).config = config;
        Ok(())
    }

    /// How the guest reaches the store.
    pub fn config(&self) -> MmdsConfig {
        lock(&self.0).config
    }

    /// Replaces the document, an object.
    pub fn put(&self, document: Value) -> Result<(), MmdsError> {
        lock(&self.0).document.put(document)
    }

    /// Merges into the document (RFC 7396). It stays as it was if the result is too large.
    pub fn patch(&self, patch: Value) -> Result<(), MmdsError> {
        lock(&self.0).document.patch(patch)
    }

    /// The document; `None` before the first [`Self::put`].
    pub fn document(&self) -> Option<Value> {
        lock(&self.0).document.whole().cloned()
    }

    /// The part of the document at a path like `/latest/meta-data`.
    pub fn get(&self, path: &str) -> Option<Value> {
        lock(&self.0).document.get(path).cloned()
    }

    /// A host for one network device, at the address that is configured now.
    pub fn responder(&self) -> Responder {
        Responder::new(self.clone())
    }
}

impl Default for Mmds {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}
