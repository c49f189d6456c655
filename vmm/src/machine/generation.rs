//! The VM generation id: 16 random bytes in guest memory that are others in each machine. A guest
//! that sees them change reseeds its random number generator ("Virtual Machine Generation ID",
//! Microsoft; Linux, drivers/virt/vmgenid.c).

use std::io;

use tine_devices::GuestMemory;
use vm_memory::{Bytes, GuestAddress};

use super::MachineError;
use crate::kvm::{KvmError, Vm};
use crate::layout;

/// Gives the machine an id of its own.
pub(super) fn renew(mem: &GuestMemory) -> Result<(), MachineError> {
    let os = |source| MachineError::Os {
        action: "give the machine a generation id",
        source,
    };
    let mut id = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    let len = rustix::rand::getrandom(&mut id, flags).map_err(|err| os(err.into()))?;
    debug_assert_eq!(len, id.len(), "getrandom(2): up to 256 bytes come whole");
    mem.write_slice(&id, GuestAddress(layout::VM_GENERATION_ID))
        .map_err(|err| os(io::Error::other(err)))
}

/// Tells a guest that runs already that its id is another one.
pub(super) fn announce(vm: &Vm) -> Result<(), KvmError> {
    vm.pulse(layout::GENERATION_GSI)
}
