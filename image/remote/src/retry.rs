//! Retries of failed requests: exponential backoff with jitter.
//!
//! Must stay true: a request is made [`Retry::attempts`] times at most; pauses are drawn uniformly
//! from half the bound to the bound, so that clients that failed at the same time do not retry at
//! the same time.
//! Pure.

use sidecore_random::Random;
use std::time::Duration;

/// Limits of retries.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Maximum number of attempts, at least 1.
    pub attempts: u32,
    /// Bound of the first pause; it doubles with each further pause.
    pub pause_first: Duration,
    /// Upper bound of every pause.
    pub pause_max: Duration,
    /// Time limit without bytes from the server: for connecting, for a reply's head, and between
    /// two parts of its body. The whole body may take this and one second for each 16 KiB.
    pub attempt_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 6,
            pause_first: Duration::from_millis(200),
            pause_max: Duration::from_secs(5),
            attempt_max: Duration::from_secs(30),
        }
    }
}

impl Retry {
    /// The pause after attempt `attempt` (from 0) has failed; `None` after the last one.
    pub(crate) fn pause(&self, attempt: u32, random: &mut Random) -> Option<Duration> {
        if attempt + 1 >= self.attempts {
            return None;
        }
        // The shift is bounded; `pause_max` cuts the product long before that.
        let factor = 1_u32 << attempt.min(16);
        let bound = self.pause_first.saturating_mul(factor).min(self.pause_max);
        Some(bound.mul_f64(0.5 + random.unit() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_within_bounds_and_end() {
        let retry = Retry::default();
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let pauses: Vec<_> = (0..10).map(|n| retry.pause(n, &mut random)).collect();
            assert!(pauses[5..].iter().all(Option::is_none), "{pauses:?}");
            for (n, pause) in pauses[..5].iter().flatten().enumerate() {
                let bound = Duration::from_millis(200 << n);
                assert!(*pause <= bound && *pause >= bound / 2, "{n}: {pause:?}");
            }
        }
    }
}
