//! XSAVE and XRSTOR in the standard format (Intel SDM volume 1, chapter 13), between guest memory
//! and the image of a vCPU's state that KVM gives and takes.
//!
//! That image is an XSAVE area in the standard format too, so saving and restoring is copying
//! components. Where they lie is the processor's to say (CPUID leaf 0xd), for both.

use std::sync::OnceLock;

use kvm_bindings::kvm_xsave;

use super::exception::Exception;
use super::memory::{Access, Mapped, Memory};
use super::{Refused, Stop};
use crate::arch::x86_64::processor::{self, answer};

/// Bytes of the image that KVM gives: as much as components have room in.
pub const IMAGE_LEN: usize = 4096;
/// The legacy region and the header, which every area has.
const MIN_LEN: usize = 576;
const HEADER: usize = 512;
const HEADER_LEN: usize = 64;
/// An area begins at a multiple of this.
const ALIGNMENT: u64 = 64;

/// The leaf of CPUID that is about extended states.
const LEAF: u32 = 0xd;

/// Components of the legacy region.
const X87: u64 = 1;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
const MXCSR: usize = 24;
const MXCSR_INIT: u32 = 0x1f80;

/// Where each component lies in a standard area: offset and length.
#[derive(Debug, Clone)]
pub struct Layout([Option<(usize, usize)>; 63]);

impl Layout {
    /// The processor's layout. Asked for when it is first needed, which most machines come to
    /// when their guest has been running for a while: a start does not wait for it.
    pub fn here() -> &'static Self {
        static HERE: OnceLock<Layout> = OnceLock::new();
        HERE.get_or_init(Self::detect)
    }

    fn detect() -> Self {
        let mut places = [None; 63];
        if processor::highest() < LEAF {
            return Self(places);
        }
        let supported = answer(LEAF, 0);
        let supported = u64::from(supported.edx) << 32 | u64::from(supported.eax);
        for (number, place) in (0..).zip(&mut places).skip(2) {
            if supported >> number & 1 == 0 {
                continue;
            }
            let leaf = answer(LEAF, number);
            let (len, offset) = (leaf.eax as usize, leaf.ebx as usize);
            // Supervisor components (ECX bit 0) have no place in a standard area.
            let user = len != 0 && leaf.ecx & 1 == 0;
            if user && offset >= MIN_LEN && offset.saturating_add(len) <= IMAGE_LEN {
                *place = Some((offset, len));
            }
        }
        Self(places)
    }

    /// The components in `set` beyond the legacy region.
    fn extended(&self, set: u64) -> impl Iterator<Item = Result<(usize, usize), Refused>> {
        (2..63usize)
            .filter(move |number| set >> number & 1 == 1)
            .map(|number| self.0[number].ok_or(Refused))
    }

    /// Bytes of an area that holds the components in `set`.
    fn len(&self, set: u64) -> Result<usize, Refused> {
        self.extended(set).try_fold(MIN_LEN, |most, place| {
            place.map(|(offset, len)| most.max(offset + len))
        })
    }
}

/// A vCPU's extended state, as bytes of a standard area. In a component that is in its initial
/// state the bytes are that state.
pub struct Image(Box<[u8; IMAGE_LEN]>);

impl Image {
    /// All components in their initial state.
    fn initial(mxcsr_mask: u32) -> Self {
        let mut image = Self(Box::new([0; IMAGE_LEN]));
        image.initialize_x87();
        image.put(MXCSR, &MXCSR_INIT.to_le_bytes());
        image.put(MXCSR + 4, &mxcsr_mask.to_le_bytes());
        image
    }

    /// From KVM's form.
    pub fn from_kvm(state: &kvm_xsave) -> Self {
        let mut image = Self(Box::new([0; IMAGE_LEN]));
        for (bytes, word) in image.0.chunks_exact_mut(4).zip(&state.region) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        image
    }

    /// To KVM's form.
    pub fn to_kvm(&self) -> kvm_xsave {
        let mut state = kvm_xsave::default();
        for (word, bytes) in state.region.iter_mut().zip(self.0.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        }
        state
    }

    /// The components that are not in their initial state.
    pub fn in_use(&self) -> u64 {
        word64(&self.0[HEADER..])
    }

    /// The x87 status word.
    pub fn x87_status(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }

    fn set_in_use(&mut self, set: u64) {
        self.put(HEADER, &set.to_le_bytes());
    }

    fn mxcsr(&self) -> u32 {
        word32(&self.0[MXCSR..])
    }

