//! Which headers pass, in either direction. All others stay behind: none can smuggle a second
//! request or answer in, and lengths and transfer codings are made anew.

use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, ACCEPT_RANGES, CONNECTION, CONTENT_RANGE, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
    RANGE, UPGRADE,
};
use hyper::{Request, Response, StatusCode};
use tine_guest_agent::{RAW_UPGRADE, STREAM_UPGRADE};

use crate::api::body::Body;
use crate::api::fault::Fault;

const TO_AGENT: [HeaderName; 3] = [ACCEPT, CONTENT_TYPE, RANGE];
const FROM_AGENT: [HeaderName; 3] = [ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE];

/// The protocol that a client wants to go on with.
pub fn upgrade(request: &Request<Incoming>) -> Result<Option<&'static str>, Fault> {
    let Some(wanted) = request.headers().get(UPGRADE) else {
        return Ok(None);
    };
    let known = [STREAM_UPGRADE, RAW_UPGRADE];
    match known.into_iter().find(|name| wanted == name) {
        Some(name) => Ok(Some(name)),
        None => Err(Fault::bad_request(format_args!(
            "header `Upgrade`: must be {STREAM_UPGRADE} or {RAW_UPGRADE}"
        ))),
    }
}

/// The request as the agent gets it.
pub fn to_agent(request: Request<Incoming>, upgrade: Option<&'static str>) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    let given = std::mem::take(&mut parts.headers);
    for name in TO_AGENT {
        if let Some(value) = given.get(&name) {
            parts.headers.insert(name, value.clone());
        }
    }
    let headers = &mut parts.headers;
    headers.insert(HOST, HeaderValue::from_static("agent"));
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    }
    parts.extensions = hyper::http::Extensions::new();
    parts.version = hyper::Version::HTTP_11;
    Request::from_parts(parts, Body::incoming(body))
}

/// The head of the agent's answer as the client gets it.
pub fn from_agent(
    answer: &Response<Incoming>,
    upgrade: Option<&'static str>,
) -> Result<Response<()>, Fault> {
    let lie = |what: &str| {
        Fault::new(
            502,
            "agent_protocol",
            format_args!("the guest's agent does not keep to the protocol: {what}"),
        )
    };
    let mut response = Response::new(());
    *response.status_mut() = answer.status();
    let headers = response.headers_mut();
    match (answer.status(), upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(protocol)) => {
            if answer
                .headers()
                .get(UPGRADE)
                .is_none_or(|is| is != protocol)
            {
                return Err(lie("it goes on with another protocol than was asked for"));
            }
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
            return Ok(response);
        }
        (status, _) if status.is_informational() => {
            return Err(lie("it answers what was not asked"));
        }
        _ => {}
    }
    for name in FROM_AGENT {
        if let Some(value) = answer.headers().get(&name) {
            headers.insert(name, value.clone());
        }
    }
    Ok(response)
}
