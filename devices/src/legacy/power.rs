//! ACPI's sleep registers for hardware-reduced machines (ACPI specification 6.5, section
//! 4.8.3.7): a guest that enters S5 is off.

use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, SectionError, State};

use crate::bus::BusDeviceMut;
use crate::state::RestoreError;

/// The sleep type that the tables give to S5, "soft off".
pub const SLEEP_TYPE_S5: u8 = 5;
/// Number of ports: sleep control and sleep status.
pub const SLEEP_PORTS: u64 = 2;

const SLEEP_ENABLE: u8 = 1 << 5;

/// The sleep registers.
pub struct SleepRegisters {
    on_power_off: Box<dyn Fn() + Send>,
}

impl SleepRegisters {
    /// Registers that call `on_power_off` when the guest enters S5.
    pub fn new(on_power_off: impl Fn() + Send + 'static) -> Self {
        Self {
            on_power_off: Box::new(on_power_off),
        }
    }
}

/// There is nothing to keep: the machine is on, and nothing has woken it.
#[derive(Serialize, Deserialize)]
struct SleepState {}

impl State for SleepState {
    const KIND: &'static str = "acpi-sleep";
    const VERSION: u16 = 1;
}

impl SleepRegisters {
    /// The registers' state, as the section `name`.
    pub fn save(&self, name: &str) -> Result<Section, SectionError> {
        Section::of(name, &SleepState {})
    }

    /// Gives the registers a saved state.
    pub fn restore(&mut self, section: &Section) -> Result<(), RestoreError> {
        let SleepState {} = section.decode()?;
        Ok(())
    }
}

impl BusDeviceMut for SleepRegisters {
    fn read(&mut self, _offset: u64, data: &mut [u8]) {
        // The wake status never sets: nothing wakes from S5.
        data.fill(0);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset == 0 && data == [SLEEP_TYPE_S5 << 2 | SLEEP_ENABLE] {
            (self.on_power_off)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn only_s5_with_enable_powers_off() {
        let offs = Arc::new(AtomicU32::new(0));
        let seen = offs.clone();
        let mut registers = SleepRegisters::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        registers.write(0, &[5 << 2]);
        registers.write(0, &[3 << 2 | 0x20]);
        registers.write(1, &[5 << 2 | 0x20]);
        assert_eq!(offs.load(Ordering::Relaxed), 0);
        registers.write(0, &[5 << 2 | 0x20]);
        assert_eq!(offs.load(Ordering::Relaxed), 1);
    }
}
