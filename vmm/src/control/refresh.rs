//! Telling the agent of a restored or forked guest that it is a machine of its own, after the restore
//! and, on request, again: one that has waited for hours is handed out with the time of that moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tine_devices::virtio::vsock::VsockHandle;
use tine_guest_agent::octets::Octets;
use tine_guest_agent::refresh::{NewFile, Refresh};
use tine_jailer::seccomp::Role;

use super::command::{Command, Refusal, Reply};
use super::controller::Controller;
use super::handle::{Permit, Shared};
use super::state::State;
use crate::agent::{self, AgentError};
use crate::client;
use crate::logger::{self, Level};

/// How long the agent of a restored guest may take to answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long one that has answered before may take.
const AGAIN: Duration = Duration::from_secs(30);
/// In messages.
const ACTION: &str = "refresh the guest";

/// What the agent makes of a restored or forked guest before it counts as running, besides the time,
/// random numbers and its generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestIdentity {
    /// A new host name.
    pub hostname: Option<String>,
    /// A new content of `/etc/machine-id`.
    pub machine_id: Option<String>,
    /// Variables for later commands.
    pub env: Option<BTreeMap<String, Octets>>,
    /// Files to be written.
    pub files: Vec<NewFile>,
}

impl GuestIdentity {
    /// Nothing of it changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// That of the machine `id`: its host name is the id (a host name has no underscore), and its
    /// machine id 128 random bits, as systemd-machine-id-setup(1) makes one.
    pub fn of(id: &str) -> Self {
        let bits = client::new_request_id() + &client::new_request_id();
        Self {
            hostname: Some(id.replace('_', "-")),
            machine_id: Some(bits[..32].to_owned()),
            ..Self::default()
        }
    }

    /// Puts it into the body of `PUT /v1/restore`, an object.
    pub fn put_into_request(&self, request: &mut Value) {
        let fields = [
            ("hostname", self.hostname.as_ref().map(|name| json!(name))),
            ("machine_id", self.machine_id.as_ref().map(|id| json!(id))),
            ("env", self.env.as_ref().map(|env| json!(env))),
            ("files", (!self.files.is_empty()).then(|| json!(self.files))),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                request[field] = value;
            }
        }
    }

    /// This, as the agent is told it.
    pub fn put_into(self, refresh: Refresh) -> Refresh {
        Refresh {
            hostname: self.hostname,
            machine_id: self.machine_id,
            env: self.env,
            files: self.files,
            ..refresh
        }
    }
}

impl Controller {
    /// Tells the agent of a restored guest, which runs now, that it is another machine; on a thread
    /// of its own, as the guest is not trusted to answer.
    pub(super) fn refresh_guest(&mut self) -> Result<(), Refusal> {
        let Some(refresh) = self.refresh.take() else {
            return Ok(());
        };
        let vsock = self.started()?.vsock().clone();
        let shared: Arc<Shared> = self.shared.clone();
        let tell = move || {
            let result = agent::refresh(&vsock, &refresh, Instant::now() + PATIENCE);
            match result {
                Ok(hello) => shared.tell(Command::Hello(Box::new(hello))),
                // The machine is gone, and that has been told.
                Err(AgentError::Connect(_)) if shared.status.borrow().state.is_over() => {}
                Err(err) => shared.tell(Command::BadHello(err.to_string())),
            }
        };
        let thread = self.starter.spawn("refresh", Role::Worker, tell);
        thread
            .map(drop)
            .map_err(|err| Refusal::failed("start a thread", err))
    }

    /// Tells the agent of a running guest the time and random numbers of now, and what of the guest
    /// becomes another one. The answer comes from the thread that talks to it.
    pub(super) fn refresh_again(&mut self, identity: GuestIdentity, permit: Permit, reply: Reply) {
        let (vsock, refresh) = match self.begin_refresh(identity) {
            Ok(begun) => begun,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let tell = move || {
            let told = agent::refresh(&vsock, &refresh, Instant::now() + AGAIN);
            // Before the answer: who has it may begin the next change.
            drop(permit);
            answer(
                reply,
                told.map(drop).map_err(|err| Refusal::failed(ACTION, err)),
            );
        };
        // Where there can be no thread, the reply goes with the closure, which tells whoever waits.
        if let Err(err) = self.starter.spawn("refresh", Role::Worker, tell) {
            logger::log(Level::Error, Refusal::failed("start a thread", err));
        }
    }

    fn begin_refresh(&self, identity: GuestIdentity) -> Result<(VsockHandle, Refresh), Refusal> {
        let vsock = self.started()?.vsock().clone();
        match self.state() {
            State::Running => {}
            state => return Err(Refusal::State(state)),
        }
        if self.generation == 0 {
            return Err(Refusal::failed(
                ACTION,
                "it was booted, and neither restored nor forked: it has its own clock and random numbers",
            ));
        }
        let refresh = agent::new_identity(self.generation)
            .map_err(|err| Refusal::failed("get random bytes for the guest", err))?;
        Ok((vsock, identity.put_into(refresh)))
    }
}

fn answer(reply: Reply, result: Result<(), Refusal>) {
    if let Err(refusal) = &result {
        logger::log(Level::Error, refusal);
    }
    // The one who asked may have gone away.
    let _ = reply.send(result);
}
