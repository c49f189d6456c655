//! What kind of KVM the host offers, and what a Linux guest has to be told because of it.
//!
//! This is the only place that knows of software KVM: hosts whose processor has no
//! virtualization extension (a nested machine without VT-x or SVM) and whose `/dev/kvm` runs
//! guests by paging tricks and by interpreting guest-kernel code.

use std::path::Path;

use crate::arch::x86_64::processor::answer;

/// The kinds of host that a guest's command line differs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostKind {
    /// KVM on VT-x or SVM.
    Hardware,
    /// KVM without a virtualization extension.
    Software,
}

impl HostKind {
    /// Asks the processor.
    pub fn detect() -> Self {
        // VMX: Intel SDM volume 2, CPUID leaf 1, ECX bit 5. SVM: AMD APM volume 3, CPUID
        // function 8000_0001h, ECX bit 2; the function is there on every x86-64.
        let vmx = answer(1, 0).ecx & 1 << 5 != 0;
        let svm = answer(0x8000_0001, 0).ecx & 1 << 2 != 0;
        if (vmx || svm) && !Path::new("/sys/module/kvm_pvm").exists() {
            HostKind::Hardware
        } else {
            HostKind::Software
        }
    }

    /// Words for the guest kernel's command line that this host needs.
    pub fn kernel_words(self) -> &'static str {
        match self {
            HostKind::Hardware => "",
            // The interpreter lacks the instructions behind these features, or does them slowly,
            // and CPUID shows them to the guest whatever the monitor says. The monitor carries
            // out some of them (`crate::vcpu::Emulator`), at a hundred times the interpreter's
            // price: what a kernel does rarely and cannot do without stays, and that is XSAVE,
            // with all components, since ring 3 runs on the processor and has their registers.
            // `rodata=off` and the switched-off mitigations save the guest work that the
            // interpreter makes expensive and that protects nothing here: ring 0 is not run by
            // the processor.
            HostKind::Software => {
                "clearcpuid=cx16,popcnt,erms,fsrm,rdrand,rdseed,invpcid,pcid,fsgsbase,\
                 smap,smep,umip,xsaves,xsavec,clflushopt,clwb,rdpid mitigations=off \
                 rodata=off"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_software_hosts_add_words() {
        assert!(HostKind::Hardware.kernel_words().is_empty());
        let words = HostKind::Software.kernel_words();
        assert!(words.contains("clearcpuid="));
        // Without these a guest kernel does not save what its programs use.
        for needed in ["noxsave", "avx", "xsave,", "xsave "] {
            assert!(!words.contains(needed), "{needed}");
        }
        assert!(!words.contains("  "), "one space between words: {words:?}");
    }
}
