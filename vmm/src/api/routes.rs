//! The table of routes: what there is, and who answers it. What is not in it is not there.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Uri};
use tine_guest_agent::fields::Fields;

use super::body::collect;
use super::fault::{Fault, Reply};
use super::serve::App;
use super::{known, known_refused, v1};

/// Who answers a route.
#[derive(Clone, Copy)]
pub enum Owner {
    /// This process, for the known API.
    Known(Handler),
    /// This process, for `/v1`.
    V1(Handler),
    /// The agent in the guest.
    Agent,
}

/// Answers a request.
pub type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Reply>>>;

/// One route.
#[derive(Clone, Copy)]
pub struct Route {
    /// The method.
    pub method: &'static str,
    /// The path; a segment in braces stands for any one.
    pub path: &'static str,
    /// Who answers.
    pub owner: Owner,
}

/// One request, its body read as a whole.
pub struct Call {
    /// What all requests share.
    pub app: Rc<App>,
    /// The path's variable segment.
    pub id: String,
    /// The target.
    pub uri: Uri,
    /// The body.
    pub body: Bytes,
}

impl Call {
    /// The body's fields; there has to be a body.
    pub fn fields(&self) -> Result<Fields, Fault> {
        match self.body.is_empty() {
            true => Err(Fault::bad_request("the request has no body")),
            false => Ok(Fields::parse(&self.body)?),
        }
    }

    /// The value of a query's parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.uri.query()?.split('&');
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Refuses parameters other than these.
    pub fn only_query(&self, known: &[&str]) -> Result<(), Fault> {
        let pairs = self.uri.query().unwrap_or_default().split('&');
        let names = pairs.map(|pair| pair.split('=').next().unwrap_or_default());
        match names
            .filter(|name| !name.is_empty())
            .find(|name| !known.contains(name))
        {
            Some(name) => Err(Fault::bad_request(format_args!(
                "there is no query parameter {name:?}"
            ))),
            None => Ok(()),
        }
    }
}

/// All routes.
pub fn table() -> impl Iterator<Item = &'static Route> {
    let known = known::ROUTES.iter().chain(known_refused::ROUTES);
    known.chain(v1::ROUTES)
}

/// Answers a request.
pub async fn answer(app: Rc<App>, request: Request<Incoming>) -> Reply {
    let (route, id) = find(request.method(), request.uri().path())?;
    match route.owner {
        // In a box like the others: every request would be as large as the largest, on the stack too.
        Owner::Agent => Box::pin(app.proxy.pass(request, route.path)).await,
        Owner::Known(handler) | Owner::V1(handler) => {
            let most = app.max_body;
            let (parts, incoming) = request.into_parts();
            let body = collect(incoming, most).await?;
            if !body.is_empty() && matches!(parts.method, Method::GET | Method::DELETE) {
                let method = parts.method;
                return Err(Fault::bad_request(format_args!(
                    "a {method} request has no body"
                )));
            }
            let uri = parts.uri;
            handler(Call { app, id, uri, body }).await
        }
    }
}

fn find(method: &Method, path: &str) -> Result<(&'static Route, String), Fault> {
    let mut allowed = Vec::new();
    for route in table() {
        let Some(id) = matches(route.path, path) else {
            continue;
        };
        if route.method == method.as_str() {
            return Ok((route, id.to_owned()));
        }
        allowed.push(route.method);
    }
    match allowed.is_empty() {
        false => Err(Fault::method_not_allowed(path, method, &allowed)),
        true => Err(Fault::new(
            404,
            "not_found",
            format_args!("there is no {path}"),
        )),
    }
}

/// Compares a path with a template, and returns the segment behind braces.
fn matches<'a>(template: &str, path: &'a str) -> Option<&'a str> {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    let mut variable = "";
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(variable),
            (Some(name), Some(segment)) if name.starts_with('{') && !segment.is_empty() => {
                variable = segment;
            }
            (Some(name), Some(segment)) if name == segment => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates() {
        assert_eq!(matches("/", "/"), Some(""));
        assert_eq!(matches("/drives/{id}", "/drives/a_1"), Some("a_1"));
        assert_eq!(
            matches("/v1/exec/{id}/signal", "/v1/exec/x/signal"),
            Some("x")
        );
        for path in [
            "/drives",
            "/drives/",
            "/drives/a/b",
            "drives/a",
            "//drives/a",
        ] {
            assert_eq!(matches("/drives/{id}", path), None, "{path}");
        }
    }

    #[test]
    fn no_route_is_there_twice() {
        let mut seen = std::collections::HashSet::new();
        for route in table() {
            assert!(seen.insert((route.method, route.path)), "{}", route.path);
        }
    }
}
