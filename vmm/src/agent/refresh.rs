//! What the host tells the agent around snapshots: see [`tine_guest_agent::refresh`].

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tine_devices::virtio::vsock::VsockHandle;
use tine_guest_agent::hello::Hello;
use tine_guest_agent::refresh::{Freeze, Frozen, Refresh, Thawed};

use super::call::Call;
use super::{AgentError, check_version, protocol, refused};

/// Between attempts to reach a guest that has just been restored.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// Makes a restored or forked guest a machine of its own; from the answer on it takes commands.
///
/// Call it once the vCPUs run, and after [`VsockHandle::transport_reset`]. The time in `refresh` is replaced by the
/// host's at the moment of sending. A connection that breaks is made again until `deadline`, as doing it twice does no
/// harm; what the agent refuses is final.
pub fn refresh(
    vsock: &VsockHandle,
    refresh: &Refresh,
    deadline: Instant,
) -> Result<Hello, AgentError> {
    let mut refresh = refresh.clone();
    let mut pause = FIRST_PAUSE;
    loop {
        let now = Instant::now();
        // A connection that the guest lost without a word must not use up all the time.
        let attempt = now + deadline.saturating_duration_since(now) / 2;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        refresh.clock_ns = since.unwrap_or_default().as_nanos() as u64;
        match call::<_, Hello>(vsock, "/v1/refresh", &refresh, attempt) {
            Err(AgentError::Connect(_) | AgentError::Broken(_))
                if Instant::now() + pause < deadline =>
            {
                thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
            Ok(hello) if hello.generation != refresh.generation => {
                return Err(protocol("it says that it is of another generation"));
            }
            Ok(hello) => return check_version(&hello).map(|()| hello),
            Err(err) => return Err(err),
        }
    }
}

/// Has the guest write out its disks and hold further writes, for `limit` at most, so that they can be copied.
pub fn freeze(
    vsock: &VsockHandle,
    limit: Duration,
    deadline: Instant,
) -> Result<Frozen, AgentError> {
    let timeout_ms = Some(limit.as_millis() as u64);
    call(vsock, "/v1/freeze", &Freeze { timeout_ms }, deadline)
}

/// Lets writes go on. The answer says whether they were held until now.
pub fn thaw(vsock: &VsockHandle, deadline: Instant) -> Result<Thawed, AgentError> {
    call(vsock, "/v1/thaw", &serde_json::Map::new(), deadline)
}

fn call<Q: Serialize, A: DeserializeOwned>(
    vsock: &VsockHandle,
    path: &str,
    request: &Q,
    deadline: Instant,
) -> Result<A, AgentError> {
    let body = serde_json::to_vec(request).map_err(|err| protocol(err.to_string()))?;
    let mut call = Call::send(vsock, "POST", path, None, &body, Some(deadline))?;
    let body = call.body()?;
    match call.head.status {
        200 => serde_json::from_slice(&body)
            .map_err(|err| protocol(format!("its answer to {path} is malformed: {err}"))),
        status => Err(refused(status, &body)),
    }
}
