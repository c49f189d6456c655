//! What works outside of a jail works in one: the tests of the API, with every machine in a jail
//! and under its filters.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tine_tests::api::tine_vmm;
use tine_tests::guest;
use tine_tests::jail::{Jails, passed, suites};
use tine_tests::linux::image;

#[test]
fn machines_in_jails_pass_the_tests_of_the_api() {
    let jails = Jails::of(tine_vmm());
    let (kernel, _) = image();
    let images = std::fs::canonicalize(kernel).unwrap();
    let guests = guest("spin");
    let shown = [
        "/tmp".as_ref(),
        images.parent().unwrap(),
        guests.parent().unwrap(),
    ];
    let shown: Vec<_> = shown.map(|path: &Path| path.display().to_string()).into();
    let script = jails.dir.path().join("jailed");
    let text = format!(
        "#!/bin/sh\nexport TINE_JAILED_PROGRAM='{}' TINE_JAILED_BASE='{}' TINE_JAILED_FILES='{}'\n\
         exec {} \"$@\"\n",
        jails.program.display(),
        jails.base().display(),
        shown.join(" "),
        env!("CARGO_BIN_EXE_tine-jailed"),
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let names = [
        "api_features",
        "api_lifecycle",
        "api_linux",
        "api_process",
        "fork_api",
        "snapshot_api",
        "snapshot_pair",
    ];
    let without = [
        // It mounts a small file system when its machine is in the jail already, which does not see it.
        "a_full_disk_costs_nothing_but_the_snapshot",
        // What a machine has touched is asked of /proc, which a jail has not.
        "what_machines_touch_first_is_read_ahead",
    ];
    passed(&suites(&names, &script, &without));
}
