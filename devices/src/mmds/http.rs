//! From a request's bytes to an answer's. Pure: no sockets, no clock of its own.

use std::time::Instant;

use httparse::{Header, Request, Status};

use super::render::{Format, render};
use super::token::TTL;
use super::{MAX_REQUEST_LEN, Mmds, MmdsVersion};
use crate::bus::lock;

const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN_HEADERS: [&str; 2] = ["X-metadata-token", "X-aws-ec2-metadata-token"];
const TTL_HEADERS: [&str; 2] = [
    "X-metadata-token-ttl-seconds",
    "X-aws-ec2-metadata-token-ttl-seconds",
];
const MAX_HEADERS: usize = 32;

/// What to do with the bytes that came so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait for more.
    More,
    /// Answer the first request.
    Answer {
        /// Its length.
        consumed: usize,
        /// The answer's bytes.
        bytes: Vec<u8>,
        /// The connection ends with it.
        close: bool,
    },
}

struct Answer {
    status: u16,
    reason: &'static str,
    format: Format,
    header: Option<String>,
    body: String,
}

/// Looks for a request at the start of the bytes, and answers it.
pub(super) fn step(mmds: &Mmds, bytes: &[u8], now: Instant) -> Step {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = Request::new(&mut headers);
    let head_len = match request.parse(bytes) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if bytes.len() < MAX_REQUEST_LEN => return Step::More,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return last(text(431, "The request's header is too long."));
        }
        Err(error) => return last(text(400, format!("Invalid request: {error}."))),
    };
    let body_len = match body_len(request.headers) {
        Ok(len) => len,
        Err(answer) => return last(answer),
    };
    match head_len.checked_add(body_len) {
        Some(len) if len > MAX_REQUEST_LEN => last(text(413, "The request is too long.")),
        None => last(text(413, "The request is too long.")),
        Some(len) if len > bytes.len() => Step::More,
        Some(len) => {
            let close = !keeps_alive(&request);
            let answer = answer(mmds, &request, now);
            Step::Answer {
                consumed: len,
                bytes: write(&answer, close),
                close,
            }
        }
    }
}

fn answer(mmds: &Mmds, request: &Request, now: Instant) -> Answer {
    let path = path(request.path.unwrap_or_default());
    match request.method {
        Some("GET") => read(mmds, &path, request.headers, now),
        Some("PUT") if path == TOKEN_PATH => token(mmds, request.headers, now),
        Some("PUT") => not_found(&path),
        _ => Answer {
            header: Some("Allow: GET, PUT".into()),
            ..text(405, "Not allowed HTTP method.")
        },
    }
}

fn read(mmds: &Mmds, path: &str, headers: &[Header], now: Instant) -> Answer {
    let state = lock(&mmds.0);
    if state.config.version == MmdsVersion::V2 {
        match find(headers, &TOKEN_HEADERS) {
            None => {
                return text(
                    401,
                    "No MMDS token provided. Use `X-metadata-token` or \
                     `X-aws-ec2-metadata-token` header to specify the session token.",
                );
            }
            Some((_, token)) if !state.tokens.is_good(token, now) => {
                return text(401, "MMDS token not valid.");
            }
            Some(_) => {}
        }
    }
    let format = match accepted(headers) {
        _ if state.config.imds_compat => Format::Text,
        Some(format) => format,
        None => return text(406, "Only application/json and text/plain can be had."),
    };
    let Some(value) = state.document.get(path) else {
        return not_found(path);
    };
    match render(value, format) {
        Some(body) => Answer {
            status: 200,
            reason: "OK",
            format,
            header: None,
            body,
        },
        None => text(
            501,
            "Cannot retrieve value. The value has an unsupported type.",
        ),
    }
}

