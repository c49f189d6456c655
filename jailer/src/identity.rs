//! Who the process is: its user, its groups, and a user namespace that knows nobody else.

use rustix::fs::{Gid, Uid};
use rustix::thread::{UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::error::{JailError, failed};
use crate::proc_fs::Proc;
use crate::sys;

/// How many user namespaces can be made in this one (namespaces(7)).
const LIMIT: &str = "sys/user/max_user_namespaces";

/// Becomes `uid` and `gid`, in no other group, and in a user namespace that knows no one, not even
/// that user. `Ok(false)`: without the namespace, since the host does not allow it.
///
/// No map of users is written, and who has none cannot make a further user namespace
/// (user_namespaces(7), EPERM), nor with it one of any other kind. It can open what its user can: the
/// host's files know that user, whatever the namespace calls it. A map would cost a jail three files of
/// `/proc`, and a limit to forbid further namespaces one whose search takes the longer the more jails
/// there are: all of them have one of that name.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<bool, JailError> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[]).map_err(failed("leave all groups"))?;
    set_thread_res_gid(group, group, group).map_err(failed(format!("become group {gid}")))?;
    // It is not one that its future neighbours of the same user may look into: a process that changes
    // its user is none (ptrace(2), dumpable).
    set_thread_res_uid(user, user, user).map_err(failed(format!("become user {uid}")))?;
    Ok(sys::unshare(UnshareFlags::NEWUSER).is_ok())
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

/// Lets an ordinary user's process make no further user namespaces in its own, which has a map, and with them the right to make any other
/// kind: that right is given up here, and comes with a new user namespace only. So there is one limit
/// to write and not one for each kind, each of which many jails at once would wait for.
pub(crate) fn deny_namespaces(proc: &Proc) -> Result<(), JailError> {
    proc.write(LIMIT, "0")
        .map_err(failed(format!("write 0 to /proc/{LIMIT}")))
}
