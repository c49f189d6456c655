//! The store inside a network device: the guest's queues on one side, and a cable that sees none of
//! it.

use tine_devices::mmds::{Mmds, MmdsVersion};
use tine_devices::testing::Buffer;
use tine_devices::virtio::net::Net;

use super::client::{Client, Wire, store};
use super::driver::{Guest, MERGEABLE, TX, config, framed, load};
use super::fake::Cable;

/// The queues of a network device.
struct Queues {
    guest: Guest,
    /// How many buffers the guest keeps available.
    buffers: usize,
    posted: usize,
}

impl Queues {
    fn new(mmds: &Mmds, buffers: usize) -> Self {
        let cable = Cable::new();
        let net = Net::with_backend(&config(), cable.clone()).unwrap();
        let net = net.with_detour(Box::new(mmds.responder())).unwrap();
        let guest = Guest::with_device(net, cable, MERGEABLE);
        Self {
            guest,
            buffers,
            posted: 0,
        }
    }
}

impl Wire for Queues {
    fn send(&mut self, frame: Vec<u8>) {
        self.guest
            .driver
            .submit(TX, &[Buffer::Out(&framed(&frame))]);
        self.guest.driver.kick(TX);
        assert_eq!(self.guest.tx_used(), 1);
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        while self.guest.driver.run_backend(0) {}
        let mut frames = Vec::new();
        while let Some((_, bytes)) = self.guest.received() {
            self.posted -= 1;
            frames.push(bytes);
        }
        self.guest.post(self.buffers - self.posted, 2048);
        self.posted = self.buffers;
        frames
    }
}

#[test]
fn the_guest_reads_the_store_and_the_cable_sees_nothing() {
    let mut guest = Client::new(Queues::new(&store(MmdsVersion::V1), 32));
    guest.run();
    assert_eq!(guest.get("/latest/meta-data/ami-id").body, "ami-1");
    let queues = &mut guest.wire;
    assert_eq!(queues.guest.cable.sent(), Vec::<Vec<u8>>::new());
    let stats = queues.guest.handle.stats();
    assert_eq!(load(&stats.tx_frames), 0);
    assert!(load(&stats.detour_tx_frames) > 3 && load(&stats.detour_rx_frames) > 3);
    queues.send(vec![0xee; 60]);
    assert_eq!(queues.guest.cable.sent(), [framed(&[0xee; 60])]);
}

#[test]
fn a_guest_with_few_buffers_gets_everything_in_its_time() {
    let mmds = Mmds::default();
    let text = "0123456789".repeat(5000);
    mmds.put(serde_json::json!({ "k": text })).unwrap();
    for buffers in [1, 3, 60] {
        let mut guest = Client::new(Queues::new(&mmds, buffers));
        guest.run();
        assert!(guest.get("/k").body == text);
    }
}

#[test]
fn frames_of_the_cable_and_of_the_store_share_the_queue() {
    let mut guest = Client::new(Queues::new(&store(MmdsVersion::V1), 16));
    guest.run();
    for n in 0..20 {
        guest.wire.guest.cable.push_raw(framed(&[n; 100]));
        assert_eq!(guest.get("/latest/meta-data/ami-id").body, "ami-1");
    }
    assert_eq!(guest.wire.guest.cable.waiting(), 0);
}

#[test]
fn a_reset_device_is_quiet_and_serves_the_next_driver() {
    let mut guest = Client::new(Queues::new(&store(MmdsVersion::V1), 16));
    guest.run();
    guest.connect();
    let queues = &mut guest.wire;
    queues.guest.driver.reset();
    assert!(!queues.guest.driver.run_backend(50));
    queues.guest.driver.start(MERGEABLE);
    queues.posted = 0;
    queues.receive();
    assert_eq!(guest.get("/latest/meta-data/ami-id").body, "ami-1");
}

#[test]
fn a_store_with_nothing_to_do_costs_no_wake_ups() {
    let guest = Client::new(Queues::new(&store(MmdsVersion::V1), 16))
        .wire
        .guest;
    assert!(!guest.driver.run_backend(50));
}
