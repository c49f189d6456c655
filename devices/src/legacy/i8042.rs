//! The keyboard controller, of which only the reset line is left: a guest that writes 0xFE to
//! port 0x64 asks for a CPU reset, which ends the machine.

use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, SectionError, State};
use vm_superio::{I8042Device, Trigger};

use crate::bus::BusDeviceMut;
use crate::state::RestoreError;

/// First port of the controller.
pub const I8042_PORT: u64 = 0x60;
/// Number of ports, data (0x60) to command (0x64).
pub const I8042_PORTS: u64 = 5;

/// The command, written to the last of the ports, that pulses the CPU's reset line.
pub const RESET_COMMAND: u8 = 0xfe;

struct OnReset(Box<dyn Fn() + Send>);

impl Trigger for OnReset {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        (self.0)();
        Ok(())
    }
}

/// A keyboard controller that calls back when the guest asks for a reset.
pub struct I8042(I8042Device<OnReset>);

impl I8042 {
    /// A controller that calls `on_reset` for each reset command.
    pub fn new(on_reset: impl Fn() + Send + 'static) -> Self {
        Self(I8042Device::new(OnReset(Box::new(on_reset))))
    }
}

/// There is nothing to keep: a reset is asked for or not.
#[derive(Serialize, Deserialize)]
struct I8042State {}

impl State for I8042State {
    const KIND: &'static str = "i8042";
    const VERSION: u16 = 1;
}

impl I8042 {
    /// The controller's state, as the section `name`.
    pub fn save(&self, name: &str) -> Result<Section, SectionError> {
        Section::of(name, &I8042State {})
    }

    /// Gives the controller a saved state.
    pub fn restore(&mut self, section: &Section) -> Result<(), RestoreError> {
        let I8042State {} = section.decode()?;
        Ok(())
    }
}

impl BusDeviceMut for I8042 {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let [byte] = data {
            *byte = self.0.read(offset as u8);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let [byte] = data {
            let Ok(()) = self.0.write(offset as u8, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn only_the_reset_command_resets() {
        let resets = Arc::new(AtomicU32::new(0));
        let seen = resets.clone();
        let mut device = I8042::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        device.write(0, &[0xfe]);
        device.write(4, &[0xd1]);
        device.write(4, &[0xfe, 0]);
        assert_eq!(resets.load(Ordering::Relaxed), 0);
        device.write(4, &[0xfe]);
        assert_eq!(resets.load(Ordering::Relaxed), 1);
        let mut status = [0xff];
        device.read(4, &mut status);
        assert_eq!(status, [0]);
    }
}
