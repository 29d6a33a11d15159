//! Round trips and the retransmission timeout.
//!
//! Data sent once is timed in microseconds. For retransmitted data Karn's rule excludes samples
//! (RFC 6298 section 3), because it is ambiguous which transmission is acknowledged; the echo of a
//! timestamp resolves this (RFC 7323 section 4.1), in milliseconds. Source: those; Linux's bounds.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Timeout before the first sample: RFC 6298 section 2.1.
const TIMEOUT_FIRST_US: u32 = 1_000_000;
/// Timeout before the first sample if the SYN was lost: RFC 6298 section 5.7.
const TIMEOUT_AFTER_LOST_SYN_US: u32 = 3_000_000;
/// RFC 6298 section 2.4 asks for one second; as in Linux (and for the reasons in RFC 8961), 200 ms
/// is the minimum *margin* over the smoothed round trip.
const MARGIN_US: u32 = 200_000;
/// Older echoes are ignored: the bound of the retransmission timeout, in milliseconds.
const ECHO_MS_MAX: u32 = TIMEOUT_MAX_US / 1_000;
/// RFC 6298 section 2.5 allows 60 s or more; Linux has 120.
const TIMEOUT_MAX_US: u32 = 120_000_000;
/// Doublings of the timeout: more would exceed its bound in any case.
const DOUBLINGS_MAX: u8 = 16;

/// RFC 6298's estimators, in microseconds.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RoundTrip {
    /// SRTT; 0 before the first sample.
    pub(crate) smoothed_us: u32,
    /// RTTVAR; before the first sample the timeout, if it was set.
    pub(crate) variation_us: u32,
}

impl RoundTrip {
    /// RFC 6298 sections 2.2 and 2.3.
    #[inline]
    pub(crate) fn sample(&mut self, rtt_us: u32) {
        let rtt_us = rtt_us.clamp(1, TIMEOUT_MAX_US);
        if self.smoothed_us == 0 {
            self.smoothed_us = rtt_us;
            self.variation_us = rtt_us / 2;
        } else {
            (self.smoothed_us, self.variation_us) =
                smoothed(self.smoothed_us, self.variation_us, rtt_us);
        }
    }

    /// A sample from the echo of a timestamp that is `age_ms` old. The millisecond clock only
    /// bounds the round trip: an estimate within these bounds is kept.
    pub(crate) fn sample_echo(&mut self, age_ms: u32) {
        if age_ms > ECHO_MS_MAX {
            // Not from our clock.
            return;
        }
        let (least, most) = echo_bounds_us(age_ms);
        if self.smoothed_us == 0 {
            self.sample(age_ms.max(1) * 1_000);
        } else if !(least..=most).contains(&self.smoothed_us) {
            self.sample(self.smoothed_us.clamp(least, most));
        }
    }

    /// Our SYN was lost, and there is no sample: data starts with a longer timeout.
    pub(crate) fn syn_was_lost(&mut self) {
        if self.smoothed_us == 0 {
            self.variation_us = TIMEOUT_AFTER_LOST_SYN_US;
        }
    }

    /// RFC 6298 sections 2 and 5.5: the timeout, backed off.
    #[inline]
    pub(crate) fn timeout_us(&self, retries: u8) -> u32 {
        let base = if self.smoothed_us == 0 {
            TIMEOUT_FIRST_US.max(self.variation_us)
        } else {
            self.smoothed_us + (4 * self.variation_us).max(MARGIN_US)
        };
        let backed_off = u64::from(base) << retries.min(DOUBLINGS_MAX);
        u32::try_from(backed_off).map_or(TIMEOUT_MAX_US, |us| us.min(TIMEOUT_MAX_US))
    }
}

/// RFC 6298 section 2.3, with alpha = 1/8 and beta = 1/4: the smoothed round trip and its variation
/// after one more sample.
#[inline]
fn smoothed(smoothed_us: u32, variation_us: u32, rtt_us: u32) -> (u32, u32) {
    let error = smoothed_us.abs_diff(rtt_us);
    let variation_us = variation_us - variation_us / 4 + error / 4;
    (
        (smoothed_us - smoothed_us / 8 + rtt_us / 8).max(1),
        variation_us,
    )
}

/// The shortest and the longest round trip for an echo of age `ms` on a clock of whole
/// milliseconds.
fn echo_bounds_us(ms: u32) -> (u32, u32) {
    (ms.saturating_sub(1) * 1_000 + 1, (ms + 1) * 1_000 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_moves_the_estimate_by_an_eighth_and_the_variation_by_a_quarter() {
        assert_eq!(smoothed(8_000, 4_000, 16_000), (9_000, 5_000));
        assert_eq!(smoothed(8_000, 4_000, 8_000), (8_000, 3_000));
        assert_eq!(smoothed(16_000, 400, 8_000), (15_000, 2_300));
        assert_eq!(smoothed(1, 0, 1), (1, 0));
    }

    #[test]
    fn an_echo_tells_the_round_trip_to_a_millisecond_either_way() {
        assert_eq!(echo_bounds_us(0), (1, 999));
        assert_eq!(echo_bounds_us(1), (1, 1_999));
        assert_eq!(echo_bounds_us(40), (39_001, 40_999));
        let mut rtt = RoundTrip::default();
        rtt.sample_echo(40);
        assert_eq!(rtt.smoothed_us, 40_000);
        rtt.sample_echo(41);
        assert_eq!(rtt.smoothed_us, 40_000, "within the bounds");
        rtt.sample_echo(ECHO_MS_MAX + 1);
        assert_eq!(rtt.smoothed_us, 40_000, "not from our clock");
    }

    #[test]
    fn timeouts_double_up_to_two_minutes() {
        let mut rtt = RoundTrip::default();
        assert_eq!(
            (rtt.timeout_us(0), rtt.timeout_us(2)),
            (1_000_000, 4_000_000)
        );
        rtt.syn_was_lost();
        assert_eq!(rtt.timeout_us(0), 3_000_000);
        rtt.sample(10_000);
        rtt.syn_was_lost();
        assert_eq!(rtt.timeout_us(0), 210_000, "the sample counts");
        assert_eq!(rtt.timeout_us(1), 420_000);
        assert_eq!(rtt.timeout_us(u8::MAX), TIMEOUT_MAX_US);
    }
}
