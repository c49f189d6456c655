//! One token bucket, as arithmetic on given times. Exact: no rounding adds up, in either direction.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::BucketConfig;

/// Tokens that refill at a steady rate.
#[derive(Debug)]
pub struct Bucket {
    size: u64,
    refill_ns: u64,
    /// Tokens there; negative after an operation that was larger than the bucket.
    level: i128,
    /// What was refilled beyond whole tokens, in parts of `refill_ns`.
    part: u64,
    /// What is left of the one-time burst.
    burst: u64,
    last: Instant,
}

/// How full a bucket is, and which one it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BucketState {
    pub size: u64,
    pub refill_ns: u64,
    pub level: i128,
    pub part: u64,
    pub burst: u64,
}

impl BucketState {
    /// Says what no bucket can be.
    pub fn check(&self) -> Result<(), &'static str> {
        // An operation takes a full bucket into debt by its own size at most.
        let possible = -i128::from(u64::MAX)..=i128::from(self.size);
        match () {
            () if self.size == 0 || self.refill_ns == 0 => Err("has no size or never fills"),
            () if !possible.contains(&self.level) => Err("has an impossible level"),
            () if self.part >= self.refill_ns => Err("has more than a part of a token"),
            () => Ok(()),
        }
    }
}

impl Bucket {
    /// A full bucket, or none where the configuration limits nothing.
    pub fn new(config: &BucketConfig, now: Instant) -> Option<Self> {
        if config.size == 0 || config.refill_time == 0 {
            return None;
        }
        Some(Self {
            size: config.size,
            refill_ns: config.refill_time.saturating_mul(1_000_000),
            level: config.size.into(),
            part: 0,
            burst: config.one_time_burst.unwrap_or(0),
            last: now,
        })
    }

    /// How long `n` tokens are to be waited for; zero if they can be taken now.
    pub fn wait(&mut self, n: u64, now: Instant) -> Duration {
        self.refill(now);
        let needed = n.saturating_sub(self.burst).min(self.size);
        let missing = i128::from(needed) - self.level;
        let Ok(missing @ 1..) = u128::try_from(missing) else {
            return Duration::ZERO;
        };
        let parts = missing.saturating_mul(self.refill_ns.into()) - u128::from(self.part);
        let ns = parts.div_ceil(self.size.into());
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Takes `n` tokens, which [`Self::wait`] has just said can be taken.
    pub fn take(&mut self, n: u64) {
        let from_burst = n.min(self.burst);
        self.burst -= from_burst;
        self.level -= i128::from(n - from_burst);
    }

    /// How full it is now.
    pub(super) fn save(&mut self, now: Instant) -> BucketState {
        self.refill(now);
        BucketState {
            size: self.size,
            refill_ns: self.refill_ns,
            level: self.level,
            part: self.part,
            burst: self.burst,
        }
    }

    /// Makes a fresh bucket as full as a checked state says, if that is of such a bucket.
    pub(super) fn restore(&mut self, state: &BucketState) {
        if (state.size, state.refill_ns) == (self.size, self.refill_ns) {
            self.level = state.level;
            self.part = state.part;
            self.burst = state.burst.min(self.burst);
        }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.last).as_nanos();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        self.last = self.last.max(now);
        let parts = u128::from(elapsed) * u128::from(self.size) + u128::from(self.part);
        let refill_ns = u128::from(self.refill_ns);
        self.level += (parts / refill_ns) as i128;
        self.part = (parts % refill_ns) as u64;
        if self.level >= self.size.into() {
            self.level = self.size.into();
            self.part = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config() -> impl Strategy<Value = BucketConfig> {
        let size = prop_oneof![1..2000u64, Just(u64::MAX), any::<u64>()];
        let refill = prop_oneof![1..2000u64, Just(u64::MAX), any::<u64>()];
        (size, proptest::option::of(0..5000u64), refill).prop_map(
            |(size, one_time_burst, refill_time)| BucketConfig {
                size: size.max(1),
                one_time_burst,
                refill_time: refill_time.max(1),
            },
        )
    }

    proptest! {
        /// Never more than the bucket, its burst and the time allow, but for the debt that the
        /// last operation may leave.
        #[test]
        fn never_more_than_allowed(
            config in config(),
            steps in prop::collection::vec((0..3_000_000_000u64, 0..6000u64), 1..200),
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut bucket = Bucket::new(&config, now).unwrap();
            let (mut taken, mut last) = (0u128, 0u64);
            for (ns, n) in steps {
                now += Duration::from_nanos(ns);
                if bucket.wait(n, now).is_zero() {
                    bucket.take(n);
                    taken += u128::from(n);
                    last = n;
                }
                let refilled = (now - start).as_nanos() * u128::from(config.size)
                    / u128::from(config.refill_time.saturating_mul(1_000_000));
                let allowed = u128::from(config.size)
                    + u128::from(config.one_time_burst.unwrap_or(0))
                    + refilled
                    + u128::from(last.saturating_sub(config.size));
                prop_assert!(taken <= allowed, "{taken} > {allowed}");
            }
        }

        /// Whoever waits as long as told gets through, and one nanosecond less is too early.
        #[test]
        fn never_stuck(
            size in 1..2000u64,
            refill_time in 1..2000u64,
            burst in proptest::option::of(0..5000u64),
            operations in prop::collection::vec(0..6000u64, 1..100),
        ) {
            let config = BucketConfig { size, one_time_burst: burst, refill_time };
            let mut now = Instant::now();
            let mut bucket = Bucket::new(&config, now).unwrap();
            for n in operations {
                let wait = bucket.wait(n, now);
                if !wait.is_zero() {
                    prop_assert!(!bucket.wait(n, now + wait - Duration::from_nanos(1)).is_zero());
                    now += wait;
                }
                prop_assert_eq!(bucket.wait(n, now), Duration::ZERO);
                bucket.take(n);
            }
        }
    }

    #[test]
    fn the_long_run_is_exactly_the_rate() {
        // Three tokens in seven milliseconds, taken one by one with waits of odd lengths.
        let config = BucketConfig {
            size: 3,
            one_time_burst: None,
            refill_time: 7,
        };
        let start = Instant::now();
        let mut bucket = Bucket::new(&config, start).unwrap();
        let mut now = start;
        for _ in 0..3003 {
            now += bucket.wait(1, now);
            bucket.take(1);
        }
        // The first three were there at once.
        let expected = Duration::from_millis(7000);
        assert!(now - start >= expected && now - start < expected + Duration::from_micros(1));
    }

    #[test]
    fn the_burst_is_given_once() {
        let config = BucketConfig {
            size: 10,
            one_time_burst: Some(100),
            refill_time: 10,
        };
        let mut now = Instant::now();
        let mut bucket = Bucket::new(&config, now).unwrap();
        assert!(bucket.wait(110, now).is_zero());
        bucket.take(110);
        now += Duration::from_secs(1000);
        assert!(bucket.wait(10, now).is_zero());
        bucket.take(10);
        assert_eq!(bucket.wait(10, now), Duration::from_millis(10));
    }

    #[test]
    fn extremes_do_not_overflow() {
        let config = BucketConfig {
            size: u64::MAX,
            one_time_burst: Some(u64::MAX),
            refill_time: u64::MAX,
        };
        let now = Instant::now();
        let mut bucket = Bucket::new(&config, now).unwrap();
        for _ in 0..3 {
            assert!(bucket.wait(u64::MAX, now).is_zero() || bucket.level <= 0);
            bucket.take(u64::MAX);
        }
        assert!(bucket.wait(u64::MAX, now) > Duration::from_secs(1 << 30));
    }
}
