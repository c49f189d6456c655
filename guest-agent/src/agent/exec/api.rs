//! `/v1/exec`: submit, look, wait, cancel, signal, attach.

use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Uri};
use tine_guest_agent::STREAM_UPGRADE;
use tine_guest_agent::exec::{AttachRequest, ExecRequest};
use tine_guest_agent::fields::FieldError;
use tine_guest_agent::status::SignalRequest;

use super::store::Admission;
use super::{Exec, run, stream};
use crate::agent::Agent;
use crate::agent::fault::Fault;
use crate::agent::http::{self, Reply};
use crate::agent::routes::{body, only, query, unknown, wrong_method};

/// Answers what is below `/v1/exec`.
pub async fn answer(agent: Rc<Agent>, request: Request<Incoming>, rest: &str) -> Reply {
    if rest.is_empty() {
        return match *request.method() {
            Method::POST => submit(agent, request).await,
            Method::GET => {
                let records: Vec<_> = agent
                    .store
                    .all()
                    .iter()
                    .map(|exec| exec.record(false))
                    .collect();
                http::json(200, &records)
            }
            _ => Err(wrong_method(&request)),
        };
    }
    let (id, action) = rest.split_once('/').unwrap_or((rest, ""));
    let exec = find(&agent, id)?;
    match (action, request.method().clone()) {
        ("", Method::GET) => {
            wait(&exec, request.uri(), false).await?;
            http::json(200, &exec.record(true))
        }
        ("", Method::DELETE) => {
            exec.cancel();
            wait(&exec, request.uri(), true).await?;
            http::json(200, &exec.record(true))
        }
        ("signal", _) => {
            only(&request, &Method::POST)?;
            let wanted = SignalRequest::from_json(&body(request).await?)?;
            let result = exec.signal(wanted.signal);
            result.map_err(|_| Fault::conflict(format_args!("`{id}` is not running")))?;
            Ok(http::empty(204))
        }
        ("attach", _) => {
            only(&request, &Method::POST)?;
            attach(exec, request).await
        }
        ("", _) => Err(wrong_method(&request)),
        _ => Err(unknown(request.uri().path())),
    }
}

fn find(agent: &Agent, id: &str) -> Result<Rc<Exec>, Fault> {
    match agent.store.find(id) {
        Ok(Some(exec)) => Ok(exec),
        Ok(None) => Err(Fault::not_found(format_args!("no request `{id}` is known"))),
        Err(()) => Err(gone(id)),
    }
}

fn gone(id: &str) -> Fault {
    let message = format!("request `{id}` was accepted before and its record is no longer kept");
    Fault::new(410, "gone", message)
}

/// Waits for a command's end as `?wait` says: empty or `true` without limit, `false` not at all, or milliseconds.
/// `otherwise` says whether to wait when there is no such word.
async fn wait(exec: &Exec, uri: &Uri, otherwise: bool) -> Result<(), Fault> {
    let value = query(uri, "wait");
    match value.as_deref() {
        None if !otherwise => {}
        Some(b"false") => {}
        None | Some(b"" | b"true") => exec.ended().await,
        Some(value) => {
            let limit = std::str::from_utf8(value)
                .ok()
                .and_then(|value| value.parse().ok());
            let limit = limit
                .ok_or_else(|| Fault::bad_request("`wait` must be true, false or milliseconds"))?;
            let _ = tokio::time::timeout(Duration::from_millis(limit), exec.ended()).await;
        }
    }
    Ok(())
}

async fn submit(agent: Rc<Agent>, mut request: Request<Incoming>) -> Reply {
    let streamed = http::wants_upgrade(&request, STREAM_UPGRADE)?;
    let pending = streamed.then(|| hyper::upgrade::on(&mut request));
    let (parts, incoming) = request.into_parts();
    let bytes = http::collect(incoming, tine_guest_agent::MAX_JSON_BODY).await?;
    let wanted = ExecRequest::from_json(&bytes)?;
    let waits = query(&parts.uri, "wait").as_deref() != Some(b"false");
    if wanted.stdin && !streamed && waits {
        let message = "needs a stream, or `?wait=false` and a later attach";
        return Err(FieldError::new("stdin", message).into());
    }
    if agent.shutdown.get().is_some() {
        return Err(Fault::conflict("the machine is shutting down"));
    }
    let exec = match agent.store.admit(&wanted, streamed) {
        Admission::New(exec) => {
            // In a task of its own: what was accepted runs to its end whether or not anybody is left to hear of it.
            tokio::task::spawn_local(run::run(agent.clone(), exec.clone(), wanted));
            exec
        }
        Admission::Known(exec) => exec,
        Admission::Conflict => {
            let message = format!(
                "`{}` was accepted before with another request",
                wanted.request_id
            );
            return Err(Fault::conflict(message));
        }
        Admission::Dropped => return Err(gone(&wanted.request_id)),
        Admission::Busy => {
            return Err(Fault::new(
                503,
                "busy",
                "as many commands run as there may be records",
            ));
        }
        Admission::Exhausted => {
            let message = "no more request ids can be remembered on this machine";
            return Err(Fault::new(507, "exhausted", message));
        }
    };
    match pending {
        Some(pending) => Ok(http::upgrade(
            pending,
            STREAM_UPGRADE,
            |conn, early| async move {
                stream::serve(exec, conn, &early, AttachRequest::default()).await;
            },
        )),
        None => {
            wait(&exec, &parts.uri, true).await?;
            let status = if exec.is_running() { 202 } else { 200 };
            http::json(status, &exec.record(true))
        }
    }
}

async fn attach(exec: Rc<Exec>, mut request: Request<Incoming>) -> Reply {
    if !http::wants_upgrade(&request, STREAM_UPGRADE)? {
        return Err(Fault::bad_request(format_args!(
            "attach needs `Upgrade: {STREAM_UPGRADE}`"
        )));
    }
    let pending = hyper::upgrade::on(&mut request);
    let from = AttachRequest::from_json(&body(request).await?)?;
    Ok(http::upgrade(
        pending,
        STREAM_UPGRADE,
        move |conn, early| async move {
            stream::serve(exec, conn, &early, from).await;
        },
    ))
}
