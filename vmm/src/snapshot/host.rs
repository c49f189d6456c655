//! The host that a snapshot was taken on, and whether this one can go on with it.

use tine_snapshot::manifest::{Host, Kvm};

use crate::arch::x86_64::features;
use crate::host::HostKind;
use crate::vcpu::state::VcpuState;

/// Why a guest cannot go on here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The processor is of another maker.
    #[error("it was taken on a processor by {saved}, this one is by {here}")]
    Vendor {
        /// Whose it was.
        saved: String,
        /// Whose this one is.
        here: String,
    },
    /// The guest may use features that are not there.
    #[error(
        "its guest may use processor features that this host lacks: {}; restore it on a host like \
         the one it was taken on ({model})", missing.join(" ")
    )]
    Features {
        /// Their names.
        missing: Vec<String>,
        /// The processor it was taken on.
        model: String,
    },
    /// The guest's kernel was told what its KVM can do.
    #[error("it was taken on {saved} KVM, this host has {here} KVM")]
    Kind {
        /// What it was taken on.
        saved: &'static str,
        /// What there is here.
        here: &'static str,
    },
}

/// This host, and what the guest with this vCPU was shown of it.
pub fn facts(vcpu: &VcpuState) -> Host {
    let shown = features::shown(&vcpu.cpuid);
    Host {
        cpu_vendor: features::vendor(),
        cpu_model: features::model(),
        kvm: kind(),
        tsc_khz: vcpu.tsc_khz.unwrap_or(0),
        cpuid_features: shown.into_iter().map(str::to_owned).collect(),
    }
}

/// This host, for disks, which any other one can boot from.
pub fn any() -> Host {
    Host {
        cpu_vendor: features::vendor(),
        cpu_model: features::model(),
        kvm: kind(),
        tsc_khz: 0,
        cpuid_features: Vec::new(),
    }
}

/// Whether a guest from `saved` can go on here.
pub fn check(saved: &Host) -> Result<(), Unfit> {
    let vendor = features::vendor();
    if saved.cpu_vendor != vendor {
        return Err(Unfit::Vendor {
            saved: saved.cpu_vendor.clone(),
            here: vendor,
        });
    }
    let here = kind();
    if saved.kvm != here {
        return Err(Unfit::Kind {
            saved: word(saved.kvm),
            here: word(here),
        });
    }
    let here = features::here();
    let lacks = |name: &&String| !here.contains(&name.as_str());
    let missing: Vec<String> = saved.cpuid_features.iter().filter(lacks).cloned().collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Unfit::Features {
            missing,
            model: saved.cpu_model.clone(),
        }),
    }
}

fn kind() -> Kvm {
    match HostKind::detect() {
        HostKind::Hardware => Kvm::Hardware,
        HostKind::Software => Kvm::Software,
    }
}

fn word(kind: Kvm) -> &'static str {
    match kind {
        Kvm::Hardware => "hardware",
        Kvm::Software => "software",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Host {
        Host {
            cpu_vendor: features::vendor(),
            cpu_model: features::model(),
            kvm: kind(),
            tsc_khz: 0,
            cpuid_features: vec!["sse2".to_owned()],
        }
    }

    #[test]
    fn this_host_fits_itself() {
        assert_eq!(check(&here()), Ok(()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut other = here();
        other.cpuid_features.push("avx4096".to_owned());
        let words = check(&other).unwrap_err().to_string();
        assert!(
            words.contains("avx4096") && !words.contains("sse2"),
            "{words}"
        );
        other.cpu_vendor = "AnotherMaker".to_owned();
        assert!(matches!(check(&other), Err(Unfit::Vendor { .. })));
    }
}
