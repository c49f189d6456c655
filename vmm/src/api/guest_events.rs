//! What happens in the guest, for those who follow `/v1/events`: ends of commands, and what is
//! running out.
//!
//! The agent is asked only while somebody follows: telling costs the guest work. It is hostile, so
//! lines are bounded, nothing of their text is passed on but names that were checked, and what it
//! sends too quickly waits in the guest.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use tine_guest_agent::events::{Event as GuestEvent, MAX_EVENT, Resource, Warning};
use tine_guest_agent::exec::{State as ExecState, check_request_id};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::body::{Body, next_piece};
use super::serve::{App, race};
use crate::control::{Event, Handle, State};
use crate::logger::{self, Level};

/// Most lines taken in [`WINDOW`].
const MOST_LINES: u32 = 256;
const WINDOW: Duration = Duration::from_secs(1);
/// Between attempts to hear an agent that ended the last one.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a follower's first line may wait for the agent.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who follows, and whether the guest is heard.
#[derive(Default)]
pub struct Followers {
    count: Cell<usize>,
    heard: Cell<bool>,
    /// Attempts to hear it that are over.
    attempts: Cell<u64>,
    changed: Notify,
}

/// A follower, until it is dropped.
pub struct Follower(Rc<Followers>);

impl Followers {
    /// One more follower.
    pub fn enter(self: &Rc<Self>) -> Follower {
        self.count.set(self.count.get() + 1);
        self.changed.notify_waiters();
        Follower(self.clone())
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.count.get() > 0
    }

    /// Waits until this is so.
    pub async fn until(&self, so: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if so(self) {
                return;
            }
            changed.await;
        }
    }

    fn set_heard(&self) {
        self.heard.set(true);
        self.changed.notify_waiters();
    }

    /// It is not heard any more, or could not be.
    fn set_over(&self) {
        self.heard.set(false);
        self.attempts.set(self.attempts.get() + 1);
        self.changed.notify_waiters();
    }
}

impl Follower {
    /// Waits until the guest's events are heard, so that what the follower starts next is told;
    /// not for long, and not for an agent that does not tell them: a guest may never answer.
    pub async fn hears(&self) {
        let before = self.0.attempts.get();
        let decided =
            |followers: &Followers| followers.heard.get() || followers.attempts.get() != before;
        let _ = tokio::time::timeout(PATIENCE, self.0.until(decided)).await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.changed.notify_waiters();
    }
}

/// Whether the machine's agent can be heard.
pub fn can_be_heard(state: State) -> bool {
    matches!(state, State::Running | State::Snapshotting)
}

