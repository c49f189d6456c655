//! The entropy device.

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::rng::{REQUESTS_PER_EVENT, Rng};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::suite::Subject;

pub struct Entropy;

impl Subject for Entropy {
    type Host = ();
    const FEATURES: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
    const REPEATS: bool = false;

    fn make() -> (Box<dyn VirtioDevice>, ()) {
        (Box::new(Rng::new().unwrap()), ())
    }

    fn work(driver: &mut FakeDriver, _: &mut ()) {
        let head = driver.submit(0, &[Buffer::In(32)]);
        driver.kick(0);
        let used = driver.wait_used(0);
        assert_eq!((used.head, used.len), (head, 32));
        assert_ne!(used.data, [0; 32]);
    }

    fn leave(driver: &mut FakeDriver, _: &mut ()) -> Vec<(usize, u16)> {
        let submit = |driver: &mut FakeDriver, count| {
            let heads = (0..count).map(|_| (0, driver.submit(0, &[Buffer::In(16)])));
            heads.collect::<Vec<_>>()
        };
        // More than one turn's share, and some that it does not know of.
        let mut heads = submit(driver, REQUESTS_PER_EVENT + 3);
        driver.kick(0);
        heads.extend(submit(driver, 4));
        heads
    }
}

crate::conforms!(Entropy);
