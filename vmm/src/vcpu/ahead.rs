//! A vCPU's thread that is there before its vCPU.
//!
//! Starting a thread and putting it under its filter takes a good part of what a machine's start
//! takes, and needs nothing of the machine: another processor does it meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use kvm_ioctls::VcpuFd;
use tine_jailer::seccomp::{self, Role};

use super::control::Control;
use super::exit::RunPage;
use super::{Buses, Emulator, Ending, OnEnd, VcpuThread};

/// What a vCPU's thread works with.
pub struct Work {
    /// The vCPU.
    pub vcpu: VcpuFd,
    /// Where its register accesses go.
    pub buses: Arc<Buses>,
    /// Carries out instructions that KVM does not know.
    pub emulator: Option<Arc<Emulator>>,
    /// Hears how the guest ended.
    pub on_end: OnEnd,
}

/// A thread that waits for its vCPU. Dropped, it ends.
pub struct VcpuAhead {
    control: Arc<Control>,
    /// Both are there until the vCPU comes.
    give: Option<SyncSender<Work>>,
    thread: Option<JoinHandle<Option<VcpuFd>>>,
}

impl VcpuAhead {
    /// Starts the thread of vCPU `index`. It does `first` before it is restricted.
    ///
    /// # Errors
    ///
    /// When the system has no more threads.
    pub fn start(index: u8, first: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let control = Arc::new(Control::default());
        let (give, given) = mpsc::sync_channel::<Work>(1);
        let theirs = control.clone();
        let body = move || {
            first();
            let restricted = seccomp::install(Role::Vcpu, &format!("vcpu{index}"));
            let Work {
                mut vcpu,
                buses,
                emulator,
                on_end,
            } = given.recv().ok()?;
            if let Err(err) = restricted {
                on_end(Ending::Failed(err.to_string()));
                return Some(vcpu);
            }
            let emulator = emulator.as_deref();
            // A panic is reported by itself, and must not unmap the page.
            let run =
                AssertUnwindSafe(|| super::run(&mut vcpu, &buses, emulator, &theirs, &on_end));
            let _ = catch_unwind(run);
            Some(vcpu)
        };
        let thread = thread::Builder::new().name(format!("vcpu{index}"));
        Ok(Self {
            control,
            give: Some(give),
            thread: Some(thread.spawn(body)?),
        })
    }

    /// Gives it what it waits for. The vCPU stands still until it is told to run. `None` where the
    /// thread has ended, which is said as a panic.
    pub fn begin(mut self, mut work: Work) -> Option<VcpuThread> {
        let page = RunPage::of(&mut work.vcpu);
        self.give.take()?.send(work).ok()?;
        Some(VcpuThread {
            control: self.control.clone(),
            page,
            thread: self.thread.take()?,
        })
    }
}

impl Drop for VcpuAhead {
    fn drop(&mut self) {
        drop(self.give.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by then; there is nothing to add.
            let _ = thread.join();
        }
    }
}
