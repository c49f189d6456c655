//! x86-64: processor features and registers at start, and the ACPI tables.

pub mod acpi;
pub mod cpuid;
pub mod features;
pub mod processor;
pub mod regs;
