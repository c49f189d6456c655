//! The agent: PID 1 of a guest, or (for tests and for guests with an init of their own) an ordinary program.
//!
//! One thread runs the loop and owns all state; work that may wait for a disk goes to few others. Every system call
//! and page touched counts twice here: as time before a machine is usable, and as time of each command.

mod cgroup;
mod clock;
mod config;
mod conn;
mod effects;
mod events;
mod exec;
mod fault;
mod files;
mod freeze;
mod health;
mod hello;
mod http;
mod init;
mod interfaces;
mod neighbours;
mod netlink;
mod ports;
mod processes;
mod reap;
mod refresh;
mod root;
mod routes;
mod serve;
mod shutdown;
#[cfg(all(feature = "slim", small, not(test)))]
mod slim;
mod sys;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use tine_guest_agent::hello::Hello;
use tine_guest_agent::octets::Octets;
use tine_guest_agent::status::ShutdownRequest;
use tokio::sync::Notify;

use self::cgroup::Cgroups;
use self::config::Config;
use self::events::Events;
use self::exec::store::Store;
use self::freeze::Freezer;
use self::reap::Reaper;

/// What the parts of the agent share.
struct Agent {
    config: Config,
    store: Rc<Store>,
    reaper: Reaper,
    cgroups: Cgroups,
    /// What commands without input read.
    null: OwnedFd,
    /// How the machine is to be ended, once it is: nothing new is accepted then.
    shutdown: Cell<Option<ShutdownRequest>>,
    /// `shutdown` has been set.
    ending: Notify,
    /// A command has ended.
    run_ended: Notify,
    /// Who this is; `monotonic_ns` is filled in when it is said.
    hello: RefCell<Hello>,
    /// The host has told of a restore or fork.
    refreshed: Notify,
    /// Variables that commands start with, given by the last refresh.
    env: RefCell<Arc<BTreeMap<String, Octets>>>,
    freezer: Freezer,
    events: Events,
}

impl Agent {
    /// Who this is, now.
    fn hello_now(&self) -> Hello {
        let mut hello = self.hello.borrow().clone();
        hello.monotonic_ns = clock::monotonic_ns();
        hello
    }
}

/// The program; returns its exit status.
pub fn main() -> i32 {
    let started_ns = clock::monotonic_ns();
    sys::prepare();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The kernel hands words after its own `--` to PID 1; only a deliberate start has this option.
    let init = std::process::id() == 1 && !arguments.iter().any(|word| word == "--listen");
    let config = if init {
        init::prepare()
    } else {
        Config::from_arguments(&arguments)
    };
    let result = config.and_then(|config| {
        serve::run(config, started_ns).map_err(|error| format!("cannot serve: {error}"))
    });
    match result {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("tine-agent: {reason}");
            if init {
                init::give_up();
            }
            1
        }
    }
}

/// Which of two futures was first.
enum Either<A, B> {
    Left(A),
    Right(B),
}

/// Waits for the first of two futures; the left one wins a tie. The other is dropped.
async fn race<A, B>(left: impl Future<Output = A>, right: impl Future<Output = B>) -> Either<A, B> {
    let mut left = pin!(left);
    let mut right = pin!(right);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = left.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(value));
        }
        right.as_mut().poll(cx).map(Either::Right)
    })
    .await
}
