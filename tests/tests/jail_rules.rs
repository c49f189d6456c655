//! The rules about system calls, held against what runs really call: none is missing, and none is
//! there that nothing needs.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tine_jailer::seccomp::names::name_of;
use tine_jailer::seccomp::{ROLES, Role, Trace};
use tine_tests::api::tine_vmm;
use tine_tests::jail::{passed, require_root, suites};

/// Test files that between them make a monitor do all that it can.
const SUITES: [&str; 7] = [
    "api_features",
    "api_lifecycle",
    "api_process",
    "api_linux",
    "snapshot_api",
    "fork_api",
    "fork_disks",
];

/// Runs them with every call noted down. `TINE_TRACES` names a directory with an earlier run's.
fn traces() -> Trace {
    require_root();
    let kept = std::env::var_os("TINE_TRACES").map(PathBuf::from);
    let dir = tempfile::tempdir().unwrap();
    let traces = match &kept {
        Some(dir) => dir.as_path(),
        None => {
            run(dir.path());
            dir.path()
        }
    };
    let mut all = Trace::default();
    let mut files = 0;
    for entry in std::fs::read_dir(traces).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "trace")
        {
            all.add(std::fs::read_to_string(&path).unwrap().parse().unwrap());
            files += 1;
        }
    }
    assert!(files > 10, "{files} runs");
    all
}

fn run(dir: &Path) {
    let script = dir.join("traced");
    let text = format!(
        "#!/bin/sh\nexec {} {} {} --seccomp trace \"$@\"\n",
        env!("CARGO_BIN_EXE_tine-trace"),
        dir.display(),
        tine_vmm().display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    passed(&suites(&SUITES, &script, &[]));
}

#[test]
fn no_rule_is_missing_and_none_is_there_that_nothing_needs() {
    let all = traces();
    let mut wrong = Vec::new();
    for role in ROLES {
        let table = role.table();
        let calls: BTreeSet<_> = all.of(role).collect();
        for call in &calls {
            if !table.allows(call.number, &call.arguments) {
                let (name, arguments) = (name_of(call.number), call.arguments);
                wrong.push(format!(
                    "{}: no rule for {name:?} {arguments:x?}",
                    role.name()
                ));
            }
        }
        println!("{}: {} calls", role.name(), role.calls());
        // What it starts is under its rules and does what they are there for; by itself it does next
        // to nothing.
        if role == Role::Starter {
            continue;
        }
        for rule in role.own_table().rules.iter().filter(|rule| !rule.rare) {
            // Each value of a list is a rule of its own.
            for rule in rule.alternatives() {
                if !calls
                    .iter()
                    .any(|call| rule.allows(call.number, &call.arguments))
                {
                    wrong.push(format!("{}: nothing needs `{}`", role.name(), rule.text));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
