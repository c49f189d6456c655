//! Guest memory at guest-virtual addresses, as ring 0 of 64-bit mode sees it.
//!
//! KVM translates addresses too (KVM_TRANSLATE), but does not tell whether a write is allowed:
//! a frame for a signal may go to a page that is still to be copied. So page tables are walked
//! here (Intel SDM volume 3, 4.5). They are the guest's and may say anything: a walk reads at
//! most one entry a level, and what is not RAM ends it.
//!
//! Protection keys are not looked at: software KVM has none.

use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{kvm_regs, kvm_sregs};
use tine_devices::GuestMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, VolatileMemory};

use super::exception::Exception;
use super::registers::{AC, CR0_WP, CR4_LA57, CR4_SMAP, EFER_NXE};
use super::{Refused, Stop};

const PAGE: u64 = 4096;
/// Most pages that an operand may touch: an XSAVE area of 4 KiB that does not begin on a page.
const MOST_PAGES: usize = 2;

/// Entry bits (Intel SDM volume 3, table 4-15 and on).
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Bits of a page fault's error code.
const FAULT_PRESENT: u32 = 1;
const FAULT_WRITE: u32 = 1 << 1;
const FAULT_RESERVED: u32 = 1 << 3;

/// What an instruction does with an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Guest memory through one vCPU's page tables.
pub struct Memory<'a> {
    ram: &'a GuestMemory,
    root: u64,
    levels: u32,
    write_protect: bool,
    no_execute: bool,
    /// User pages are out of bounds (SMAP).
    no_user: bool,
}

/// An operand whose pages are all there, with the access that was asked for.
pub struct Mapped<'a> {
    ram: &'a GuestMemory,
    /// Where in the first page it begins.
    offset: usize,
    len: usize,
    pages: [GuestAddress; MOST_PAGES],
}

impl<'a> Memory<'a> {
    /// `ram` as a vCPU with these registers sees it.
    pub fn new(ram: &'a GuestMemory, regs: &kvm_regs, sregs: &kvm_sregs) -> Self {
        Self {
            ram,
            root: sregs.cr3 & ADDRESS,
            levels: if sregs.cr4 & CR4_LA57 != 0 { 5 } else { 4 },
            write_protect: sregs.cr0 & CR0_WP != 0,
            no_execute: sregs.efer & EFER_NXE != 0,
            no_user: sregs.cr4 & CR4_SMAP != 0 && regs.rflags & AC == 0,
        }
    }

    /// Whether an address has its upper bits right.
    pub fn is_canonical(&self, address: u64) -> bool {
        let unused = 64 - (12 + 9 * self.levels);
        (address as i64) << unused >> unused == address as i64
    }

    /// Finds `len` bytes at `address`. The lowest byte that is not there faults.
    pub fn map(&self, address: u64, len: usize, access: Access) -> Result<Mapped<'a>, Stop> {
        let offset = (address % PAGE) as usize;
        if len == 0 || offset + len > MOST_PAGES * PAGE as usize {
            return Err(Refused.into());
        }
        let mut pages = [GuestAddress(0); MOST_PAGES];
        for (page, found) in pages
            .iter_mut()
            .enumerate()
            .take((offset + len).div_ceil(PAGE as usize))
        {
            let at = match page {
                0 => address,
                page => (address - offset as u64).wrapping_add(page as u64 * PAGE),
            };
            if !self.is_canonical(at) {
                return Err(Exception::GeneralProtection.into());
            }
            *found = GuestAddress(self.translate(at, access)? & !(PAGE - 1));
        }
        Ok(Mapped {
            ram: self.ram,
            offset,
            len,
            pages,
        })
    }

    /// The guest-physical address of `address`. Marks entries as used, as a processor does.
    fn translate(&self, address: u64, access: Access) -> Result<u64, Stop> {
        let write = access == Access::Write;
        let fault = |code| {
            let code = code | if write { FAULT_WRITE } else { 0 };
            Err(Stop::from(Exception::Page { address, code }))
        };
        let mut table = self.root;
        let (mut writable, mut user) = (true, true);
        for level in (0..self.levels).rev() {
            let shift = 12 + 9 * level;
            let slot = GuestAddress(table + (address >> shift & 0x1ff) * 8);
            let entry = self.entry(slot, |entry| entry.load(Ordering::Acquire))?;
            if entry & PRESENT == 0 {
                return fault(0);
            }
            let large = entry & LARGE != 0 && level > 0;
            if large && level > 2 || entry & NO_EXECUTE != 0 && !self.no_execute {
                return fault(FAULT_PRESENT | FAULT_RESERVED);
            }
            writable &= entry & WRITABLE != 0;
            user &= entry & USER != 0;
            let leaf = large || level == 0;
            if leaf && (user && self.no_user || write && !writable && self.write_protect) {
                return fault(FAULT_PRESENT);
            }
            let mark = if leaf && write {
                ACCESSED | DIRTY
            } else {
                ACCESSED
            };
            if entry & mark != mark {
                self.entry(slot, |entry| entry.fetch_or(mark, Ordering::AcqRel))?;
            }
            if leaf {
                let within = (1 << shift) - 1;
                return Ok(entry & ADDRESS & !within | address & within);
            }
            table = entry & ADDRESS;
        }
        unreachable!("the last level is a leaf")
    }

    /// Does `what` with a page table entry. Other vCPUs may change it at any time.
    fn entry(&self, at: GuestAddress, what: impl Fn(&AtomicU64) -> u64) -> Result<u64, Refused> {
        let slice = self.ram.get_slice(at, 8).map_err(|_| Refused)?;
        Ok(what(slice.get_atomic_ref(0).map_err(|_| Refused)?))
    }
}

impl Mapped<'_> {
    /// Reads bytes from `at` on.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), Refused> {
        let mut bytes = bytes;
        let mut at = at;
        while !bytes.is_empty() {
            let (address, len) = self.piece(at, bytes.len())?;
            let (piece, rest) = bytes.split_at_mut(len);
            self.ram.read_slice(piece, address).map_err(|_| Refused)?;
            (bytes, at) = (rest, at + len);
        }
        Ok(())
    }

    /// Writes bytes from `at` on.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Refused> {
        let mut bytes = bytes;
        let mut at = at;
        while !bytes.is_empty() {
            let (address, len) = self.piece(at, bytes.len())?;
            let (piece, rest) = bytes.split_at(len);
            self.ram.write_slice(piece, address).map_err(|_| Refused)?;
            (bytes, at) = (rest, at + len);
        }
        Ok(())
    }

    /// The part of `len` bytes from `at` on that lies in one page.
    fn piece(&self, at: usize, len: usize) -> Result<(GuestAddress, usize), Refused> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Refused);
        }
        let from = self.offset + at;
        let (page, within) = (from / PAGE as usize, from % PAGE as usize);
        let address = GuestAddress(self.pages[page].0 + within as u64);
        Ok((address, len.min(PAGE as usize - within)))
    }

    /// Compares the 16 bytes of this operand with `old` and, if they are the same, makes them
    /// `new`, as one step. Returns what was there.
    pub fn compare_exchange(&self, old: u128, new: u128) -> Result<u128, Refused> {
        let slice = self.ram.get_slice(self.piece(0, 16)?.0, 16);
        super::raw::compare_exchange(&slice.map_err(|_| Refused)?, old, new)
    }
}

#[cfg(test)]
mod tests;
