//! The 16550A serial port (COM1), the guest's console.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, SectionError, State};
use vm_superio::serial::NoEvents;
use vm_superio::{Serial as Uart, SerialState, Trigger};

use crate::bus::BusDeviceMut;
use crate::irq::IrqLine;
use crate::state::RestoreError;

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

/// The writer, which moves from a port to the one that takes its place.
struct Out<W>(Option<W>);

impl<W: Write> Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .as_mut()
            .map_or(Ok(bytes.len()), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// A serial port that writes what the guest sends to `out`. A byte that cannot be written is
/// lost, as on a line that nobody is connected to: the guest must not stop for its console.
pub struct Serial<W: Write + Send> {
    uart: Uart<Line, NoEvents, Out<W>>,
    irq: Arc<dyn IrqLine>,
}

/// The registers. Of what the guest sent nothing is in here: a byte is written and flushed before
/// the access that sent it ends.
#[derive(Debug, Serialize, Deserialize)]
struct Registers {
    divisor: [u8; 2],
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
    /// What the guest has not read yet.
    received: Vec<u8>,
}

impl State for Registers {
    const KIND: &'static str = "serial-16550a";
    const VERSION: u16 = 1;
}

/// Bytes that the receiver holds.
const FIFO_LEN: usize = 64;
const LINE_STATUS_DATA_READY: u8 = 1;
/// The transmitter is always empty.
const LINE_STATUS_IDLE: u8 = 0x60;

impl<W: Write + Send> Serial<W> {
    /// A serial port that interrupts through `irq` and writes to `out`.
    pub fn new(irq: Arc<dyn IrqLine>, out: W) -> Self {
        Self {
            uart: Uart::new(Line(irq.clone()), Out(Some(out))),
            irq,
        }
    }

    /// The port's state, as the section `name`. The vCPUs are not running.
    pub fn save(&self, name: &str) -> Result<Section, SectionError> {
        let state = self.uart.state();
        let registers = Registers {
            divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            received: state.in_buffer,
        };
        Section::of(name, &registers)
    }

    /// Gives the port a saved state; after an error it is as it was. An interrupt that the guest
    /// has not acknowledged is raised again, so the interrupt controllers come first.
    pub fn restore(&mut self, section: &Section) -> Result<(), RestoreError> {
        let registers: Registers = section.decode()?;
        let bad = |field, reason| Err(RestoreError::field(&section.name, field, reason));
        if registers.received.len() > FIFO_LEN {
            return bad("received", "is more than the receiver holds");
        }
        let ready = match registers.received.is_empty() {
            true => 0,
            false => LINE_STATUS_DATA_READY,
        };
        // A guest that saw anything else would wait for ever.
        if registers.line_status != LINE_STATUS_IDLE | ready {
            return bad("line_status", "is none that the port can have");
        }
        let state = SerialState {
            baud_divisor_low: registers.divisor[0],
            baud_divisor_high: registers.divisor[1],
            interrupt_enable: registers.interrupt_enable,
            interrupt_identification: registers.interrupt_identification,
            line_control: registers.line_control,
            line_status: registers.line_status,
            modem_control: registers.modem_control,
            modem_status: registers.modem_status,
            scratch: registers.scratch,
            in_buffer: registers.received,
        };
        let out = Out(self.uart.writer_mut().0.take());
        match Uart::from_state(&state, Line(self.irq.clone()), NoEvents, out) {
            Ok(uart) => self.uart = uart,
            // Only its receiver's length could be wrong.
            Err(_) => return bad("received", "is more than the receiver holds"),
        }
        Ok(())
    }
}

impl<W: Write + Send> BusDeviceMut for Serial<W> {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let [byte] = data {
            *byte = self.uart.read(offset as u8);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let [byte] = data {
            // Only the writer can fail; the byte is lost (see the type's documentation).
            let _ = self.uart.write(offset as u8, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::irq::NoIrq;

    fn written(port: &Serial<Vec<u8>>) -> &[u8] {
        port.uart.writer().0.as_ref().unwrap()
    }

    #[test]
    fn bytes_come_out_and_the_line_is_always_ready() {
        let mut port = Serial::new(Arc::new(NoIrq), Vec::new());
        for byte in b"hello" {
            let mut line_status = [0];
            port.read(5, &mut line_status);
            assert_eq!(line_status[0] & 0x20, 0x20, "transmitter empty");
            port.write(0, &[*byte]);
        }
        assert_eq!(written(&port), b"hello");
    }

    #[test]
    fn wide_accesses_are_ignored() {
        let mut port = Serial::new(Arc::new(NoIrq), Vec::new());
        port.write(0, b"ab");
        assert!(written(&port).is_empty());
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