fn token(mmds: &Mmds, headers: &[Header], now: Instant) -> Answer {
    // Who came through a proxy is not the guest's own (as EC2's store has it).
    if let Some((name, _)) = find(headers, &["X-Forwarded-For"]) {
        let message = format!("Invalid header. Reason: Unsupported header name. Key: {name}");
        return text(400, message);
    }
    let Some((name, value)) = find(headers, &TTL_HEADERS) else {
        return text(
            400,
            "Token time to live value not found. Use `X-metadata-token-ttl-seconds` or \
             `X-aws-ec2-metadata-token-ttl-seconds` header to specify the token's lifetime.",
        );
    };
    let value = String::from_utf8_lossy(value);
    let Some(ttl) = value.parse().ok().filter(|ttl| TTL.contains(ttl)) else {
        let message = format!(
            "Invalid time to live value provided for token: {value}. \
             Please provide a value between {} and {}.",
            TTL.start(),
            TTL.end()
        );
        return text(400, message);
    };
    match lock(&mmds.0).tokens.generate(ttl, now) {
        Some(token) => Answer {
            header: Some(format!("{name}: {ttl}")),
            ..text(200, token)
        },
        None => text(503, "There is no token to be had now."),
    }
}

/// The path without a host in front, a query behind, or more slashes than needed.
fn path(target: &str) -> String {
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut clean = String::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        clean.push('/');
        clean.push_str(part);
    }
    match clean.is_empty() {
        true => "/".into(),
        false => clean,
    }
}

/// The form that the guest wants: text if it does not say.
fn accepted(headers: &[Header]) -> Option<Format> {
    let Some((_, accept)) = find(headers, &["Accept"]) else {
        return Some(Format::Text);
    };
    let accept = String::from_utf8_lossy(accept).to_ascii_lowercase();
    let mut kinds = accept
        .split(',')
        .map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.find_map(|kind| match kind {
        "application/json" => Some(Format::Json),
        "text/plain" | "text/*" | "*/*" | "" => Some(Format::Text),
        _ => None,
    })
}

fn find<'a>(headers: &'a [Header], names: &[&'static str]) -> Option<(&'static str, &'a [u8])> {
    headers.iter().find_map(|header| {
        let name = names
            .iter()
            .find(|name| name.eq_ignore_ascii_case(header.name))?;
        Some((*name, header.value.trim_ascii()))
    })
}

fn body_len(headers: &[Header]) -> Result<usize, Answer> {
    if find(headers, &["Transfer-Encoding"]).is_some() {
        return Err(text(501, "A body has to come with a Content-Length."));
    }
    let mut lens = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("Content-Length"))
        .map(|header| {
            let digits = header.value.trim_ascii();
            let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(digits).ok().filter(|_| plain);
            text.and_then(|text| text.parse::<usize>().ok())
        });
    let first = lens.next().unwrap_or(Some(0));
    match first.filter(|_| lens.all(|len| len == first)) {
        Some(len) => Ok(len),
        None => Err(text(400, "Invalid Content-Length.")),
    }
}

fn keeps_alive(request: &Request) -> bool {
    let connection = find(request.headers, &["Connection"]);
    let connection = connection.map(|(_, value)| value.to_ascii_lowercase());
    match request.version {
        Some(1) => connection.is_none_or(|value| value != b"close"),
        _ => connection.is_some_and(|value| value == b"keep-alive"),
    }
}

fn not_found(path: &str) -> Answer {
    text(404, format!("Resource not found: {path}."))
}

fn text(status: u16, body: impl Into<String>) -> Answer {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        _ => "Service Unavailable",
    };
    Answer {
        status,
        reason,
        format: Format::Text,
        header: None,
        body: body.into(),
    }
}

/// The answer after which nothing of the connection can be made sense of.
fn last(answer: Answer) -> Step {
    Step::Answer {
        consumed: usize::MAX,
        bytes: write(&answer, true),
        close: true,
    }
}

fn write(answer: &Answer, close: bool) -> Vec<u8> {
    let connection = if close { "close" } else { "keep-alive" };
    let extra = match &answer.header {
        Some(header) => format!("{header}\r\n"),
        None => String::new(),
    };
    let Answer {
        status,
        reason,
        format,
        body,
        ..
    } = answer;
    format!(
        "HTTP/1.1 {status} {reason}\r\nServer: Tine MMDS\r\nConnection: {connection}\r\n{extra}\
         Content-Type: {}\r\nContent-Length: {}\r\n\r\n{body}",
        format.media_type(),
        body.len()
    )
    .into_bytes()
}
