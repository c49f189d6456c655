//! The compiled filters, and the rules that they were made of.

use seccompiler::sock_filter;

use super::table::{Table, parse};

/// What a thread is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Every thread, from the first instruction on.
    Process,
    /// The controller, once guest code can run.
    Main,
    /// The event loop of the devices.
    Devices,
    /// A vCPU.
    Vcpu,
    /// The server of the API socket.
    Api,
    /// A thread beside the others: a drive's worker, one that waits for something.
    Worker,
    /// Those that write a snapshot, or layers of disks.
    Writer,
    /// Those that make copies of the machine ready and hand them out.
    Fork,
    /// The thread that has memory read ahead.
    Prefetch,
    /// The one that starts threads for the controller.
    Starter,
}

/// All roles.
pub const ROLES: [Role; 10] = [
    Role::Process,
    Role::Main,
    Role::Devices,
    Role::Vcpu,
    Role::Api,
    Role::Worker,
    Role::Writer,
    Role::Fork,
    Role::Prefetch,
    Role::Starter,
];

mod compiled {
    use super::sock_filter;

    include!(concat!(env!("OUT_DIR"), "/filters.rs"));
}

macro_rules! texts {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("rules/", $name, ".rules")))),*]
    };
}

/// The rules as they were written.
const TEXTS: &[(&str, &str)] = texts! {
    "process" "main" "devices" "vcpu" "api" "worker" "writer" "fork" "prefetch" "starter" "thread" "heap" "files" "start" "restrict"
};

impl Role {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Role::Process => "process",
            Role::Main => "main",
            Role::Devices => "devices",
            Role::Vcpu => "vcpu",
            Role::Api => "api",
            Role::Worker => "worker",
            Role::Writer => "writer",
            Role::Fork => "fork",
            Role::Prefetch => "prefetch",
            Role::Starter => "starter",
        }
    }

    pub(super) fn filter(self) -> &'static [sock_filter] {
        match self {
            Role::Process => &compiled::PROCESS,
            Role::Main => &compiled::MAIN,
            Role::Devices => &compiled::DEVICES,
            Role::Vcpu => &compiled::VCPU,
            Role::Api => &compiled::API,
            Role::Worker => &compiled::WORKER,
            Role::Writer => &compiled::WRITER,
            Role::Fork => &compiled::FORK,
            Role::Prefetch => &compiled::PREFETCH,
            Role::Starter => &compiled::STARTER,
        }
    }

    /// The rules that its filter was compiled from.
    pub fn table(self) -> Table {
        if self != Role::Process {
            return self.own_table();
        }
        let mut every = Table::default();
        for role in ROLES.into_iter().filter(|role| *role != Role::Process) {
            every.add(&role.own_table());
        }
        every.add(&self.own_table());
        every
    }

    /// How many different calls it allows, in a build without debug assertions.
    pub fn calls(self) -> usize {
        let rules = self.table().rules.into_iter().filter(|rule| !rule.debug);
        let numbers = rules.map(|rule| rule.number);
        numbers.collect::<std::collections::BTreeSet<i64>>().len()
    }

    /// The rules of its own file, which for the whole process are those that no other role has.
    pub fn own_table(self) -> Table {
        let text = |name: &str| {
            let found = TEXTS.iter().find(|(other, _)| *other == name);
            found.map(|(_, text)| (*text).to_owned())
        };
        let own = text(self.name()).unwrap_or_default();
        // They have been compiled, so they can be read.
        parse(&own, cfg!(debug_assertions), &text).unwrap_or_default()
    }
}
