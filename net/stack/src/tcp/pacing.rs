//! Pacing: a window's segments are sent spread over the round trip instead of in one burst.
//!
//! A burst longer than the bottleneck's queue is dropped however small the average rate is, and it
//! delays other flows in the queue. Sessions on long paths therefore send at a rate: a multiple,
//! greater than 1, of a window per round trip, so that the window remains the limit; those with a
//! model of the path (BBR) send at its rate on any path. A token bucket holds about a millisecond
//! of it; the timing wheel wakes the session when the bucket is full, and acknowledgments that
//! arrive meanwhile release its content.
//!
//! Short paths are not paced: their round trip is little more than the wheel's tick, and the
//! acknowledgments alone provide the clock. Must stay true: such a session pays for two comparisons
//! in its control block; segments that are sent regardless of the window (a probe, the first
//! retransmission, a FIN alone) are not paced, but counted; a waiting session has an entry in the
//! wheel.
//!
//! Source: RFC 9002 section 7.7 (a rate above a window per round trip, and a bounded burst); the
//! factors are the defaults of Linux's `tcp_pacing_ss_ratio` and `tcp_pacing_ca_ratio`.

use super::Session;
use crate::congestion::Control;
use crate::state::flags::Flags;
use crate::timer::{Tick, tick_after};
use sidecore_bare::width::{ToU64, ToUsize};

/// Least smoothed and minimum round trip of paced sessions, in microseconds.
const ROUND_US_MIN: u32 = 1_000;
/// Windows up to these segments are sent at once, like the initial one (RFC 6928).
const SEGMENTS_UNPACED: u32 = 10;
/// Rate in windows per round trip, in percent, while slow start doubles the window.
const SLOW_START_PERCENT: u64 = 200;
/// The same in congestion avoidance, and in slow start that will end within a round trip.
const AVOIDANCE_PERCENT: u64 = 120;
/// The bucket's depth: the bytes sent at the rate in this time,
const BURST_NS: u64 = 1_000_000;
/// but at least three segments, the two that one acknowledgment releases and the one by which the
/// window has grown: if the last were held back, the loss it causes would be detected only after
/// further growth;
const BURST_SEGMENTS_MIN: u64 = 3;
/// at most a super-segment, unless the rate sends that in less than two ticks of the wheel.
const BURST_BYTES_MAX: u64 = 0xffff;
/// Upper bound of a model's rate, in bytes a second: beyond any link's.
const RATE_MAX: f64 = 1e12;
/// Two ticks of the wheel: a session that is woken late by up to this time catches up.
const LATE_NS_MAX: u64 = 2 << crate::timer::TICK_SHIFT;

/// State of one session's pacer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pacer {
    /// Time when all sent data is covered by the rate; the bucket is full from then on.
    next_ns: u64,
    /// Time when the wheel wakes the session, if [`Flags::PACED`] is set.
    pub(crate) wake: Tick,
}

/// A pacing rate: `bytes` in each `per_ns`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    bytes: u64,
    per_ns: u64,
}

impl Rate {
    /// A model's rate, in bytes a second. At least two segments per round trip: a low estimate must
    /// not stall a session whose window permits more.
    fn of_model(rate: f64, mss: u16, smoothed_us: u32) -> Self {
        let least = 2e6 * f64::from(mss) / f64::from(smoothed_us.max(1));
        Self {
            // Not zero, by which `ns_of` divides.
            bytes: rate.max(least).min(RATE_MAX) as u64 + 1,
            per_ns: 1_000_000_000,
        }
    }

    /// A multiple of a window per round trip.
    fn of_window(window: u32, percent: u64, smoothed_us: u32) -> Self {
        Self {
            bytes: u64::from(window) * percent,
            per_ns: u64::from(smoothed_us) * 1_000 * 100,
        }
    }

    /// Time for `bytes` at this rate.
    fn ns_of(self, bytes: u64) -> u64 {
        bytes * self.per_ns / self.bytes
    }

