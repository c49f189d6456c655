//! Who the process is: its user, its groups, and a user namespace in which it is nobody else.

use rustix::fs::{Gid, Uid};
use rustix::thread::{UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::error::{JailError, failed};
use crate::proc_fs::Proc;
use crate::sys;

/// How many user namespaces can be made in this one (namespaces(7)).
const LIMIT: &str = "sys/user/max_user_namespaces";

/// Becomes `uid` and `gid`, in no other group, and in a user namespace that knows no one else.
/// `Ok(false)`: without the namespace, since the host does not allow it.
///
/// In between, the process is `uid` but for the right to write its own maps, and never one that
/// its future neighbours of the same user may look into (ptrace(2), dumpable).
pub(crate) fn become_user(proc: &Proc, uid: u32, gid: u32) -> Result<bool, JailError> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[]).map_err(failed("leave all groups"))?;
    set_thread_res_gid(group, group, group).map_err(failed(format!("become group {gid}")))?;
    let doing = || format!("become user {uid}");
    set_thread_res_uid(None, user, None).map_err(failed(doing()))?;
    sys::access_files_as_root();
    let alone = match sys::unshare(UnshareFlags::NEWUSER) {
        Ok(()) => {
            write_maps(proc, uid, gid)?;
            true
        }
        Err(_) => false,
    };
    set_thread_res_uid(user, user, user).map_err(failed(doing()))?;
    Ok(alone)
}

/// An ordinary user's user namespace, in which it has all rights over what is made next.
///
/// # Errors
///
/// [`JailError::NoUserNamespace`] when the host keeps them from ordinary users.
pub(crate) fn own_namespace(proc: &Proc, uid: u32, gid: u32) -> Result<(), JailError> {
    let made = sys::unshare(UnshareFlags::NEWUSER)
        .map_err(failed("make a user namespace"))
        // Where AppArmor forbids it the namespace is there, and nothing can be done in it.
        .and_then(|()| write_maps(proc, uid, gid));
    made.map_err(|err| JailError::NoUserNamespace {
        why: match forbidding(proc) {
            Some(setting) => format!("the setting {setting} forbids it ({err})"),
            None => format!("{err}; a container's rules may forbid it"),
        },
    })
}

/// Settings that keep user namespaces from ordinary users, and their values that do: the kernel's own
/// (namespaces(7)), Debian's, and AppArmor's.
const FORBIDDING: [(&str, &str); 3] = [
    (LIMIT, "0"),
    ("sys/kernel/unprivileged_userns_clone", "0"),
    ("sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
];

/// The first of them that is set so, as sysctl(8) puts it.
fn forbidding(proc: &Proc) -> Option<String> {
    let set = |(path, value): &&(&str, &str)| {
        let found = proc.read(path);
        found.is_ok_and(|found| found.trim() == *value)
    };
    let (path, value) = FORBIDDING.iter().find(set)?;
    let name = path.trim_start_matches("sys/").replace('/', ".");
    Some(format!("{name} = {value}"))
}

fn write_maps(proc: &Proc, uid: u32, gid: u32) -> Result<(), JailError> {
    let write = |file: &str, text: &str| {
        proc.write(&format!("self/{file}"), text)
            .map_err(failed(format!("write {text:?} to /proc/self/{file}")))
    };
    write("uid_map", &format!("{uid} {uid} 1"))?;
    write("setgroups", "deny")?;
    write("gid_map", &format!("{gid} {gid} 1"))
}

/// Lets nobody in this user namespace make further ones, and with them the right to make any other
/// kind: that right is given up here, and comes with a new user namespace only. So there is one limit
/// to write and not one for each kind, each of which many jails at once would wait for.
pub(crate) fn deny_namespaces(proc: &Proc) -> Result<(), JailError> {
    proc.write(LIMIT, "0")
        .map_err(failed(format!("write 0 to /proc/{LIMIT}")))
}
