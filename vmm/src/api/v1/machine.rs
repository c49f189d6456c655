//! `/v1/machine`: what the machine is doing, waiting until it does something else, and its
//! deletion.

use std::time::Duration;

use serde_json::{Value, json};
use tine_guest_agent::PROTOCOL_VERSION;

use crate::api::KNOWN_API_VERSION;
use crate::api::fault::{Fault, Reply, json, json_with};
use crate::api::routes::Call;
use crate::clock::rfc3339;
use crate::control::{Handle, State, Status};

/// How long a wait lasts when the request does not say.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Lines of the console in an answer.
const CONSOLE_LINES: usize = 20;

/// `GET`, with `?wait=STATE&timeout=TIME` as soon as the machine is in that state.
pub async fn get(call: Call) -> Reply {
    call.only_query(&["wait", "timeout"])?;
    if let Some(word) = call.query("wait") {
        let wanted = State::from_word(word).ok_or_else(|| {
            Fault::bad_request(format_args!("query parameter `wait`: no state {word:?}"))
        })?;
        let limit = match call.query("timeout") {
            Some(text) => duration(text)?,
            None => DEFAULT_WAIT,
        };
        wait(&call.app.handle, wanted, limit).await?;
    }
    json(&describe(&call.app.handle))
}

async fn wait(handle: &Handle, wanted: State, limit: Duration) -> Result<(), Fault> {
    let mut watch = handle.watch();
    // What is on its way to its end gets to none of the states of a life any more.
    let settled = |status: &Status| {
        let next = matches!(wanted, State::Deleting | State::Deleted);
        status.state == wanted || status.state.is_over() && !next
    };
    let found = tokio::time::timeout(limit, watch.wait_for(settled)).await;
    let (state, reason) = handle.look(|status| (status.state, status.reason.clone()));
    let because = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    match found {
        Ok(_) if state == wanted => Ok(()),
        Ok(_) => Err(Fault::state(
            state,
            format_args!("the machine is {state} and will not be {wanted}{because}"),
        )),
        Err(_) => {
            let message = format!("the machine is {state}, and not {wanted} within {limit:?}");
            Err(Fault::new(408, "timeout", message).with_state(state))
        }
    }
}

/// A time with its unit: `500ms`, `30s`, `5m`; a bare number is seconds.
fn duration(text: &str) -> Result<Duration, Fault> {
    crate::clock::parse_duration(text).ok_or_else(|| {
        Fault::bad_request("query parameter `timeout`: give a time such as 500ms, 30s or 5m")
    })
}

fn describe(handle: &Handle) -> Value {
    let status = handle.status();
    let identity = handle.identity();
    let mut machine = json!({
        "id": identity.id,
        "state": status.state,
        "since": rfc3339(status.since),
        "reason": status.reason,
        "pid": std::process::id(),
        "run_dir": identity.run_dir,
        "versions": {
            "tine": env!("CARGO_PKG_VERSION"),
            "api": KNOWN_API_VERSION,
            "agent_protocol": PROTOCOL_VERSION,
            "agent": status.agent.as_ref().map(|hello| &hello.agent),
            "kernel": status.agent.as_ref().map(|hello| &hello.kernel),
        },
        "agent": status.agent.as_ref().map(|hello| json!({
            "boot_id": hello.boot_id,
            "generation": hello.generation,
        })),
        "usage": handle.figures(),
        "console": status
            .access
            .as_ref()
            .map_or_else(Vec::new, |access| access.console.lines(CONSOLE_LINES)),
    });
    if let Some(times) = handle.deletion() {
        machine["deletion"] = json!(times);
    }
    machine
}

/// `DELETE`: accepted when answered.
pub async fn delete(call: Call) -> Reply {
    let accepted = call.app.handle.delete().await?;
    let state = call.app.handle.look(|status| status.state);
    json_with(
        202,
        &json!({
            "id": call.app.handle.identity().id,
            "state": state,
            "accepted_at": accepted.times.accepted_at,
            "released_at": accepted.times.released_at,
            "durable": accepted.durable,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(duration("2").unwrap(), Duration::from_secs(2));
        assert_eq!(duration("1m").unwrap(), Duration::from_secs(60));
        for bad in ["", "s", "-1s", "1e400", "1d", "nan"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
