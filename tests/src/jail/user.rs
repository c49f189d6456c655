//! An ordinary user of the host who may use `/dev/kvm`, and a place for that user's machines.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{copy, private_mounts};
use crate::cli::{Place, with_vmm};
use crate::tine;

/// The user, and its group.
pub const USER: u32 = 4242;
/// The group that may use `/dev/kvm`, which the user is in.
pub const KVM: u32 = 4343;

/// A place that belongs to the user and everybody can look into, with copies of the programs and room
/// for templates, where `tine` is started as the user. In a mount namespace of the test's own, in which `/dev/kvm` is a
/// group's.
pub fn place() -> Place {
    private_mounts();
    with_vmm();
    let script = format!(
        "mknod -m 660 /run/kvm c 10 232 && chgrp {KVM} /run/kvm && mount --bind /run/kvm /dev/kvm"
    );
    let made = Command::new("sh").args(["-c", &script]).status();
    assert!(made.expect("a shell").success());
    let place = Place::new();
    let dir = place.path("");
    std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).expect("a directory");
    for own in [&dir, &place.run()] {
        chown(own, Some(USER), Some(USER)).expect("a directory");
    }
    std::fs::set_permissions(place.run(), Permissions::from_mode(0o700)).expect("a directory");
    let program = copy(tine(), &dir);
    copy(&tine().with_file_name("tine-vmm"), &dir);
    let (user, kvm) = (USER.to_string(), KVM.to_string());
    let data = format!("TINE_DATA_DIR={}", place.path("data").display());
    let words = [
        "env", &data, "setpriv", "--reuid", &user, "--regid", &user, "--groups", &kvm, "--",
    ];
    let words = words.into_iter().map(Into::into);
    place.launched_by(words.chain([program.into_os_string()]).collect())
}

/// A copy of a file that everybody may read and only root write.
pub fn readable(place: &Place, file: &Path) -> PathBuf {
    let path = place.path(file.file_name().expect("a file has a name"));
    std::fs::copy(file, &path).expect("the file can be copied");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("its mode");
    path
}
