//! The serial port, and the two devices that have nothing to keep.

use std::io;
use std::sync::{Arc, Mutex};

use tine_devices::bus::{BusDeviceMut, lock};
use tine_devices::legacy::i8042::I8042;
use tine_devices::legacy::power::SleepRegisters;
use tine_devices::legacy::serial::Serial;
use tine_devices::testing::CountingIrq;
use tine_snapshot::section::Section;

use crate::hostile::damaged;

const DATA: u64 = 0;
const INTERRUPT_ENABLE: u64 = 1;
const INTERRUPT_ID: u64 = 2;
const MODEM_CONTROL: u64 = 4;
const LINE_STATUS: u64 = 5;
const SCRATCH: u64 = 7;
const LOOP: u8 = 0x10;

#[derive(Clone, Default)]
struct Terminal(Arc<Mutex<Vec<u8>>>);

impl io::Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Port {
    serial: Serial<Terminal>,
    terminal: Terminal,
    irq: Arc<CountingIrq>,
}

impl Port {
    fn new() -> Self {
        let (terminal, irq) = (Terminal::default(), Arc::new(CountingIrq::default()));
        let serial = Serial::new(irq.clone(), terminal.clone());
        Self {
            serial,
            terminal,
            irq,
        }
    }

    fn restored(section: &Section) -> Self {
        let mut port = Self::new();
        port.serial.restore(section).unwrap();
        port
    }

    fn save(&self) -> Section {
        self.serial.save("serial0").unwrap()
    }

    fn write(&mut self, offset: u64, byte: u8) {
        self.serial.write(offset, &[byte]);
    }

    fn read(&mut self, offset: u64) -> u8 {
        let mut byte = [0];
        self.serial.read(offset, &mut byte);
        byte[0]
    }

    fn print(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.write(DATA, byte));
    }

    fn printed(&self) -> String {
        String::from_utf8(lock(&self.terminal.0).clone()).unwrap()
    }
}

#[test]
fn output_is_neither_lost_nor_doubled() {
    let mut port = Port::new();
    port.print("half a li");
    let section = port.save();
    let mut restored = Port::restored(&section);
    assert_eq!(restored.save(), section);
    restored.print("ne");
    port.print("me");
    assert_eq!(port.printed(), "half a lime");
    assert_eq!(restored.printed(), "ne");
}

#[test]
fn registers_and_bytes_not_yet_read_are_kept() {
    let mut port = Port::new();
    port.write(SCRATCH, 0x5a);
    port.write(MODEM_CONTROL, LOOP);
    port.print("typed");
    let mut restored = Port::restored(&port.save());
    assert_eq!(restored.read(SCRATCH), 0x5a);
    assert_eq!(restored.read(MODEM_CONTROL), LOOP);
    for byte in b"typed" {
        assert_eq!(restored.read(LINE_STATUS) & 1, 1);
        assert_eq!(restored.read(DATA), *byte);
    }
    assert_eq!(restored.read(LINE_STATUS) & 1, 0);
}

#[test]
fn an_interrupt_that_was_not_taken_is_raised_again() {
    let mut port = Port::new();
    port.write(INTERRUPT_ENABLE, 2);
    port.print("x");
    let section = port.save();
    let mut restored = Port::restored(&section);
    assert_eq!(restored.irq.count(), 1);
    assert_eq!(restored.read(INTERRUPT_ID) & 0xf, 2, "transmitter empty");
    restored.print("y");
    assert_eq!(restored.irq.count(), 2, "and the next one comes");
    assert_eq!(port.read(INTERRUPT_ID) & 0xf, 2);
    let restored = Port::restored(&port.save());
    assert_eq!(restored.irq.count(), 0, "it was taken");
}

#[test]
fn damaged_state_leaves_the_port_as_it_was() {
    let mut saved = Port::new();
    saved.write(INTERRUPT_ENABLE, 3);
    saved.write(MODEM_CONTROL, LOOP);
    saved.print("typed");
    let sections = [saved.save()];
    let mut refused = 0;
    for sections in damaged(&sections) {
        let mut port = Port::new();
        let restored = port.serial.restore(&sections[0]);
        if let Err(error) = &restored {
            assert!(error.to_string().starts_with("section serial0"), "{error}");
            refused += 1;
        }
        port.write(MODEM_CONTROL, 0);
        port.write(3, 0);
        (0..8).for_each(|offset| {
            port.read(offset);
        });
        port.print("on");
        assert_eq!(port.printed(), "on", "{restored:?}");
        assert_eq!(port.read(LINE_STATUS) & 0x60, 0x60);
    }
    assert!(refused > 0);
}

#[test]
fn a_receiver_with_more_than_it_holds_is_refused() {
    let mut port = Port::new();
    port.write(MODEM_CONTROL, LOOP);
    port.print(&"x".repeat(100));
    let mut section = port.save();
    assert_eq!(*section.payload.last().unwrap(), b'x');
    let len = section.payload.len() - 65;
    assert_eq!(section.payload[len], 64);
    section.payload[len] = 65;
    section.payload.push(b'x');
    let error = Port::new().serial.restore(&section).unwrap_err();
    assert!(error.to_string().contains("received"), "{error}");
}

#[test]
fn the_devices_without_state_take_their_own_section_only() {
    let mut keyboard = I8042::new(|| {});
    let mut sleep = SleepRegisters::new(|| {});
    let saved = [keyboard.save("a").unwrap(), sleep.save("b").unwrap()];
    keyboard.restore(&saved[0]).unwrap();
    sleep.restore(&saved[1]).unwrap();
    keyboard.restore(&saved[1]).unwrap_err();
    sleep.restore(&saved[0]).unwrap_err();
    for sections in damaged(&saved) {
        let restored = (
            keyboard.restore(&sections[0]).is_ok(),
            sleep.restore(&sections[1]).is_ok(),
        );
        assert_eq!(restored, (sections[0] == saved[0], sections[1] == saved[1]));
    }
}
