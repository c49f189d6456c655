//! Capabilities: none is left, and none can come back.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

use crate::error::{JailError, failed};

/// Empties all five sets. User 0 gets nothing back by executing something.
pub(crate) fn drop_all() -> Result<(), JailError> {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    match set_capabilities_secure_bits(bits) {
        // Without a user namespace, an unprivileged process has no right to, and nothing to lose.
        Ok(()) | Err(Errno::PERM) => {}
        Err(err) => return Err(failed("lock the secure bits")(err)),
    }
    for number in 0..64 {
        let Some(capability) = CapabilitySet::from_bits(1 << number) else {
            break;
        };
        match remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(Errno::PERM) => {}
            // One more than the kernel knows.
            Err(Errno::INVAL) => break,
            Err(err) => return Err(failed("empty the bounding set")(err)),
        }
    }
    clear_ambient_capability_set().map_err(failed("empty the ambient set"))?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets).map_err(failed("drop all capabilities"))
}

/// Nothing that is executed gives rights any more, whatever its file says.
pub(crate) fn no_new_privileges() -> Result<(), JailError> {
    set_no_new_privs(true).map_err(failed("forbid new privileges"))
}
