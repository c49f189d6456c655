//! The socket device and its transport, driven by a guest that writes what it likes into its rings, its
//! memory and the device's registers, while host programs come and go. Whatever happens, nothing panics
//! or spins, and a driver that begins anew is served.

#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::vsock::{HOST_CID, Vsock, VsockConfig, VsockHandle};
use tine_fuzz::bounded::Bounded;
use vm_memory::{Bytes, GuestAddress};

#[global_allocator]
static ALLOCATOR: Bounded<{ 16 << 20 }> = Bounded;

const CID: u32 = 42;
/// Where the host listens.
const PORT: u32 = 5;
const QUEUES: usize = 3;
const RX: usize = 0;
const TX: usize = 1;
/// Most host programs.
const HOSTS: usize = 16;

#[derive(Debug, Arbitrary)]
enum Step {
    /// A packet as it should be laid out, with a header that says this.
    Packet {
        src_port: u8,
        dst_port: u8,
        op: u8,
        flags: u8,
        buf_alloc: u32,
        fwd_cnt: u32,
        len: u16,
    },
    /// Any header and data, in as many parts as there are.
    Bytes(Vec<Vec<u8>>),
    /// A chain of any descriptors.
    Chain {
        queue: u8,
        parts: Vec<(u64, u32, u16)>,
        indirect: bool,
    },
    /// One descriptor, as it stands.
    Descriptor {
        queue: u8,
        index: u8,
        addr: u64,
        len: u32,
        flags: u16,
        next: u16,
    },
    /// The index of an available ring.
    Available {
        queue: u8,
        index: u16,
    },
    /// A register, and what is written to it.
    Register {
        offset: u8,
        value: u32,
    },
    /// Guest memory.
    Memory {
        at: u32,
        bytes: Vec<u8>,
    },
    /// Room for a packet.
    Room(u16),
    Kick(u8),
    Work,
    Connect(u8),
    Send {
        host: u8,
        len: u16,
    },
    Take(u8),
    Finish(u8),
    Close(u8),
}

struct Bench {
    driver: FakeDriver,
    handle: VsockHandle,
    hosts: Vec<UnixStream>,
}

/// Ports that have a chance of being those of a connection: the host's, and those it takes itself.
fn port(byte: u8) -> u32 {
    match byte {
        0..128 => u32::from(byte % 8),
        _ => (1 << 30) + u32::from(byte % 8),
    }
}

impl Bench {
    fn take(&mut self, step: &Step) {
        let queue = |byte: &u8| usize::from(*byte) % QUEUES;
        match step {
            Step::Packet {
                src_port,
                dst_port,
                op,
                flags,
                buf_alloc,
                fwd_cnt,
                len,
            } => {
                let mut header = Vec::with_capacity(44);
                header.extend(u64::from(CID).to_le_bytes());
                header.extend(HOST_CID.to_le_bytes());
                header.extend(port(*src_port).to_le_bytes());
                header.extend(port(*dst_port).to_le_bytes());
                header.extend(u32::from(*len).to_le_bytes());
                header.extend(1_u16.to_le_bytes());
                header.extend(u16::from(*op).to_le_bytes());
                header.extend(u32::from(*flags).to_le_bytes());
                header.extend(buf_alloc.to_le_bytes());
                header.extend(fwd_cnt.to_le_bytes());
                let data = vec![*op; (*len).into()];
                self.driver
                    .submit(TX, &[Buffer::Out(&header), Buffer::Out(&data)]);
            }
            Step::Bytes(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| Buffer::Out(part)).collect();
                self.driver.submit(TX, &parts);
            }
            Step::Chain {
                queue: at,
                parts,
                indirect,
            } => {
                let raw = |(addr, len, flags): &(u64, u32, u16)| Buffer::Raw {
                    addr: *addr,
                    len: *len,
                    flags: *flags,
                };
                let parts: Vec<_> = parts.iter().map(raw).collect();
                match indirect {
                    true => self.driver.submit_indirect(queue(at), &parts),
                    false => self.driver.submit(queue(at), &parts),
                };
            }
            Step::Descriptor {
                queue: at,
                index,
                addr,
                len,
                flags,
                next,
            } => {
                let index = u16::from(*index) % 64;
                self.driver
                    .set_descriptor(queue(at), index, *addr, *len, *flags, *next);
            }
            Step::Available { queue: at, index } => {
                self.driver.set_available_index(queue(at), *index);
            }
            Step::Register { offset, value } => {
                self.driver
                    .set_register(u32::from(*offset) * 4 % 0x200, *value);
            }
            Step::Memory { at, bytes } => {
                let _ = self
                    .driver
                    .mem
                    .write_slice(bytes, GuestAddress((*at).into()));
            }
            Step::Room(len) => {
                self.driver
                    .submit(RX, &[Buffer::In(44), Buffer::In((*len).into())]);
            }
            Step::Kick(at) => self.driver.kick(queue(at)),
            Step::Work => self.settle(),
            Step::Connect(at) if self.hosts.len() < HOSTS => {
                self.hosts.extend(self.handle.connect(port(*at)));
            }
            Step::Connect(_) => {}
            Step::Send { host, len } => {
                let _ = self
                    .host(*host)
                    .map(|host| host.write(&vec![1; (*len).into()]));
            }
            Step::Take(host) => {
                let _ = self.host(*host).map(|host| host.read(&mut [0; 4096]));
            }
            Step::Finish(host) => {
                let _ = self.host(*host).map(|host| host.shutdown(Shutdown::Write));
            }
            Step::Close(host) => {
                let at = usize::from(*host);
                if at < self.hosts.len() {
                    self.hosts.remove(at);
                }
            }
        }
    }

    fn host(&mut self, at: u8) -> Option<&mut UnixStream> {
        let host = self.hosts.get_mut(usize::from(at))?;
        host.set_nonblocking(true).expect("a socket");
        Some(host)
    }

    /// Lets the device work until it is quiet.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.driver.run_queue_events();
            if !self.driver.run_backend(0) {
                return;
            }
        }
        panic!("the device spins");
    }
}

fn run(steps: &[Step]) {
    let config = VsockConfig {
        guest_cid: CID,
        uds_path: None,
    };
    let (device, handle) = Vsock::new(&config).expect("a device");
    let listener = handle.listen(PORT).expect("a listener");
    let mut bench = Bench {
        driver: FakeDriver::started(device, 0),
        handle,
        hosts: Vec::new(),
    };
    for step in steps {
        bench.take(step);
        while let Some(host) = listener.accept(Duration::ZERO) {
            bench.hosts.push(host);
        }
    }
    bench.settle();
    drop(bench.driver.save("device/0"));
    // The next driver.
    bench.hosts.clear();
    bench.driver.reset();
    bench.driver.start(0);
    bench.take(&Step::Room(4096));
    bench.driver.kick(RX);
    let _host = bench.handle.connect(1).expect("a connection");
    bench.settle();
    let told = bench.driver.used(RX).expect("a packet");
    let op = u16::from_le_bytes([told.data[30], told.data[31]]);
    assert!(op == 1 || op == 3, "{told:?}");
}

fuzz_target!(init: tine_fuzz::begin(Vec::new), |steps: Vec<Step>| run(&steps));
