//! Answers that are errors: one kind inside, two shapes outside.

use std::fmt::Display;

use hyper::Response;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde_json::json;
use tine_guest_agent::fields::FieldError;

use super::body::Body;
use crate::control::{Refusal, State};

/// An answer, or the error that becomes one.
pub type Reply = Result<Response<Body>, Fault>;

/// An answer that is an error.
#[derive(Debug)]
pub struct Fault {
    status: u16,
    code: &'static str,
    message: String,
    field: Option<String>,
    state: Option<State>,
    allow: Option<String>,
}

/// What an error looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `{"fault_message": ..}`, and 400 for all that the client did wrong.
    Known,
    /// `{"error": {"code", "message", ..}}`, as the agent has it.
    V1,
}

impl Shape {
    /// The shape for a path.
    pub fn of(path: &str) -> Self {
        match path == "/v1" || path.starts_with("/v1/") {
            true => Shape::V1,
            false => Shape::Known,
        }
    }
}

impl Fault {
    /// An error.
    pub fn new(status: u16, code: &'static str, message: impl Display) -> Self {
        Self {
            status,
            code,
            message: message.to_string(),
            field: None,
            state: None,
            allow: None,
        }
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Display) -> Self {
        Self::new(400, "bad_request", message)
    }

    /// What it says in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The body is longer than it may be.
    pub fn too_large(most: usize) -> Self {
        let message = format!("the request's body is longer than {most} bytes");
        Self::new(413, "too_large", message)
    }

    /// The path does not take the method, but these (RFC 9110, section 15.5.6).
    pub fn method_not_allowed(path: &str, method: &hyper::Method, allowed: &[&str]) -> Self {
        let words = format_args!("{path} does not take {method}");
        let mut fault = Self::new(405, "method_not_allowed", words);
        fault.allow = Some(allowed.join(", "));
        fault
    }

    /// The machine is not in a state for it.
    pub fn state(state: State, message: impl Display) -> Self {
        Self::new(409, "wrong_state", message).with_state(state)
    }

    /// Names the machine's state too.
    pub fn with_state(mut self, state: State) -> Self {
        self.state = Some(state);
        self
    }

    /// The status in a shape.
    fn status(&self, shape: Shape) -> u16 {
        match (shape, self.status) {
            (Shape::Known, 409) if self.code == "busy" => 409,
            (Shape::Known, 401..=407 | 409..=412 | 414..=499) => 400,
            (_, status) => status,
        }
    }

    /// The answer.
    pub fn into_response(self, shape: Shape) -> Response<Body> {
        let status = self.status(shape);
        let body = match shape {
            Shape::Known => json!({ "fault_message": self.message }),
            Shape::V1 => {
                let mut error = json!({ "code": self.code, "message": self.message });
                if let Some(field) = self.field {
                    error["field"] = field.into();
                }
                if let Some(state) = self.state {
                    error["state"] = state.word().into();
                }
                json!({ "error": error })
            }
        };
        let mut response = raw(status, body.to_string());
        let allow = self.allow.filter(|_| status == 405);
        if let Some(allow) = allow.and_then(|list| HeaderValue::from_str(&list).ok()) {
            response.headers_mut().insert(ALLOW, allow);
        }
        response
    }
}

impl From<FieldError> for Fault {
    fn from(error: FieldError) -> Self {
        let mut fault = Self::bad_request(&error);
        fault.field = Some(error.field).filter(|field| !field.is_empty());
        fault
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = match &refusal {
            Refusal::Busy(_) => (409, "busy"),
            Refusal::AfterStart | Refusal::BeforeStart | Refusal::State(_) => (409, "wrong_state"),
            Refusal::Settings(_) | Refusal::Start(_) | Refusal::Failed { .. } => {
                (400, "bad_request")
            }
            Refusal::Gone => (503, "ending"),
        };
        let mut fault = Self::new(status, code, &refusal);
        if let Refusal::State(state) = refusal {
            fault.state = Some(state);
        }
        fault
    }
}

/// 200 with a JSON body.
pub fn json(value: &impl Serialize) -> Reply {
    json_with(200, value)
}

/// A JSON body with a status.
pub fn json_with(status: u16, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => Ok(raw(status, body)),
        Err(err) => Err(Fault::new(500, "internal", err)),
    }
}

/// 204.
pub fn done() -> Reply {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = hyper::StatusCode::NO_CONTENT;
    Ok(response)
}

/// A stream of bytes of a type.
pub fn stream(body: Body, kind: &'static str) -> Reply {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

fn raw(status: u16, body: impl Into<hyper::body::Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
