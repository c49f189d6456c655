//! The boot timer: a guest writes 123 to its address when it has booted, and the log says how
//! long that took.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tine_devices::bus::BusDeviceMut;

use crate::logger::{self, Level};

/// Number of addresses.
pub const BOOT_TIMER_LEN: u64 = 0x1000;
/// What a guest writes.
const BOOTED: u8 = 123;

/// The device.
pub struct BootTimer {
    start: Instant,
    start_cpu: Duration,
}

impl BootTimer {
    /// A timer that starts now.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            start_cpu: cpu_time(),
        }
    }
}

impl BusDeviceMut for BootTimer {
    fn read(&mut self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if (offset, data) != (0, &[BOOTED]) {
            return;
        }
        let wall = self.start.elapsed();
        let cpu = cpu_time().saturating_sub(self.start_cpu);
        let words = format_args!(
            "Guest-boot-time = {:>6} us {} ms, {:>6} CPU us {} CPU ms",
            wall.as_micros(),
            wall.as_millis(),
            cpu.as_micros(),
            cpu.as_millis()
        );
        logger::log(Level::Info, words);
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