    /// Bytes sent in `ns` at this rate.
    fn bytes_in(self, ns: u64) -> u64 {
        let bytes = u128::from(ns) * u128::from(self.bytes) / u128::from(self.per_ns);
        // Fits: at most a second of at most 2^32 bytes a microsecond.
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Bytes a second.
    pub(crate) fn bytes_per_s(self) -> u64 {
        self.bytes_in(1_000_000_000)
    }

    /// Depth of the bucket in time.
    fn burst_ns(self, mss: u64) -> u64 {
        let most = self.ns_of(BURST_BYTES_MAX).max(LATE_NS_MAX);
        BURST_NS.min(most).max(self.ns_of(BURST_SEGMENTS_MIN * mss))
    }
}

impl Pacer {
    /// The part of `len` bytes that may be sent at `now_ns`, in whole segments unless it is all; 0
    /// if the session has to wait until [`Self::wake`].
    pub(crate) fn permit(&mut self, rate: Rate, mss: u16, len: usize, now_ns: u64) -> usize {
        let allowance = self.allowance(rate, u64::from(mss), now_ns);
        if allowance >= len.to_u64() {
            return len;
        }
        let mss = usize::from(mss);
        let allowance = allowance.to_usize();
        if allowance >= mss {
            return allowance - allowance % mss;
        }
        self.wake = tick_after(self.next_ns.max(now_ns + 1));
        0
    }

    /// Linux's way instead: all `len` bytes if the time of what was sent before is over, else 0.
    pub(crate) fn permit_whole(&mut self, len: usize, now_ns: u64) -> usize {
        if self.next_ns <= now_ns {
            return len;
        }
        self.wake = tick_after(self.next_ns);
        0
    }

    /// Accounts for them: a pause before them shortens their time, to no less than half, and a
    /// session that was woken late catches up.
    pub(crate) fn sent_whole(&mut self, rate: Rate, bytes: u64, now_ns: u64) {
        let time_ns = rate.ns_of(bytes);
        let credit_ns = LATE_NS_MAX.max(time_ns / 2);
        self.next_ns = self.next_ns.max(now_ns.saturating_sub(credit_ns)) + time_ns;
    }

    /// Bytes that may be sent at `now_ns`; less than a segment if the bucket is nearly empty.
    fn allowance(&self, rate: Rate, mss: u64, now_ns: u64) -> u64 {
        let full_ns = now_ns + rate.burst_ns(mss);
        let next_ns = self.next_ns.max(now_ns.saturating_sub(LATE_NS_MAX));
        rate.bytes_in(full_ns.saturating_sub(next_ns))
    }

    /// Accounts for `bytes` sent at `now_ns`.
    pub(crate) fn sent(&mut self, rate: Rate, bytes: u64, now_ns: u64) {
        let next_ns = self.next_ns.max(now_ns.saturating_sub(LATE_NS_MAX));
        self.next_ns = next_ns + rate.ns_of(bytes);
    }
}

impl Session<'_> {
    /// True if the path is long and the window large enough for pacing to matter, or a model has a
    /// rate: the only cost for other sessions.
    #[inline]
    pub(crate) fn may_be_paced(&self) -> bool {
        self.hot.rtt.smoothed_us >= ROUND_US_MIN
            && self.hot.send.cwnd > SEGMENTS_UNPACED * u32::from(self.hot.mss)
            || self.path.is_modelled()
    }

