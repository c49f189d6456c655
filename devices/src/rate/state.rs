//! How full a limiter is, over a snapshot.
//!
//! The limits themselves are the configuration's: a bucket that is not the size it was, or refills
//! at another rate, is a new one and full.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::bucket::BucketState;
use super::{Bucket, RateLimiter};
use crate::bus::lock;
use crate::state::RestoreError;

/// How full a limiter's buckets are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimiterState {
    bandwidth: Option<BucketState>,
    ops: Option<BucketState>,
}

impl RateLimiter {
    /// How full it is now.
    pub fn save(&self) -> RateLimiterState {
        let now = Instant::now();
        let mut buckets = lock(&self.0.buckets);
        RateLimiterState {
            bandwidth: buckets.bandwidth.as_mut().map(|bucket| bucket.save(now)),
            ops: buckets.ops.as_mut().map(|bucket| bucket.save(now)),
        }
    }

    /// Makes it as full as it was: the time since then has not passed for it. `section` and
    /// `field` say where the state is from.
    pub fn restore(
        &self,
        section: &str,
        field: &str,
        state: &RateLimiterState,
    ) -> Result<(), RestoreError> {
        let restore = |name, bucket: &mut Option<Bucket>, state: &Option<BucketState>| {
            let Some(state) = state else { return Ok(()) };
            state.check().map_err(|reason| {
                RestoreError::field(section, format!("{field}.{name}"), reason)
            })?;
            if let Some(bucket) = bucket {
                bucket.restore(state);
            }
            Ok(())
        };
        let mut buckets = lock(&self.0.buckets);
        restore("bandwidth", &mut buckets.bandwidth, &state.bandwidth)?;
        restore("ops", &mut buckets.ops, &state.ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{BucketConfig, RateLimiterConfig};

    const HOUR: u64 = 3_600_000;

    fn limiter(size: u64, burst: u64) -> RateLimiter {
        let ops = Some(BucketConfig {
            size,
            one_time_burst: Some(burst),
            refill_time: HOUR,
        });
        let config = RateLimiterConfig {
            bandwidth: None,
            ops,
        };
        RateLimiter::new(Some(&config)).unwrap()
    }

    fn takes(limiter: &RateLimiter) -> usize {
        (0..100).take_while(|_| limiter.take(1)).count()
    }

    #[test]
    fn what_is_left_is_left_after_a_restore_and_the_burst_is_not_given_again() {
        let used = limiter(5, 3);
        assert!((0..6).all(|_| used.take(1)));
        let fresh = limiter(5, 3);
        fresh.restore("s", "limiter", &used.save()).unwrap();
        assert_eq!(takes(&fresh), 2);
        assert_eq!(takes(&used), 2);
    }

    #[test]
    fn another_limit_is_a_full_one() {
        let used = limiter(5, 0);
        assert_eq!(takes(&used), 5);
        let fresh = limiter(7, 0);
        fresh.restore("s", "limiter", &used.save()).unwrap();
        assert_eq!(takes(&fresh), 7);
        let unlimited = RateLimiter::new(None).unwrap();
        unlimited.restore("s", "limiter", &used.save()).unwrap();
        assert_eq!(takes(&unlimited), 100);
        fresh.restore("s", "limiter", &unlimited.save()).unwrap();
    }

    #[test]
    fn no_level_that_a_snapshot_claims_does_harm() {
        let good = limiter(5, 3).save();
        let levels = [i128::MIN, i128::MAX, 6, -(1 << 65), -(1 << 63), 0, 5];
        for level in levels {
            for (burst, part) in [(0, 0), (u64::MAX, 1), (3, u64::MAX)] {
                let mut state = good.clone();
                let bucket = state.ops.as_mut().unwrap();
                (bucket.level, bucket.burst, bucket.part) = (level, burst, part);
                let fresh = limiter(5, 3);
                match fresh.restore("s", "limiter", &state) {
                    Ok(()) => assert!(takes(&fresh) <= 8),
                    Err(error) => {
                        let error = error.to_string();
                        assert!(error.contains("section s: limiter.ops"), "{error}");
                        assert_eq!(takes(&fresh), 8);
                    }
                }
            }
        }
    }
}
