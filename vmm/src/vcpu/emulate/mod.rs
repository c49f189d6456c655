//! The instructions of a guest kernel that software KVM's interpreter lacks, carried out by the
//! monitor.
//!
//! On such a host ([`crate::host`]) ring 3 of a guest runs on the processor, with all that this
//! has, but ring 0 is interpreted. A guest kernel that cannot use XSAVE there does not save its
//! programs' AVX registers. So when KVM gives up at an instruction, the vCPU stands before it, and
//! one of the few known here is carried out on its registers and memory, and is then behind it.
//! On hardware KVM none of this runs.
//!
//! Everything comes from the guest. What is not understood is [`Refused`], and the machine ends
//! as it would without this module; what the guest did wrong is an exception in the guest.

mod decode;
mod exception;

mod memory;
pub(super) mod raw;
mod registers;
mod xsave;

use std::sync::Arc;

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::{SyncReg, VcpuFd};
use tine_devices::GuestMemory;

use decode::{Instruction, MAX_LEN, Operand, Operation, Place, Unreadable, Xsave};
use exception::Exception;
use memory::{Access, Mapped, Memory};
use xsave::{Image, Layout, Request};

/// x87 status: an exception is pending.
const X87_SUMMARY: u16 = 1 << 7;

/// This is not an instruction, or not a state of the vCPU, that is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// Why an instruction does not do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Exception(Exception),
    Refused,
}

impl From<Exception> for Stop {
    fn from(exception: Exception) -> Self {
        Stop::Exception(exception)
    }
}

impl From<Refused> for Stop {
    fn from(_: Refused) -> Self {
        Stop::Refused
    }
}

/// KVM's calls fail only for a vCPU or a state that it cannot make sense of.
impl From<kvm_ioctls::Error> for Stop {
    fn from(_: kvm_ioctls::Error) -> Self {
        Stop::Refused
    }
}

/// Carries out instructions for all vCPUs of a machine.
pub struct Emulator {
    ram: Arc<GuestMemory>,
}

impl Emulator {
    /// For a machine with this memory.
    pub fn new(ram: Arc<GuestMemory>) -> Self {
        Self { ram }
    }

    /// Has KVM leave the registers in the vCPU's shared page whenever guest code is left: calls
    /// that ask for them would take more time than the rest of an instruction.
    pub(super) fn attach(vcpu: &mut VcpuFd) {
        vcpu.set_sync_valid_reg(SyncReg::Register);
        vcpu.set_sync_valid_reg(SyncReg::SystemRegister);
    }

    /// Carries out the instruction that `vcpu`, which has been attached, stands before. `code`
    /// are its bytes, or the first of them, as far as KVM has told.
    ///
    /// The registers are changed in the shared page, and by KVM when guest code is entered again:
    /// also when it is left at once, so that a pause comes after it.
    pub(super) fn step(&self, vcpu: &mut VcpuFd, code: &[u8]) -> Result<(), Refused> {
        let shared = vcpu.sync_regs();
        let (regs, sregs) = (shared.regs, shared.sregs);
        if !registers::is_64_bit_kernel(&sregs) {
            return Err(Refused);
        }
        let memory = Memory::new(&self.ram, &regs, &sregs);
        let instruction = match decode::decode(code) {
            Err(Unreadable::Truncated) => fetch(&memory, regs.rip)?,
            decoded => decoded.map_err(|_| Refused)?,
        };
        let mut cpu = Cpu {
            vcpu,
            memory: &memory,
            len: instruction.len,
            regs,
            sregs: &sregs,
        };
        match cpu.execute(instruction) {
            Ok(()) => {
                let regs = cpu.behind();
                vcpu.sync_regs_mut().regs = regs;
                vcpu.set_sync_dirty_reg(SyncReg::Register);
                Ok(())
            }
            Err(Stop::Exception(exception)) => {
                if exception == Exception::Breakpoint {
                    cpu.regs.rip = cpu.next();
                }
                let raised = exception.raise(vcpu, &cpu.regs, &sregs);
                raised.map_err(|_| Refused)
            }
            Err(Stop::Refused) => Err(Refused),
        }
    }
}

/// Reads the instruction at `rip` from memory: byte by byte, since what follows it may be a page
/// that is not there.
fn fetch(memory: &Memory<'_>, rip: u64) -> Result<Instruction, Refused> {
    let mut code = [0; MAX_LEN];
    for len in 0..MAX_LEN {
        let byte = memory.map(rip.wrapping_add(len as u64), 1, Access::Read);
        byte.map_err(|_| Refused)?.read(0, &mut code[len..=len])?;
        match decode::decode(&code[..=len]) {
            Err(Unreadable::Truncated) => {}
            decoded => return decoded.map_err(|_| Refused),
        }
    }
    Err(Refused)
}

/// A vCPU before an instruction.
struct Cpu<'a> {
    vcpu: &'a VcpuFd,
    memory: &'a Memory<'a>,
    /// Of the instruction, in bytes.
    len: u8,
    regs: kvm_regs,
    sregs: &'a kvm_sregs,
}

