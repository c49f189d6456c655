//! What a machine needs that takes a while and nothing of the machine: its threads, under their filters,
//! and the CPU features that KVM can show. Another processor does it while this one goes on.

use std::io;
use std::sync::mpsc::{self, Receiver};

use kvm_bindings::CpuId;

use super::MachineError;
use super::event_loop::EventLoopAhead;
use crate::config::MachineConfig;
use crate::kvm::{Host, KvmError};
use crate::vcpu::{self, VcpuAhead};

/// Threads that wait for their machine. Dropped, they end.
pub struct Ahead {
    pub(super) host: Host,
    pub(super) vcpus: Vec<VcpuAhead>,
    pub(super) events: EventLoopAhead,
    pub(super) features: Features,
}

impl Ahead {
    /// For a machine of `config` that boots.
    ///
    /// # Errors
    ///
    /// When the configuration is wrong, there is no usable KVM, it cannot do so many vCPUs, or the system has no more threads.
    pub fn of_boot(config: &MachineConfig) -> Result<Self, MachineError> {
        Self::start(config, true)
    }

    /// For a machine of `config` that goes on from a snapshot, which has its CPU features.
    ///
    /// # Errors
    ///
    /// As [`Self::of_boot`].
    pub fn of_restore(config: &MachineConfig) -> Result<Self, MachineError> {
        Self::start(config, false)
    }

    fn start(config: &MachineConfig, boots: bool) -> Result<Self, MachineError> {
        let os = |action| move |source| MachineError::Os { action, source };
        config.check()?;
        vcpu::install_kick_handler().map_err(os("handle the vCPU signal"))?;
        let host = Host::open()?;
        check_vcpus(&host, config.vcpus)?;
        let (tell, told) = mpsc::sync_channel(1);
        let mut tell = boots.then_some(tell);
        let vcpus = (0..config.vcpus).map(|index| {
            let asked = tell.take().map(|tell| (tell, host.clone()));
            VcpuAhead::start(index, move || {
                if let Some((tell, host)) = asked {
                    // Nobody waits any more only where the machine could not be made.
                    let _ = tell.send(host.supported_cpuid());
                }
            })
        });
        let vcpus = vcpus.collect::<io::Result<Vec<_>>>();
        Ok(Self {
            vcpus: vcpus.map_err(os("start a vCPU thread"))?,
            events: EventLoopAhead::start().map_err(os("start the device thread"))?,
            features: Features(told),
            host,
        })
    }
}

/// The CPU features that KVM can show, which a thread has been asked for.
pub(super) struct Features(Receiver<Result<CpuId, KvmError>>);

impl Features {
    /// Waits for them.
    pub fn wait(self, host: &Host) -> Result<CpuId, KvmError> {
        // Who was asked is gone only by a panic, which has been reported.
        self.0.recv().unwrap_or_else(|_| host.supported_cpuid())
    }
}

fn check_vcpus(host: &Host, wanted: u8) -> Result<(), MachineError> {
    let most = host.max_vcpus();
    match usize::from(wanted) <= most {
        true => Ok(()),
        false => Err(MachineError::Vcpus { wanted, most }),
    }
}