    /// True if the window is spread over the round trip.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.may_be_paced() && self.pacing_rate().is_some()
    }

    /// The rate of a session that may be paced; none if it is not.
    pub(crate) fn pacing_rate(&self) -> Option<Rate> {
        let (mss, smoothed_us) = (self.hot.mss, self.hot.rtt.smoothed_us);
        if let Some(rate) = self.cold.model.rate() {
            return Some(Rate::of_model(rate, mss, smoothed_us));
        }
        // A model is created with the first segment, which is not delayed.
        if self.path.is_modelled() || !self.common.config.pacing {
            return None;
        }
        // If the minimum round trip is short, only a queue takes that long, the peer's or our own,
        // and its acknowledgments are a sufficient clock. 0 before the first sample.
        let least_us = self.cold.rack.min_rtt_us();
        if least_us != 0 && least_us < ROUND_US_MIN {
            return None;
        }
        let threshold = self.cold.congestion.threshold();
        let reduces = self.hot.has(Flags::RECOVERY) && !self.cold.after_timeout;
        let (window, percent) = if reduces || self.cold.prr.is_for_marks() {
            // Rate reduction sets the window for one acknowledgment; the threshold is its target.
            (self.hot.send.cwnd.max(threshold), AVOIDANCE_PERCENT)
        } else if self.hot.send.cwnd < threshold / 2 {
            (self.hot.send.cwnd, SLOW_START_PERCENT)
        } else {
            (self.hot.send.cwnd, AVOIDANCE_PERCENT)
        };
        Some(Rate::of_window(window, percent, smoothed_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn rate(window: u64, percent: u64, round_ms: u64) -> Rate {
        Rate {
            bytes: window * percent,
            per_ns: round_ms * MS * 100,
        }
    }

    /// Sends whole segments as soon as permitted, woken `late_ns` after the bucket is full; returns
    /// the largest burst and all bytes.
    fn drive(rate: Rate, for_ns: u64, late_ns: u64) -> (u64, u64) {
        let (mut pacer, mut now_ns) = (Pacer::default(), 7 * MS);
        let until_ns = now_ns + for_ns;
        let (mut largest, mut sent) = (0, 0);
        while now_ns < until_ns {
            let mut burst = 0;
            while pacer.allowance(rate, MSS, now_ns) >= MSS {
                pacer.sent(rate, MSS, now_ns);
                burst += MSS;
            }
            assert!(burst >= MSS, "woken for nothing");
            (largest, sent) = (burst.max(largest), sent + burst);
            now_ns = pacer.next_ns + late_ns;
        }
        (largest, sent)
    }

    #[test]
    fn a_second_brings_out_what_the_rate_says() {
        for (window, round_ms) in [(20_000, 1), (20_000, 100), (200_000, 10), (1 << 20, 4)] {
            for late_ns in [0, 100_000, LATE_NS_MAX] {
                let rate = rate(window, 120, round_ms);
                let (largest, sent) = drive(rate, 1_000 * MS, late_ns);
                let wanted = window * 12 / 10 * 1_000 / round_ms;
                let part = sent as f64 / wanted as f64;
                assert!((0.99..1.02).contains(&part), "{window} {round_ms}: {part}");
                let burst = rate.bytes_in(rate.burst_ns(MSS) + LATE_NS_MAX);
                assert!(largest <= burst, "{window} {round_ms}: {largest} at once");
            }
        }
    }

    #[test]
    fn whole_pieces_wait_for_each_other_and_a_pause_gives_half_a_piece() {
        let rate = rate(20_000, 100, 100);
        let (mut pacer, mut now_ns) = (Pacer::default(), 1_000 * MS);
        let mut gaps = Vec::new();
        for _ in 0..4 {
            assert_eq!(pacer.permit_whole(2_000, now_ns), 2_000);
            pacer.sent_whole(rate, 2_000, now_ns);
            assert_eq!(pacer.permit_whole(2_000, now_ns), 0);
            gaps.push((pacer.next_ns - now_ns) / MS);
            now_ns = pacer.next_ns;
        }
        assert_eq!(gaps, [5, 10, 10, 10]);
    }

    #[test]
    fn a_burst_is_a_millisecond_within_its_bounds() {
        let burst = |window, round_ms| {
            let rate = rate(window, 100, round_ms);
            rate.bytes_in(rate.burst_ns(MSS))
        };
        assert_eq!(burst(20_000, 100), 3_000, "three segments");
        assert_eq!(burst(500_000, 20), 25_000, "a millisecond");
        assert!((65_000..=65_535).contains(&burst(1_000_000, 8)));
        // 4 GB/s: two ticks.
        assert!(burst(8_000_000, 2) > 1_000_000);
    }

    #[test]
    fn a_pause_saves_up_no_more_than_one_burst() {
        let rate = rate(100_000, 120, 100);
        let mut pacer = Pacer::default();
        pacer.sent(rate, 1_000_000, MS);
        assert!(pacer.allowance(rate, MSS, 100 * MS) < MSS);
        let later_ns = 3_600_000 * MS;
        let most = BURST_SEGMENTS_MIN * MSS + rate.bytes_in(LATE_NS_MAX) + 1;
        assert!(pacer.allowance(rate, MSS, later_ns) <= most);
    }
}
