//! From bytes to an instruction: the few that [`super`] carries out, in 64-bit mode, and no
//! others (Intel SDM volume 2, chapter 2: prefixes, ModRM, SIB).
//!
//! Pure: bytes come in, a description goes out, and every byte string has an answer.

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::registers;

/// No instruction is longer (Intel SDM volume 2, 2.3.11).
pub const MAX_LEN: usize = 15;

/// Why bytes are not an instruction known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// More bytes are needed to tell.
    Truncated,
    /// Another instruction, or none.
    Unknown,
}

/// An instruction and its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub operation: Operation,
    pub len: u8,
}

/// What an instruction does, with its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Fwait,
    Int3,
    Stac,
    Clac,
    Xgetbv,
    Xsave(Xsave),
    Xrstor(Xsave),
    Popcnt { to: u8, from: Operand, bytes: u8 },
    Cmpxchg16b(Place),
}

/// The operand of XSAVE and XRSTOR, and which variant of them it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xsave {
    pub area: Place,
    /// With REX.W: 64-bit instruction and data pointers of the x87 unit.
    pub wide: bool,
    /// XSAVEOPT: components in their initial state are not written.
    pub only_in_use: bool,
}

/// A register or memory operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    Register(u8),
    Memory(Place),
}

/// A memory operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    segment: Segment,
    base: Base,
    /// A register, and how far it is shifted to the left.
    index: Option<(u8, u8)>,
    displacement: i32,
    /// With an address-size prefix: 32 bits.
    short: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    /// One whose base is zero in 64-bit mode.
    Flat,
    Fs,
    Gs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Nothing,
    Register(u8),
    /// The address of the next instruction.
    Next,
}

impl Place {
    /// The linear address, for an instruction of `len` bytes at `regs.rip`.
    pub fn address(&self, regs: &kvm_regs, sregs: &kvm_sregs, len: u8) -> u64 {
        let base = match self.base {
            Base::Nothing => 0,
            Base::Register(number) => registers::get(regs, number),
            Base::Next => regs.rip.wrapping_add(u64::from(len)),
        };
        let index = self
            .index
            .map_or(0, |(number, shift)| registers::get(regs, number) << shift);
        let mut offset = base
            .wrapping_add(index)
            .wrapping_add_signed(i64::from(self.displacement));
        if self.short {
            offset &= u64::from(u32::MAX);
        }
        offset.wrapping_add(match self.segment {
            Segment::Flat => 0,
            Segment::Fs => sregs.fs.base,
            Segment::Gs => sregs.gs.base,
        })
    }

    /// Whether the address is in the stack segment, whose faults have a vector of their own.
    pub fn is_on_stack(&self) -> bool {
        const RSP: u8 = 4;
        const RBP: u8 = 5;
        self.segment == Segment::Flat && matches!(self.base, Base::Register(RSP | RBP))
    }
}

/// What stands before the opcode.
#[derive(Default)]
struct Prefixes {
    lock: bool,
    operand_size: bool,
    address_size: bool,
    segment: Option<Segment>,
    /// The last of F2 and F3.
    repeat: Option<u8>,
    rex: u8,
}

impl Prefixes {
    fn wide(&self) -> bool {
        self.rex & 8 != 0
    }

    /// None of those that make another instruction of an opcode.
    fn plain(&self) -> bool {
        !self.lock && !self.operand_size && self.repeat.is_none()
    }
}

