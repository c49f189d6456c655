//! What CPUID tells a guest: the host's supported features, with the topology of this machine.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// Leaf 1, ECX: x2APIC, TSC deadline timer, hypervisor present (Intel SDM volume 2, CPUID).
const X2APIC: u32 = 1 << 21;
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1, ECX, and leaf 8000_0001h, ECX: virtual machines in the guest, which would give it more of
/// the host's kernel to attack, and whose state no snapshot has.
const VMX: u32 = 1 << 5;
const SVM: u32 = 1 << 2;
/// Leaf 1, EDX: more than one logical processor in the package.
const HTT: u32 = 1 << 28;
/// Leaf 6, ECX: performance and energy bias, which a guest could not set.
const ENERGY_BIAS: u32 = 1 << 3;

/// Fits `cpuid`, as KVM supports it, to vCPU `index` of `vcpus`. All vCPUs are cores of one
/// package, one thread each.
pub fn for_vcpu(supported: &CpuId, index: u8, vcpus: u8) -> CpuId {
    let mut cpuid = supported.clone();
    for entry in cpuid.as_mut_slice() {
        set_up(entry, u32::from(index), u32::from(vcpus));
    }
    cpuid
}

fn set_up(entry: &mut kvm_cpuid_entry2, index: u32, vcpus: u32) {
    match entry.function {
        0x1 => {
            entry.ebx = entry.ebx & 0x0000_ffff | index << 24 | vcpus.min(255) << 16;
            entry.ecx |= X2APIC | TSC_DEADLINE | HYPERVISOR;
            entry.ecx &= !VMX;
            entry.edx = if vcpus > 1 {
                entry.edx | HTT
            } else {
                entry.edx & !HTT
            };
        }
        // Caches: levels 1 and 2 belong to a core, level 3 to the package.
        0x4 | 0x8000_001d if entry.eax & 0x1f != 0 => {
            let level = entry.eax >> 5 & 0x7;
            let sharing = if level < 3 { 0 } else { vcpus - 1 };
            entry.eax = entry.eax & 0x0000_3fff | sharing.min(0xfff) << 14;
            if entry.function == 0x4 {
                entry.eax |= (vcpus - 1).min(0x3f) << 26;
            }
        }
        0x6 => entry.ecx &= !ENERGY_BIAS,
        // No performance counters: the guest then spends no time on finding out.
        0xa => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
        0xb | 0x1f => topology(entry, index, vcpus),
        0x8000_0001 => entry.ecx &= !SVM,
        // AMD: number of cores and width of the core's part of the APIC id.
        0x8000_0008 => {
            entry.ecx = entry.ecx & !0xf0ff | (vcpus - 1).min(0xff) | id_bits(vcpus) << 12;
        }
        0x8000_001e => {
            entry.eax = index;
            entry.ebx = entry.ebx & !0xffff | index & 0xff;
            entry.ecx = 0;
        }
        _ => {}
    }
}

/// Extended topology: level 0 are the threads of a core (one), level 1 the cores.
fn topology(entry: &mut kvm_cpuid_entry2, index: u32, vcpus: u32) {
    let (shift, count, kind) = match entry.index {
        0 => (0, 1, 1),
        1 => (id_bits(vcpus), vcpus, 2),
        _ => (0, 0, 0),
    };
    entry.eax = shift;
    entry.ebx = count;
    entry.ecx = entry.index | kind << 8;
    entry.edx = index;
}

/// How many bits number `count` cores.
fn id_bits(count: u32) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(cpuid: &CpuId, function: u32, index: u32) -> kvm_cpuid_entry2 {
        let entries = cpuid.as_slice();
        *entries
            .iter()
            .find(|e| e.function == function && e.index == index)
            .unwrap()
    }

    fn supported() -> CpuId {
        let entry = |function, index| kvm_cpuid_entry2 {
            function,
            index,
            ..Default::default()
        };
        let mut cache = entry(4, 3);
        cache.eax = 3 << 5 | 3;
        let entries = [
            entry(1, 0),
            cache,
            entry(0xb, 0),
            entry(0xb, 1),
            entry(0x8000_0008, 0),
        ];
        CpuId::from_entries(&entries).unwrap()
    }

    #[test]
    fn each_vcpu_has_its_own_apic_id_everywhere() {
        for index in 0..5 {
            let cpuid = for_vcpu(&supported(), index, 5);
            assert_eq!(leaf(&cpuid, 1, 0).ebx >> 24, u32::from(index));
            assert_eq!(leaf(&cpuid, 0xb, 0).edx, u32::from(index));
        }
    }

    #[test]
    fn the_topology_tells_the_number_of_vcpus() {
        let cpuid = for_vcpu(&supported(), 0, 5);
        assert_eq!(leaf(&cpuid, 1, 0).ebx >> 16 & 0xff, 5);
        assert_eq!(leaf(&cpuid, 0xb, 1).ebx, 5);
        assert_eq!(leaf(&cpuid, 0xb, 1).eax, 3, "five cores need three bits");
        assert_eq!(
            leaf(&cpuid, 4, 3).eax >> 14 & 0xfff,
            4,
            "all share the level 3 cache"
        );
        assert_eq!(leaf(&cpuid, 0x8000_0008, 0).ecx & 0xff, 4);
    }

    #[test]
    fn one_vcpu_is_not_hyperthreaded() {
        let cpuid = for_vcpu(&supported(), 0, 1);
        assert_eq!(leaf(&cpuid, 1, 0).edx & HTT, 0);
        assert_eq!(leaf(&cpuid, 1, 0).ecx & HYPERVISOR, HYPERVISOR);
    }
}
