//! Which path is answered by what.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Method, Request, Uri};
use tine_guest_agent::MAX_JSON_BODY;
use tine_guest_agent::refresh::{Freeze, Refresh, Thawed};
use tine_guest_agent::status::{ShutdownRequest, SignalRequest};

use super::fault::Fault;
use super::http::{self, Reply};
use super::{Agent, events, exec, files, freeze, health, ports, processes, refresh, shutdown};

/// Answers one request.
pub async fn answer(agent: Rc<Agent>, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_owned();
    let Some(rest) = path.strip_prefix("/v1/") else {
        return Err(unknown(&path));
    };
    let (area, rest) = rest.split_once('/').unwrap_or((rest, ""));
    match area {
        "exec" => exec::api::answer(agent, request, rest).await,
        "health" if rest.is_empty() => {
            only(&request, &Method::GET)?;
            http::json(200, &health::figures(&agent))
        }
        "events" if rest.is_empty() => {
            only(&request, &Method::GET)?;
            events::listen(&agent)
        }
        "refresh" if rest.is_empty() => {
            only(&request, &Method::POST)?;
            let wanted = Refresh::from_json(&body(request).await?)?;
            http::json(200, &refresh::refresh(&agent, wanted).await?)
        }
        "freeze" if rest.is_empty() => {
            only(&request, &Method::POST)?;
            let wanted = Freeze::from_json(&body(request).await?)?;
            http::json(200, &freeze::freeze(&agent, wanted).await?)
        }
        "thaw" if rest.is_empty() => {
            only(&request, &Method::POST)?;
            let held = agent.freezer.thaw(&agent.config.effects);
            http::json(200, &Thawed { held })
        }
        "shutdown" if rest.is_empty() => {
            only(&request, &Method::POST)?;
            let wanted = ShutdownRequest::from_json(&body(request).await?)?;
            shutdown::request(&agent, wanted);
            http::json(202, &wanted)
        }
        "files" => files::answer(request, rest).await,
        "ports" => ports::answer(request, rest).await,
        "processes" => processes_area(agent, request, rest).await,
        _ => Err(unknown(&path)),
    }
}

async fn processes_area(agent: Rc<Agent>, request: Request<Incoming>, rest: &str) -> Reply {
    if rest.is_empty() {
        only(&request, &Method::GET)?;
        return http::json(200, &processes::list(&agent).await);
    }
    let path = request.uri().path();
    let pid = rest.strip_suffix("/signal").ok_or_else(|| unknown(path))?;
    let pid: i32 = pid.parse().map_err(|_| unknown(path))?;
    only(&request, &Method::POST)?;
    let wanted = SignalRequest::from_json(&body(request).await?)?;
    if pid <= 1 {
        return Err(Fault::new(
            403,
            "forbidden",
            "the agent itself takes no signals",
        ));
    }
    super::sys::kill(pid, wanted.signal).map_err(|error| match error.raw_os_error() {
        Some(libc::ESRCH) => Fault::not_found(format_args!("there is no process {pid}")),
        _ => Fault::io(&error, &format!("process {pid}")),
    })?;
    Ok(http::empty(204))
}

/// A JSON body.
pub async fn body(request: Request<Incoming>) -> Result<Vec<u8>, Fault> {
    http::collect(request.into_body(), MAX_JSON_BODY).await
}

/// Refuses other methods.
pub fn only(request: &Request<Incoming>, method: &Method) -> Result<(), Fault> {
    if request.method() == method {
        Ok(())
    } else {
        Err(wrong_method(request))
    }
}

pub fn wrong_method(request: &Request<Incoming>) -> Fault {
    let (method, path) = (request.method(), request.uri().path());
    Fault::new(
        405,
        "method_not_allowed",
        format_args!("{path} does not take {method}"),
    )
}

pub fn unknown(path: &str) -> Fault {
    Fault::not_found(format_args!("there is no {path}"))
}

/// The value of a query's parameter. Values are taken as they stand but for percent signs.
pub fn query(uri: &Uri, name: &str) -> Option<Vec<u8>> {
    let pairs = uri.query()?.split('&');
    let pair = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pair.filter(|(key, _)| *key == name)
        .map(|(_, value)| percent_decode(value))
        .next()
}

/// Bytes behind `%XX`; a percent sign without two digits stands for itself.
pub fn percent_decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match value {
            Some(value) if *first == b'%' => {
                bytes.push(value);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::percent_decode;

    #[test]
    fn percent_signs() {
        assert_eq!(percent_decode("a%20b%FF%2g%"), b"a b\xff%2g%");
        assert_eq!(percent_decode("%é"), "%é".as_bytes());
        assert_eq!(percent_decode("%+1"), b"%+1");
    }
}
