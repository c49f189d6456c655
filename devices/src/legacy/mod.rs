//! The few PC devices that a microVM keeps: the serial port and the keyboard controller's reset.

pub mod i8042;
pub mod serial;
