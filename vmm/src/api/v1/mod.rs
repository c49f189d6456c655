//! `/v1`: what the known API has no words for.

mod config;
mod events;
mod machine;
mod metrics;
mod restore;
mod snapshot;

pub use config::saved;

use super::routes::{Owner, Route};

/// A route that this process answers.
macro_rules! route {
    ($method:literal $path:literal $handler:expr) => {
        Route {
            method: $method,
            path: $path,
            owner: Owner::V1(|call| Box::pin($handler(call))),
        }
    };
}

/// A route that the agent answers.
const fn agent(method: &'static str, path: &'static str) -> Route {
    Route {
        method,
        path,
        owner: Owner::Agent,
    }
}

/// All routes of `/v1`.
pub const ROUTES: &[Route] = &[
    route!("GET" "/v1/machine" machine::get),
    route!("DELETE" "/v1/machine" machine::delete),
    route!("GET" "/v1/config" config::get),
    route!("PUT" "/v1/config" config::put),
    route!("GET" "/v1/events" events::follow),
    route!("GET" "/v1/metrics" metrics::text),
    route!("PUT" "/v1/snapshots" snapshot::take),
    route!("POST" "/v1/fork" snapshot::fork),
    route!("PUT" "/v1/restore" restore::restore),
    route!("POST" "/v1/refresh" restore::refresh),
    route!("PUT" "/v1/working-set" restore::working_set),
    agent("GET", "/v1/health"),
    agent("POST", "/v1/shutdown"),
    agent("GET", "/v1/exec"),
    agent("POST", "/v1/exec"),
    agent("GET", "/v1/exec/{request_id}"),
    agent("DELETE", "/v1/exec/{request_id}"),
    agent("POST", "/v1/exec/{request_id}/signal"),
    agent("POST", "/v1/exec/{request_id}/attach"),
    agent("GET", "/v1/files/content"),
    agent("PUT", "/v1/files/content"),
    agent("GET", "/v1/files/stat"),
    agent("GET", "/v1/files/list"),
    agent("GET", "/v1/files/tar"),
    agent("PUT", "/v1/files/tar"),
    agent("GET", "/v1/files/watch"),
    agent("POST", "/v1/files/mkdir"),
    agent("POST", "/v1/files/rename"),
    agent("POST", "/v1/files/remove"),
    agent("POST", "/v1/files/symlink"),
    agent("POST", "/v1/files/chmod"),
    agent("POST", "/v1/ports/{port}"),
    agent("GET", "/v1/processes"),
    agent("POST", "/v1/processes/{pid}/signal"),
];