/// Passes the guest's events on for as long as the server runs.
pub async fn relay(app: Rc<App>) {
    let followers = &app.followers;
    let mut told = false;
    let mut watch = app.handle.watch();
    loop {
        followers.until(Followers::any).await;
        let running = watch.wait_for(|status| can_be_heard(status.state));
        let Ok(status) = running.await else { return };
        drop(status);
        let heard = async {
            let result = hear(&app).await;
            if let (Err(why), false) = (&result, told) {
                told = true;
                logger::log(Level::Warning, format_args!("the guest's events: {why}"));
            }
        };
        let nobody = followers.until(|followers| followers.count.get() == 0);
        race(heard, nobody).await;
        followers.set_over();
        if followers.any() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Listens to the agent until it ends the stream, or does not keep to the protocol.
async fn hear(app: &App) -> Result<(), String> {
    let mut request = Request::get("/v1/events")
        .body(Body::empty())
        .map_err(|err| err.to_string())?;
    let host = HeaderValue::from_static("agent");
    request.headers_mut().insert(HOST, host);
    let answer = app.proxy.ask(request).await;
    let answer = answer.map_err(|fault| fault.message().to_owned())?;
    if !answer.status().is_success() {
        return Err(format!("the agent answered {}", answer.status().as_u16()));
    }
    app.followers.set_heard();
    copy(&app.handle, answer.into_body()).await
}

async fn copy(handle: &Handle, mut body: Incoming) -> Result<(), String> {
    let mut held: Vec<u8> = Vec::new();
    let (mut since, mut left) = (Instant::now(), MOST_LINES);
    while let Some(piece) = next_piece(&mut body).await? {
        let mut piece = piece.as_ref();
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            held.extend_from_slice(&piece[..end.min(MAX_EVENT)]);
            piece = &piece[end + 1..];
            if since.elapsed() >= WINDOW {
                (since, left) = (Instant::now(), MOST_LINES);
            }
            if left == 0 {
                tokio::time::sleep_until(since + WINDOW).await;
                (since, left) = (Instant::now(), MOST_LINES);
            }
            left -= 1;
            if let Some(event) = event(&held)? {
                handle.publish(&event);
            }
            held.clear();
        }
        held.extend_from_slice(&piece[..piece.len().min(MAX_EVENT)]);
        if held.len() > MAX_EVENT {
            return Err("a line of the agent is too long".to_owned());
        }
    }
    Ok(())
}

/// What a line tells those who follow this machine, if anything.
fn event(line: &[u8]) -> Result<Option<Event>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    if line.len() > MAX_EVENT {
        return Err("a line of the agent is too long".to_owned());
    }
    match serde_json::from_slice(line) {
        Ok(GuestEvent::Exec(end)) => {
            check_request_id(&end.request_id).map_err(|err| err.to_string())?;
            if end.state == ExecState::Running {
                return Err("the agent tells of the end of a command that runs".to_owned());
            }
            Ok(Some(Event::exec(end)))
        }
        Ok(GuestEvent::Warning(warning)) => Ok(Some(words(&warning))),
        Ok(GuestEvent::Lost { count }) => Ok(Some(Event::Lost { count })),
        // Whoever restored the machine knows.
        Ok(GuestEvent::Restored { .. }) => Ok(None),
        // Newer than this monitor, or no event at all.
        Err(err) => match err.is_data() {
            true => Ok(None),
            false => Err("a line of the agent is no JSON".to_owned()),
        },
    }
}

fn words(warning: &Warning) -> Event {
    let (kind, what) = match warning.kind {
        Resource::Memory => ("memory", "memory is available"),
        Resource::Disk => ("disk", "root file system is free"),
    };
    let all = warning.total_bytes.max(1) as f64;
    let share = (warning.available_bytes as f64 / all * 100.0).min(100.0);
    Event::warning(kind, format!("{share:.1}% of the guest's {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_events_and_lies_are_errors() {
        let told = |line: &str| event(line.as_bytes()).unwrap();
        let end = r#"{"exec":{"request_id":"a","state":"exited","exit_code":3,"signal":null}}"#;
        let Some(Event::Exec { request_id, .. }) = told(end) else {
            panic!("no end");
        };
        assert_eq!(request_id, "a");
        let little = r#"{"warning":{"kind":"disk","available_bytes":1,"total_bytes":100}}"#;
        let Some(Event::Warning { kind, message, .. }) = told(little) else {
            panic!("no warning");
        };
        assert_eq!(
            (kind, message.as_str()),
            ("disk", "1.0% of the guest's root file system is free")
        );
        let none = r#"{"warning":{"kind":"memory","available_bytes":7,"total_bytes":0}}"#;
        assert!(
            matches!(told(none), Some(Event::Warning { message, .. }) if message.starts_with("100.0%"))
        );
        for nothing in [
            "",
            " ",
            r#"{"restored":{"generation":1}}"#,
            r#"{"newer":{}}"#,
        ] {
            assert!(told(nothing).is_none(), "{nothing}");
        }
        let long = format!(r#"{{"exec":{{"request_id":"{}"}}}}"#, "a".repeat(2000));
        for lie in [
            "{",
            "\u{1}",
            r#"{"exec":{"request_id":"a\u001b[2J","state":"exited","exit_code":0,"signal":null}}"#,
            r#"{"exec":{"request_id":"a","state":"running","exit_code":null,"signal":null}}"#,
            &long,
        ] {
            assert!(event(lie.as_bytes()).is_err(), "{lie}");
        }
    }
}
