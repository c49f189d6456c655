//! The 16550A serial port (COM1), the guest's console.

use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;

use vm_superio::serial::NoEvents;
use vm_superio::{Serial as Uart, Trigger};

use crate::bus::BusDeviceMut;
use crate::irq::IrqLine;

/// First port of COM1.
pub const COM1_PORT: u64 = 0x3f8;
/// Number of ports of a 16550A.
pub const COM1_PORTS: u64 = 8;

struct Line(Arc<dyn IrqLine>);

impl Trigger for Line {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.raise();
        Ok(())
    }
}

/// A serial port that writes what the guest sends to `out`. A byte that cannot be written is
/// lost, as on a line that nobody is connected to: the guest must not stop for its console.
pub struct Serial<W: Write + Send>(Uart<Line, NoEvents, W>);

impl<W: Write + Send> Serial<W> {
    /// A serial port that interrupts through `irq` and writes to `out`.
    pub fn new(irq: Arc<dyn IrqLine>, out: W) -> Self {
        Self(Uart::new(Line(irq), out))
    }
}

impl<W: Write + Send> BusDeviceMut for Serial<W> {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let [byte] = data {
            *byte = self.0.read(offset as u8);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let [byte] = data {
            // Only the writer can fail; the byte is lost (see the type's documentation).
            let _ = self.0.write(offset as u8, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::irq::NoIrq;

    #[test]
    fn bytes_come_out_and_the_line_is_always_ready() {
        let mut port = Serial::new(Arc::new(NoIrq), Vec::new());
        for byte in b"hello" {
            let mut line_status = [0];
            port.read(5, &mut line_status);
            assert_eq!(line_status[0] & 0x20, 0x20, "transmitter empty");
            port.write(0, &[*byte]);
        }
        assert_eq!(port.0.writer(), b"hello");
    }

    #[test]
    fn wide_accesses_are_ignored() {
        let mut port = Serial::new(Arc::new(NoIrq), Vec::new());
        port.write(0, b"ab");
        assert!(port.0.writer().is_empty());
        let mut wide = [0; 4];
        port.read(5, &mut wide);
        assert_eq!(wide, [0xff; 4]);
    }

    #[test]
    fn a_writer_that_fails_loses_the_byte_only() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut port = Serial::new(Arc::new(NoIrq), Full);
        port.write(0, b"x");
        let mut line_status = [0];
        port.read(5, &mut line_status);
        assert_eq!(line_status[0] & 0x20, 0x20);
    }
}
