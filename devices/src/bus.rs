//! Address ranges and the devices behind them, for port and memory-mapped I/O alike.
//!
//! A bus is built once, when a machine is assembled, and is immutable from then on: vCPU threads
//! look devices up without a lock, and each device guards its own state.

use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A device that answers register accesses. Offsets are relative to the start of its range; an
/// access never crosses the end of the range.
pub trait BusDevice: Send + Sync {
    /// Fills `data` with what the guest reads at `offset`.
    fn read(&self, offset: u64, data: &mut [u8]);
    /// Takes what the guest wrote at `offset`.
    fn write(&self, offset: u64, data: &[u8]);
}

/// The same with exclusive access, for devices whose every access changes state. A `Mutex` around
/// one is a [`BusDevice`].
pub trait BusDeviceMut: Send {
    /// Fills `data` with what the guest reads at `offset`.
    fn read(&mut self, offset: u64, data: &mut [u8]);
    /// Takes what the guest wrote at `offset`.
    fn write(&mut self, offset: u64, data: &[u8]);
}

impl<T: BusDeviceMut> BusDevice for Mutex<T> {
    fn read(&self, offset: u64, data: &mut [u8]) {
        lock(self).read(offset, data);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        lock(self).write(offset, data);
    }
}

/// Locks, also after another thread panicked while holding the lock: a device's state is always
/// whole between two statements of its own, and a machine must not stop for a poisoned flag.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Why a device could not be put on a bus.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BusError {
    /// The range has no addresses in it, or wraps around.
    #[error("address range {start:#x}+{len:#x} is empty or wraps around")]
    BadRange {
        /// First address.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Another device is there already.
    #[error("address range {start:#x}+{len:#x} overlaps another device")]
    Overlap {
        /// First address.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// A set of disjoint address ranges, each with its device.
#[derive(Default)]
pub struct Bus {
    /// Sorted by start, disjoint.
    entries: Vec<(Range<u64>, Arc<dyn BusDevice>)>,
}

impl Bus {
    /// An empty bus.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts `device` at `start..start + len`.
    pub fn insert(
        &mut self,
        start: u64,
        len: u64,
        device: Arc<dyn BusDevice>,
    ) -> Result<(), BusError> {
        let end = match start.checked_add(len) {
            Some(end) if len > 0 => end,
            _ => return Err(BusError::BadRange { start, len }),
        };
        let at = self
            .entries
            .partition_point(|(range, _)| range.start < start);
        let overlaps_next = self
            .entries
            .get(at)
            .is_some_and(|(next, _)| next.start < end);
        let overlaps_last = at > 0 && self.entries[at - 1].0.end > start;
        if overlaps_next || overlaps_last {
            return Err(BusError::Overlap { start, len });
        }
        self.entries.insert(at, (start..end, device));
        Ok(())
    }

    /// Reads from the device at `addr`. Where there is none, all bits read as one, as on a bus
    /// that nobody drives; the result is `false`.
    pub fn read(&self, addr: u64, data: &mut [u8]) -> bool {
        data.fill(0xff);
        match self.find(addr, data.len()) {
            Some((offset, device)) => {
                device.read(offset, data);
                true
            }
            None => false,
        }
    }

    /// Writes to the device at `addr`. Where there is none the write is lost; the result is
    /// `false`.
    pub fn write(&self, addr: u64, data: &[u8]) -> bool {
        match self.find(addr, data.len()) {
            Some((offset, device)) => {
                device.write(offset, data);
                true
            }
            None => false,
        }
    }

    fn find(&self, addr: u64, len: usize) -> Option<(u64, &dyn BusDevice)> {
        let at = self
            .entries
            .partition_point(|(range, _)| range.start <= addr);
        let (range, device) = self.entries.get(at.checked_sub(1)?)?;
        let end = addr.checked_add(len as u64)?;
        (end <= range.end).then(|| (addr - range.start, device.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo(u8);

    impl BusDeviceMut for Echo {
        fn read(&mut self, offset: u64, data: &mut [u8]) {
            data.fill(self.0 + offset as u8);
        }

        fn write(&mut self, _offset: u64, data: &[u8]) {
            self.0 = data[0];
        }
    }

    fn echo(value: u8) -> Arc<dyn BusDevice> {
        Arc::new(Mutex::new(Echo(value)))
    }

    #[test]
    fn accesses_reach_the_device_of_their_range() {
        let mut bus = Bus::new();
        bus.insert(0x10, 0x10, echo(1)).unwrap();
        bus.insert(0x20, 0x10, echo(100)).unwrap();
        let mut byte = [0];
        assert!(bus.read(0x11, &mut byte));
        assert_eq!(byte, [2]);
        assert!(bus.write(0x20, &[50]));
        assert!(bus.read(0x2f, &mut byte));
        assert_eq!(byte, [65]);
    }

    #[test]
    fn an_address_without_a_device_reads_as_ones() {
        let mut bus = Bus::new();
        bus.insert(0x10, 0x10, echo(1)).unwrap();
        for addr in [0, 0xf, 0x20, u64::MAX] {
            let mut word = [0; 2];
            assert!(!bus.read(addr, &mut word), "{addr:#x}");
            assert_eq!(word, [0xff; 2]);
            assert!(!bus.write(addr, &word));
        }
    }

    #[test]
    fn an_access_across_the_end_of_a_range_reaches_nobody() {
        let mut bus = Bus::new();
        bus.insert(0x10, 0x10, echo(1)).unwrap();
        assert!(!bus.read(0x1f, &mut [0; 2]));
    }

    #[test]
    fn overlaps_and_bad_ranges_are_refused() {
        let mut bus = Bus::new();
        bus.insert(0x10, 0x10, echo(1)).unwrap();
        for (start, len) in [(0x10, 0x10), (0x8, 9), (0x1f, 1), (0, 0x100)] {
            let refused = bus.insert(start, len, echo(2));
            assert_eq!(refused, Err(BusError::Overlap { start, len }));
        }
        for (start, len) in [(0, 0), (u64::MAX, 2)] {
            let refused = bus.insert(start, len, echo(2));
            assert_eq!(refused, Err(BusError::BadRange { start, len }));
        }
    }
}
