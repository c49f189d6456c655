//! The few PC devices that a microVM keeps: the serial port, the keyboard controller's reset, and
//! ACPI's way to power off.

pub mod i8042;
pub mod power;
pub mod serial;
