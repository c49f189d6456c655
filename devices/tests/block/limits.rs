//! Rate limits: what goes beyond waits in the queue, and nothing is lost.

use std::time::{Duration, Instant};

use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::block::{Block, BlockConfig, Engine};
use virtio_bindings::virtio_blk::*;

use super::driver::{Answer, ENGINES, FLUSH, OK, Requests, config, image};

const HOUR: u64 = 3_600_000;

fn bucket(size: u64, refill_time: u64) -> Option<BucketConfig> {
    Some(BucketConfig {
        size,
        one_time_burst: None,
        refill_time,
    })
}

fn limited(engine: Engine, rate_limiter: RateLimiterConfig) -> BlockConfig {
    let image = image(64);
    let config = BlockConfig {
        rate_limiter: Some(rate_limiter),
        ..config(image.path(), engine)
    };
    // The device has the file open.
    image.keep().unwrap();
    config
}

fn used(driver: &mut FakeDriver) -> usize {
    while driver.run_backend(50) {}
    std::iter::from_fn(|| driver.used(0)).count()
}

#[test]
fn requests_beyond_the_limit_wait_and_lose_nothing() {
    for engine in ENGINES {
        let config = limited(
            engine,
            RateLimiterConfig {
                bandwidth: bucket(8 * 512, 80),
                ops: None,
            },
        );
        let mut driver = FakeDriver::started(Block::open(&config).unwrap(), FLUSH);
        std::fs::remove_file(&config.path).unwrap();
        let start = Instant::now();
        for sector in 0..16 {
            driver.send(VIRTIO_BLK_T_IN, sector, &[Buffer::In(512)]);
        }
        driver.kick(0);
        let mut sectors: Vec<u8> = (0..16)
            .map(|_| Answer::from(driver.wait_used(0)))
            .map(|answer| answer.data[0])
            .collect();
        // The second half had to be refilled.
        assert!(start.elapsed() >= Duration::from_millis(80));
        sectors.sort_unstable();
        assert_eq!(sectors, (0..16).collect::<Vec<_>>());
        assert!(!driver.run_backend(0), "the drive is quiet again");
    }
}

#[test]
fn operations_are_limited_too_and_the_limit_can_be_lifted() {
    let config = limited(
        Engine::Auto,
        RateLimiterConfig {
            bandwidth: None,
            ops: bucket(3, HOUR),
        },
    );
    let block = Block::open(&config).unwrap();
    std::fs::remove_file(&config.path).unwrap();
    let limiter = block.rate_limiter().clone();
    let mut driver = FakeDriver::started(block, FLUSH);
    for _ in 0..5 {
        driver.send(VIRTIO_BLK_T_FLUSH, 0, &[]);
    }
    driver.kick(0);
    assert_eq!(used(&mut driver), 3);
    driver.kick(0);
    assert_eq!(used(&mut driver), 0);
    limiter.set(&RateLimiterConfig {
        bandwidth: None,
        ops: bucket(0, 0),
    });
    assert_eq!(used(&mut driver), 2);
    assert_eq!(driver.read(0, 512).status, OK);
}

#[test]
fn a_reset_forgets_who_waited() {
    let config = limited(
        Engine::Thread,
        RateLimiterConfig {
            bandwidth: bucket(512, 20),
            ops: None,
        },
    );
    let mut driver = FakeDriver::started(Block::open(&config).unwrap(), FLUSH);
    std::fs::remove_file(&config.path).unwrap();
    for sector in 0..4 {
        driver.send(VIRTIO_BLK_T_IN, sector, &[Buffer::In(512)]);
    }
    driver.kick(0);
    driver.reset();
    assert!(!driver.run_backend(100));
    driver.start(FLUSH);
    assert_eq!(driver.read(0, 512).status, OK);
}
