//! Tine, a microVM monitor for code nobody is watching.
//!
//! This library makes and runs machines: [`config::MachineConfig`] says what is wanted,
//! [`machine::Machine::assemble`] makes it, [`agent::Agent`] runs commands in its guest.
//! [`launch::Launcher`] starts machines in processes of their own, [`client::Machine`] is one of those from
//! outside.

pub mod agent;
pub mod api;
pub mod arch;
pub mod boot;
pub mod client;
pub mod clock;
pub mod config;
pub mod console;
pub mod control;
pub mod host;
pub mod image;
pub mod kvm;
pub mod launch;
pub mod layout;
mod listen;
pub mod logger;
pub mod machine;
pub mod memory;
pub mod pages;
pub mod process;
pub mod ready;
pub mod replace;
pub mod signals;
pub mod snapshot;
mod threads;

pub mod usage;
pub mod vcpu;
