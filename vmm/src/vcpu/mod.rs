//! vCPUs: one named thread each, which runs guest code and nothing else.
//!
//! A vCPU thread has no other input than its `Control`: it is told to run, pause or stop, and
//! it reports back when it has done so. Everything else it touches is a bus, which is immutable.

mod ahead;
mod control;
mod emulate;
mod exit;
pub mod state;

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use kvm_ioctls::VcpuFd;
use tine_devices::bus::Bus;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

pub use ahead::{VcpuAhead, Work};
pub use control::Wish;
use control::{Control, Next};
pub use emulate::Emulator;
use exit::{Outcome, RunPage};

/// Port I/O and memory-mapped I/O of a machine.
pub struct Buses {
    /// Devices behind IN and OUT instructions.
    pub ports: Bus,
    /// Devices behind memory accesses outside RAM.
    pub mmio: Bus,
}

/// How a guest ends by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It switched itself off (ACPI S5).
    PowerOff,
    /// It asked for a reset, by the keyboard controller or ACPI's reset register.
    Reset,
    /// It shut a processor down: a triple fault.
    TripleFault,
    /// It cannot go on, for a reason given in words.
    Failed(String),
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::PowerOff => f.write_str("the guest powered off"),
            Ending::Reset => f.write_str("the guest reset itself"),
            Ending::TripleFault => f.write_str("the guest crashed (triple fault)"),
            Ending::Failed(reason) => f.write_str(reason),
        }
    }
}

/// Called with how the guest ended: at least once, by whichever thread saw it, and never
/// under a lock of the machine.
pub type OnEnd = Arc<dyn Fn(Ending) + Send + Sync>;

/// Makes the signal that interrupts KVM_RUN known to the process. Its handler does nothing: that
/// the call returns is the point.
pub fn install_kick_handler() -> std::io::Result<()> {
    extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    register_signal_handler(SIGRTMIN(), nothing).map_err(Into::into)
}

/// A vCPU's thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the vCPU's thread has ended")]
pub struct Gone;

/// A vCPU on its thread.
pub struct VcpuThread {
    control: Arc<Control>,
    page: RunPage,
    /// Hands the vCPU back when it ends: its page, which others write to, is mapped until the thread
    /// has been joined.
    thread: JoinHandle<Option<VcpuFd>>,
}

impl VcpuThread {
    /// Tells the vCPU what to do, without waiting for it.
    pub fn tell(&self, wish: Wish) {
        self.control.set(wish);
        if wish != Wish::Run && !self.thread.is_finished() {
            self.page.request_exit();
            // Fails only when the thread has ended meanwhile, and then there is nothing to stop.
            let _ = self.thread.kill(SIGRTMIN());
        }
    }

    /// Waits until the vCPU is out of guest code, after it was told to pause or stop.
    pub fn wait_still(&self) {
        self.control.wait_still();
    }

    /// Has `work` done on the vCPU, which was told to pause and stands still, by its own thread.
    /// Fails when that has ended.
    pub fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut VcpuFd) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, result) = mpsc::sync_channel(1);
        self.control.give(Box::new(move |vcpu| {
            // Nobody waits any more only when the machine goes away.
            let _ = answer.send(work(vcpu));
        }));
        result.recv().map_err(|_| Gone)
    }

    /// Waits for the end of the thread, after it was told to stop.
    pub fn join(self) {
        // A panic has been reported by then; there is nothing to add.
        let _ = self.thread.join();
    }
}

fn run(
    vcpu: &mut VcpuFd,
    buses: &Buses,
    emulator: Option<&Emulator>,
    control: &Control,
    on_end: &OnEnd,
) {
    // Whatever ends this thread, a waiting controller must not wait for ever.
    let _still = control.still_on_drop();
    if emulator.is_some() {
        Emulator::attach(vcpu);
    }
    loop {
        match control.next(|| exit::clear_request(vcpu)) {
            Next::Run => {}
            Next::Task(task) => {
                task(vcpu);
                continue;
            }
            Next::Stop => return,
        }
        loop {
            match exit::run(vcpu, buses, emulator) {
                Outcome::Handled => {}
                Outcome::Interrupted => break,
                Outcome::Ended(ending) => return on_end(ending),
            }
        }
    }
}
