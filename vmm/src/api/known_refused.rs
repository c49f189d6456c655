//! The known API's requests for devices and settings that no machine here has: each is refused by
//! its own name, so that a client learns what to leave out and not that its path is wrong.

use super::fault::{Fault, Reply};
use super::routes::{Call, Owner, Route};

/// A route that says why it is refused.
macro_rules! refused {
    ($method:literal $path:literal $words:expr) => {
        Route {
            method: $method,
            path: $path,
            owner: Owner::Known(|call| Box::pin(refuse(call, $words))),
        }
    };
}

const CPU: &str = "CPU templates are not supported: a guest sees its host's processor, less what \
    KVM cannot give it; leave `/cpu-config` out";
const PMEM: &str = "pmem devices are not supported: give the image to `/drives/{drive_id}`";
const HOTPLUG: &str = "memory hotplug is not supported: set the most that is wanted as \
    `mem_size_mib` and take the rest away with `/balloon`";

/// All of them.
pub const ROUTES: &[Route] = &[
    refused!("PUT" "/cpu-config" CPU),
    refused!("PUT" "/pmem/{id}" PMEM),
    refused!("PATCH" "/pmem/{id}" PMEM),
    refused!("GET" "/hotplug/memory" HOTPLUG),
    refused!("PUT" "/hotplug/memory" HOTPLUG),
    refused!("PATCH" "/hotplug/memory" HOTPLUG),
];

async fn refuse(_call: Call, words: &'static str) -> Reply {
    Err(Fault::bad_request(words))
}