struct Bytes<'a> {
    code: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn next(&mut self) -> Result<u8, Unreadable> {
        if self.at == MAX_LEN {
            return Err(Unreadable::Unknown);
        }
        let byte = self.code.get(self.at).copied();
        self.at += 1;
        byte.ok_or(Unreadable::Truncated)
    }

    /// A displacement of no, one or four bytes, with its sign.
    fn displacement(&mut self, bytes: u8) -> Result<i32, Unreadable> {
        Ok(match bytes {
            0 => 0,
            1 => i32::from(self.next()? as i8),
            _ => {
                let mut value = [0; 4];
                for byte in &mut value {
                    *byte = self.next()?;
                }
                i32::from_le_bytes(value)
            }
        })
    }

    fn prefixes(&mut self) -> Result<(Prefixes, u8), Unreadable> {
        let mut found = Prefixes::default();
        loop {
            let byte = self.next()?;
            match byte {
                0xf0 => found.lock = true,
                0x66 => found.operand_size = true,
                0x67 => found.address_size = true,
                0xf2 | 0xf3 => found.repeat = Some(byte),
                0x64 => found.segment = Some(Segment::Fs),
                0x65 => found.segment = Some(Segment::Gs),
                // Ignored in 64-bit mode.
                0x26 | 0x2e | 0x36 | 0x3e => {}
                0x40..=0x4f => {
                    found.rex = byte;
                    continue;
                }
                opcode => return Ok((found, opcode)),
            }
            // REX counts only directly before the opcode.
            found.rex = 0;
        }
    }

    /// ModRM and what belongs to it: the register field without REX, and the other operand.
    fn operands(&mut self, prefixes: &Prefixes) -> Result<(u8, Operand), Unreadable> {
        let modrm = self.next()?;
        let (mode, field, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let extended = |number, rex_bit: u8| number | (prefixes.rex >> rex_bit & 1) << 3;
        if mode == 3 {
            return Ok((field, Operand::Register(extended(low, 0))));
        }
        let mut base = Base::Register(extended(low, 0));
        let mut index = None;
        let mut displacement_bytes = [0, 1, 4][usize::from(mode)];
        if low == 4 {
            let sib = self.next()?;
            let (number, sib_base) = (extended(sib >> 3 & 7, 1), sib & 7);
            if number != 4 {
                index = Some((number, sib >> 6));
            }
            base = Base::Register(extended(sib_base, 0));
            if mode == 0 && sib_base == 5 {
                (base, displacement_bytes) = (Base::Nothing, 4);
            }
        } else if mode == 0 && low == 5 {
            (base, displacement_bytes) = (Base::Next, 4);
        }
        let place = Place {
            segment: prefixes.segment.unwrap_or(Segment::Flat),
            base,
            index,
            displacement: self.displacement(displacement_bytes)?,
            short: prefixes.address_size,
        };
        Ok((field, Operand::Memory(place)))
    }
}

/// Decodes the instruction that `code` begins with.
pub fn decode(code: &[u8]) -> Result<Instruction, Unreadable> {
    let mut bytes = Bytes { code, at: 0 };
    let (prefixes, opcode) = bytes.prefixes()?;
    let operation = match opcode {
        0x9b if !prefixes.lock => Operation::Fwait,
        0xcc if !prefixes.lock => Operation::Int3,
        0x0f => two_bytes(&mut bytes, &prefixes)?,
        _ => return Err(Unreadable::Unknown),
    };
    Ok(Instruction {
        operation,
        len: bytes.at as u8,
    })
}

fn two_bytes(bytes: &mut Bytes<'_>, prefixes: &Prefixes) -> Result<Operation, Unreadable> {
    const UNKNOWN: Result<Operation, Unreadable> = Err(Unreadable::Unknown);
    match bytes.next()? {
        0x01 if prefixes.plain() => match bytes.next()? {
            0xca => Ok(Operation::Clac),
            0xcb => Ok(Operation::Stac),
            0xd0 => Ok(Operation::Xgetbv),
            _ => UNKNOWN,
        },
        0xae if prefixes.plain() => {
            let (field, Operand::Memory(area)) = bytes.operands(prefixes)? else {
                return UNKNOWN;
            };
            let xsave = Xsave {
                area,
                wide: prefixes.wide(),
                only_in_use: field == 6,
            };
            match field {
                4 | 6 => Ok(Operation::Xsave(xsave)),
                5 => Ok(Operation::Xrstor(xsave)),
                _ => UNKNOWN,
            }
        }
        0xb8 if prefixes.repeat == Some(0xf3) && !prefixes.lock => {
            let (field, from) = bytes.operands(prefixes)?;
            Ok(Operation::Popcnt {
                to: field | (prefixes.rex >> 2 & 1) << 3,
                from,
                bytes: match (prefixes.wide(), prefixes.operand_size) {
                    (true, _) => 8,
                    (false, true) => 2,
                    (false, false) => 4,
                },
            })
        }
        0xc7 if prefixes.wide() && prefixes.repeat.is_none() && !prefixes.operand_size => {
            match bytes.operands(prefixes)? {
                (1, Operand::Memory(place)) => Ok(Operation::Cmpxchg16b(place)),
                _ => UNKNOWN,
            }
        }
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests;
