//! The virtio-mmio transport and the queues, with a device that does nothing by itself.

mod mmio;
mod probe;
mod queue;