    fn mxcsr_mask(&self) -> u32 {
        // Zero means this default (Intel SDM volume 1, 11.6.6).
        match word32(&self.0[MXCSR + 4..]) {
            0 => 0xffbf,
            mask => mask,
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn initialize_x87(&mut self) {
        self.0[..MXCSR].fill(0);
        self.0[32..160].fill(0);
        self.put(0, &0x37fu16.to_le_bytes());
    }
}

/// How to save or restore.
pub struct Request<'a> {
    pub layout: &'a Layout,
    pub memory: &'a Memory<'a>,
    /// The area's address.
    pub address: u64,
    /// The components asked for that XCR0 has switched on.
    pub components: u64,
    pub xcr0: u64,
    /// 64-bit instruction and data pointers.
    pub wide: bool,
}

impl Request<'_> {
    /// XSAVE, or with `only_in_use` XSAVEOPT.
    pub fn save(&self, image: &Image, only_in_use: bool) -> Result<(), Stop> {
        self.check_alignment()?;
        let in_use = image.in_use();
        let written = match only_in_use {
            true => self.components & in_use,
            false => self.components,
        };
        let area = self.map(self.layout.len(written)?, Access::Write)?;
        let copy = |at: usize, len: usize| area.write(at, &image.0[at..at + len]);
        if written & X87 != 0 {
            let mut control = [0; MXCSR];
            control.copy_from_slice(&image.0[..MXCSR]);
            self.narrow_pointers(&mut control);
            area.write(0, &control)?;
            copy(32, 128)?;
        }
        if self.components & (SSE | AVX) != 0 {
            copy(MXCSR, 8)?;
        }
        if written & SSE != 0 {
            copy(160, 256)?;
        }
        for place in self.layout.extended(written) {
            let (offset, len) = place?;
            copy(offset, len)?;
        }
        let mut header = [0; 8];
        area.read(HEADER, &mut header)?;
        let saved = u64::from_le_bytes(header) & !self.components | self.components & in_use;
        Ok(area.write(HEADER, &saved.to_le_bytes())?)
    }

    /// XRSTOR. `current` gives the present state.
    pub fn restore(&self, current: Image) -> Result<Image, Stop> {
        self.check_alignment()?;
        let mut legacy = [0; MIN_LEN];
        self.map(MIN_LEN, Access::Read)?.read(0, &mut legacy)?;
        let (saved, rest) = legacy[HEADER..][..HEADER_LEN].split_at(8);
        let saved = word64(saved);
        // The compacted format, and what is reserved in the standard one.
        if saved & !self.xcr0 != 0 || rest[..16].iter().any(|byte| *byte != 0) {
            return Err(Exception::GeneralProtection.into());
        }
        let loaded = self.components & saved;
        let area = self.map(self.layout.len(loaded)?, Access::Read)?;

        // What is not asked for stays; everything else begins with its initial state.
        let mut image = Image::initial(current.mxcsr_mask());
        let kept = current.in_use() & !self.components;
        for place in self.layout.extended(kept) {
            let (offset, len) = place?;
            image.put(offset, &current.0[offset..][..len]);
        }
        for place in self.layout.extended(loaded) {
            let (offset, len) = place?;
            area.read(offset, &mut image.0[offset..][..len])?;
        }
        if (kept | loaded) & X87 != 0 {
            let from = if kept & X87 != 0 {
                &current.0[..]
            } else {
                &legacy[..]
            };
            image.put(0, &from[..MXCSR]);
            image.put(32, &from[32..160]);
        }
        if loaded & X87 != 0 {
            self.narrow_pointers(&mut image.0[..MXCSR]);
        }
        if (kept | loaded) & SSE != 0 {
            let from = if kept & SSE != 0 {
                &current.0[..]
            } else {
                &legacy[..]
            };
            image.put(160, &from[160..416]);
        }
        // MXCSR belongs to SSE and AVX alike, and is loaded even where SSE is initialized.
        let mxcsr = match self.components & (SSE | AVX) {
            0 => current.mxcsr(),
            _ => word32(&legacy[MXCSR..]),
        };
        if mxcsr & !image.mxcsr_mask() != 0 {
            return Err(Exception::GeneralProtection.into());
        }
        image.put(MXCSR, &mxcsr.to_le_bytes());
        // KVM takes MXCSR only together with SSE.
        let with_mxcsr = if mxcsr == MXCSR_INIT { 0 } else { SSE };
        image.set_in_use(kept | loaded | with_mxcsr);
        Ok(image)
    }

    fn check_alignment(&self) -> Result<(), Stop> {
        match self.address % ALIGNMENT {
            0 => Ok(()),
            _ => Err(Exception::GeneralProtection.into()),
        }
    }

    fn map(&self, len: usize, access: Access) -> Result<Mapped<'_>, Stop> {
        self.memory.map(self.address, len, access)
    }

    /// The narrow form has selectors where the wide one has the pointers' upper halves. They are
    /// gone from processors (CPUID leaf 7, EBX bit 13), and zero.
    fn narrow_pointers(&self, control: &mut [u8]) {
        if !self.wide {
            control[12..16].fill(0);
            control[20..24].fill(0);
        }
    }
}

fn word32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn word64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
