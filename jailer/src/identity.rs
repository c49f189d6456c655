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
pub(crate) fn own_namespace(proc: &Proc, uid: u32, gid: u32) -> Result<(), JailError> {
    sys::unshare(UnshareFlags::NEWUSER).map_err(failed(
        "make a user namespace (are they allowed? see /proc/sys/user/max_user_namespaces)",
    ))?;
    write_maps(proc, uid, gid)
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
