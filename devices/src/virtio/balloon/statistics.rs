//! What the guest tells of its memory.

use serde::{Deserialize, Serialize};
use vm_memory::Bytes;

use crate::GuestMemory;
use crate::virtio::Chain;

/// A tag and a value, packed (section 5.5.6.3).
const ENTRY_LEN: usize = 10;
/// Entries looked at; there are 16 kinds.
const MAX_ENTRIES: usize = 64;

macro_rules! statistics {
    ($($tag:literal $name:ident $doc:literal)*) => {
        /// The guest's own view of its memory, as it told it last. What it does not tell is `None`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub struct GuestMemoryStats {
            $(
                #[doc = $doc]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<u64>,
            )*
        }

        impl GuestMemoryStats {
            /// What is told, by its tag.
            pub(super) fn to_list(self) -> Vec<(u16, u64)> {
                let all = [$(($tag, self.$name)),*];
                let told = all.into_iter();
                told.filter_map(|(tag, value)| Some((tag, value?))).collect()
            }

            pub(super) fn set(&mut self, tag: u16, value: u64) {
                match tag {
                    $($tag => self.$name = Some(value),)*
                    _ => {}
                }
            }
        }
    };
}

statistics! {
    0 swap_in "Bytes swapped in."
    1 swap_out "Bytes swapped out."
    2 major_faults "Page faults that had to wait for a disk."
    3 minor_faults "Other page faults."
    4 free_memory "Bytes that are used for nothing at all."
    5 total_memory "Bytes of memory there are."
    6 available_memory "Bytes that could be had without swapping."
    7 disk_caches "Bytes that could be reclaimed without I/O."
    8 hugetlb_allocations "Huge pages allocated."
    9 hugetlb_failures "Huge pages that could not be allocated."
    10 oom_kill "Processes killed for want of memory."
    11 alloc_stall "Times that an allocation had to wait."
    12 async_scan "Pages looked at by background reclaim."
    13 direct_scan "Pages looked at by allocations themselves."
    14 async_reclaim "Pages reclaimed in the background."
    15 direct_reclaim "Pages reclaimed by allocations themselves."
}

impl GuestMemoryStats {
    /// Reads what a chain tells; nothing of it if it is not in memory.
    pub(super) fn read(mem: &GuestMemory, chain: Chain) -> Self {
        let mut bytes = [0; ENTRY_LEN * MAX_ENTRIES];
        let mut filled = 0;
        for descriptor in chain.readable().take(MAX_ENTRIES) {
            let len = (descriptor.len() as usize).min(bytes.len() - filled);
            let part = &mut bytes[filled..filled + len];
            if mem.read_slice(part, descriptor.addr()).is_err() {
                break;
            }
            filled += len;
        }
        let mut stats = Self::default();
        let (entries, _) = bytes[..filled].as_chunks::<ENTRY_LEN>();
        for [a, b, value @ ..] in entries {
            stats.set(u16::from_le_bytes([*a, *b]), u64::from_le_bytes(*value));
        }
        stats
    }
}
