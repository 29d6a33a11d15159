//! Two signals of the model: the pipe is full, and the minimum round trip.
//!
//! Source: draft-ietf-ccwg-bbr, BBRCheckFullBWReached and BBRUpdateMinRTT.

use super::Sample;

/// The pipe is full if the rate has not grown by a quarter in three rounds.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// MinRTTFilterLen and ProbeRTTInterval.
const MIN_RTT_US: u32 = 10_000_000;
const PROBE_RTT_INTERVAL_US: u32 = 5_000_000;

/// Detects that the rate does not grow any more.
#[derive(Debug, Clone, Default)]
pub(super) struct FullPipe {
    /// The rate that is to be exceeded, and the rounds in which it was not.
    rate: f64,
    rounds: u32,
    now: bool,
    /// The pipe was full at least once (BBR.full_bw_reached).
    reached: bool,
}

impl FullPipe {
    /// Starts again from this rate.
    pub(super) fn restart(&mut self, rate: f64) {
        self.rate = rate;
        self.rounds = 0;
        self.now = false;
    }

    /// Takes a sample; `round_start`: its acknowledgment begins a round.
    pub(super) fn check(&mut self, sample: &Sample, round_start: bool) {
        if self.now || sample.app_limited || sample.rate == 0.0 {
            return;
        }
        if sample.rate >= self.rate * FULL_GROWTH {
            self.restart(sample.rate);
        } else if round_start {
            self.rounds += 1;
            self.now = self.rounds >= FULL_ROUNDS;
            self.reached |= self.now;
        }
    }

    /// Losses or marks show that the pipe is full.
    pub(super) fn mark_reached(&mut self) {
        self.reached = true;
    }

    /// True if it was full at least once.
    pub(super) fn is_reached(&self) -> bool {
        self.reached
    }

    /// True if the rate has not grown since the last restart.
    pub(super) fn is_full_now(&self) -> bool {
        self.now
    }
}

/// Minimum of the round trips (BBR.min_rtt), and the recent one (BBR.probe_rtt_min_delay), with
/// their times; `u32::MAX` before a sample.
#[derive(Debug, Clone)]
pub(super) struct MinRtt {
    us: u32,
    at: u32,
    recent_us: u32,
    recent_at: u32,
    /// The recent one was not measured for a while.
    expired: bool,
}

impl MinRtt {
    pub(super) fn new(now_us: u32) -> Self {
        Self {
            us: u32::MAX,
            at: now_us,
            recent_us: u32::MAX,
            recent_at: now_us,
            expired: false,
        }
    }

    /// The minimum; none before a sample.
    pub(super) fn get(&self) -> Option<u32> {
        (self.us != u32::MAX).then_some(self.us)
    }

    /// Takes the sample of an acknowledgment, if it has one.
    pub(super) fn note(&mut self, rtt_us: Option<u32>, now_us: u32) {
        self.expired = now_us.wrapping_sub(self.recent_at) > PROBE_RTT_INTERVAL_US;
        if let Some(rtt_us) = rtt_us
            && (rtt_us < self.recent_us || self.expired)
        {
            self.recent_us = rtt_us.max(1);
            self.recent_at = now_us;
        }
        let expired = now_us.wrapping_sub(self.at) > MIN_RTT_US;
        if self.recent_us < self.us || expired {
            self.us = self.recent_us;
            self.at = self.recent_at;
        }
    }

    /// True if it should be measured again, with little in flight.
    pub(super) fn is_expired(&self) -> bool {
        self.expired
    }

    /// It was measured with little in flight.
    pub(super) fn probed(&mut self, now_us: u32) {
        self.recent_at = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_rounds_without_growth_fill_the_pipe() {
        let mut pipe = FullPipe::default();
        let sample = |rate| Sample {
            rate,
            ..Sample::default()
        };
        pipe.check(&sample(100.0), true);
        for _ in 0..2 {
            pipe.check(&sample(120.0), true);
            pipe.check(&sample(120.0), false);
        }
        assert!(!pipe.is_full_now());
        pipe.check(&sample(120.0), true);
        assert!(pipe.is_full_now() && pipe.is_reached());
        pipe.restart(120.0);
        assert!(!pipe.is_full_now() && pipe.is_reached());
    }

    #[test]
    fn a_minimum_lasts_ten_seconds_and_a_probe_is_due_after_five() {
        let mut rtt = MinRtt::new(0);
        assert_eq!(rtt.get(), None);
        rtt.note(Some(10_000), 0);
        rtt.note(Some(30_000), 5_000_000);
        assert_eq!((rtt.get(), rtt.is_expired()), (Some(10_000), false));
        rtt.note(Some(20_000), 5_000_001);
        assert_eq!((rtt.get(), rtt.is_expired()), (Some(10_000), true));
        rtt.note(None, 10_000_001);
        assert_eq!(rtt.get(), Some(20_000));
    }
}