impl Cpu<'_> {
    fn execute(&mut self, instruction: Instruction) -> Result<(), Stop> {
        match instruction.operation {
            Operation::Fwait => self.fwait(),
            Operation::Int3 => Err(Exception::Breakpoint.into()),
            Operation::Stac => {
                self.regs.rflags |= registers::AC;
                Ok(())
            }
            Operation::Clac => {
                self.regs.rflags &= !registers::AC;
                Ok(())
            }
            Operation::Xgetbv => self.xgetbv(),
            Operation::Xsave(xsave) => self.xsave(xsave),
            Operation::Xrstor(xsave) => self.xrstor(xsave),
            Operation::Popcnt { to, from, bytes } => self.popcnt(to, from, bytes),
            Operation::Cmpxchg16b(place) => self.cmpxchg16b(place),
        }
    }

    fn next(&self) -> u64 {
        self.regs.rip.wrapping_add(u64::from(self.len))
    }

    /// The registers behind the instruction. Setting them also takes back the #UD that KVM leaves
    /// pending when it gives up.
    fn behind(&self) -> kvm_regs {
        let mut regs = self.regs;
        regs.rip = self.next();
        regs.rflags &= !registers::RF;
        regs
    }

    fn map(&self, place: Place, len: usize, access: Access) -> Result<Mapped<'_>, Stop> {
        self.memory.map(self.address(place)?, len, access)
    }

    fn address(&self, place: Place) -> Result<u64, Stop> {
        let address = place.address(&self.regs, self.sregs, self.len);
        match self.memory.is_canonical(address) {
            true => Ok(address),
            false if place.is_on_stack() => Err(Exception::Stack.into()),
            false => Err(Exception::GeneralProtection.into()),
        }
    }

    fn xcr0(&self) -> Result<u64, Stop> {
        let xcrs = self.vcpu.get_xcrs()?;
        let used = xcrs.xcrs.iter().take(xcrs.nr_xcrs as usize);
        let found = used.into_iter().find(|entry| entry.xcr == 0);
        Ok(found.ok_or(Refused)?.value)
    }

    fn image(&self) -> Result<Image, Stop> {
        Ok(Image::from_kvm(&self.vcpu.get_xsave()?))
    }

    /// XSAVE and its like are there when the kernel has switched them on.
    fn check_xsave(&self) -> Result<(), Stop> {
        match self.sregs.cr4 & registers::CR4_OSXSAVE {
            0 => Err(Exception::InvalidOpcode.into()),
            _ => Ok(()),
        }
    }

    fn request(&self, xsave: Xsave) -> Result<Request<'_>, Stop> {
        self.check_xsave()?;
        if self.sregs.cr0 & registers::CR0_TS != 0 {
            return Err(Exception::DeviceNotAvailable.into());
        }
        let xcr0 = self.xcr0()?;
        Ok(Request {
            layout: Layout::here(),
            memory: self.memory,
            address: self.address(xsave.area)?,
            components: xcr0 & pair(self.regs.rdx, self.regs.rax),
            xcr0,
            wide: xsave.wide,
        })
    }

    fn xsave(&self, xsave: Xsave) -> Result<(), Stop> {
        let request = self.request(xsave)?;
        request.save(&self.image()?, xsave.only_in_use)
    }

    fn xrstor(&self, xsave: Xsave) -> Result<(), Stop> {
        let request = self.request(xsave)?;
        let state = request.restore(self.image()?)?.to_kvm();
        raw::set_xsave(self.vcpu, &state)?;
        Ok(())
    }

    fn xgetbv(&mut self) -> Result<(), Stop> {
        self.check_xsave()?;
        let value = match self.regs.rcx as u32 {
            0 => self.xcr0()?,
            1 => self.xcr0()? & self.image()?.in_use(),
            _ => return Err(Exception::GeneralProtection.into()),
        };
        self.regs.rax = value & u64::from(u32::MAX);
        self.regs.rdx = value >> 32;
        Ok(())
    }

    fn fwait(&self) -> Result<(), Stop> {
        const BLOCKED: u64 = registers::CR0_MP | registers::CR0_TS;
        if self.sregs.cr0 & BLOCKED == BLOCKED {
            return Err(Exception::DeviceNotAvailable.into());
        }
        match self.image()?.x87_status() & X87_SUMMARY {
            0 => Ok(()),
            _ => Err(Exception::FloatingPoint.into()),
        }
    }

    fn popcnt(&mut self, to: u8, from: Operand, bytes: u8) -> Result<(), Stop> {
        let mut value = [0; 8];
        match from {
            Operand::Register(number) => {
                value = registers::get(&self.regs, number).to_le_bytes();
                value[usize::from(bytes)..].fill(0);
            }
            Operand::Memory(place) => {
                let len = usize::from(bytes);
                let source = self.map(place, len, Access::Read)?;
                source.read(0, &mut value[..len])?;
            }
        }
        use registers::{AF, CF, OF, PF, SF, ZF};
        let count = u64::from_le_bytes(value).count_ones();
        let kept = match bytes {
            // 16-bit operations leave the rest of the register alone, 32-bit ones clear it.
            2 => registers::get(&self.regs, to) & !0xffff,
            _ => 0,
        };
        registers::set(&mut self.regs, to, kept | u64::from(count));
        self.regs.rflags &= !(OF | SF | ZF | AF | CF | PF);
        if count == 0 {
            self.regs.rflags |= ZF;
        }
        Ok(())
    }

    fn cmpxchg16b(&mut self, place: Place) -> Result<(), Stop> {
        if !self.address(place)?.is_multiple_of(16) {
            return Err(Exception::GeneralProtection.into());
        }
        let target = self.map(place, 16, Access::Write)?;
        let (old, new) = (
            wide_pair(self.regs.rdx, self.regs.rax),
            wide_pair(self.regs.rcx, self.regs.rbx),
        );
        let found = target.compare_exchange(old, new)?;
        if found == old {
            self.regs.rflags |= registers::ZF;
        } else {
            self.regs.rflags &= !registers::ZF;
            (self.regs.rdx, self.regs.rax) = ((found >> 64) as u64, found as u64);
        }
        Ok(())
    }
}

/// The 64-bit number in EDX:EAX.
fn pair(high: u64, low: u64) -> u64 {
    high << 32 | low & u64::from(u32::MAX)
}

/// The 128-bit number in two registers.
fn wide_pair(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}
