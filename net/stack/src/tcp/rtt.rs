//! Round trips and the retransmission timeout.
//!
//! Data sent once is timed in microseconds. For retransmitted data Karn's rule excludes samples
//! (RFC 6298 section 3), because it is ambiguous which transmission is acknowledged; the echo of a
//! timestamp resolves this (RFC 7323 section 4.1), in milliseconds. Source: those; Linux's bounds.

use super::Session;
use crate::state::hot::Flags;
use crate::wire::sequence::before;

/// Timeout before the first sample: RFC 6298 section 2.1.
pub(crate) const TIMEOUT_FIRST_US: u32 = 1_000_000;
/// Timeout before the first sample if the SYN was lost: RFC 6298 section 5.7.
pub(crate) const TIMEOUT_AFTER_LOST_SYN_US: u32 = 3_000_000;
/// RFC 6298 section 2.4 asks for one second; as in Linux (and for the reasons in RFC 8961), 200 ms
/// is the minimum *margin* over the smoothed round trip.
const MARGIN_US: u32 = 200_000;
/// Older echoes are ignored: the bound of the retransmission timeout, in milliseconds.
const ECHO_MS_MAX: u32 = TIMEOUT_MAX_US / 1_000;
/// RFC 6298 section 2.5 allows 60 s or more; Linux has 120.
pub(crate) const TIMEOUT_MAX_US: u32 = 120_000_000;

impl Session<'_> {
    /// RFC 6298 sections 2.2 and 2.3.
    #[inline]
    pub(crate) fn sample_rtt(&mut self, rtt_us: u32) {
        let hot = &mut *self.hot;
        let rtt_us = rtt_us.clamp(1, TIMEOUT_MAX_US);
        if hot.srtt_us == 0 {
            hot.srtt_us = rtt_us;
            hot.rttvar_us = rtt_us / 2;
        } else {
            (hot.srtt_us, hot.rttvar_us) = smoothed(hot.srtt_us, hot.rttvar_us, rtt_us);
        }
    }

    /// Our timestamp in a segment sent at `sent_us`.
    pub(crate) fn stamp_at(&self, sent_us: u32) -> u32 {
        let age_us = u64::from(self.common.now_us.wrapping_sub(sent_us));
        let sent_ms = (self.common.now_ns / 1_000).wrapping_sub(age_us) / 1_000;
        (sent_ms as u32).wrapping_add(self.hot.ts_offset)
    }

    /// A sample from the acknowledgment of data last retransmitted at `sent_us`.
    ///
    /// An older echo belongs to an earlier transmission, or acknowledgments in between were lost;
    /// that makes round trips look longer, and the timeout later. After a timeout this is desired,
    /// because the round trip may be longer than the timeout; otherwise RACK and probes detect
    /// losses better.
    pub(crate) fn sample_again(&mut self, sent_us: u32, echo: u32) {
        let rtt_us = self.common.now_us.wrapping_sub(sent_us);
        if !before(echo, self.stamp_at(sent_us)) {
            // Shorter than any round trip: it belongs to a transmission within the same
            // millisecond.
            if rtt_us >= self.cold.rack.min_rtt_us {
                self.sample_rtt(rtt_us);
            }
        } else if self.hot.has(Flags::RECOVERY) && self.cold.after_timeout {
            self.sample_echo(echo);
        }
    }

    /// A sample from an echo alone. The millisecond clock only bounds the round trip: an estimate
    /// within these bounds is kept.
    pub(crate) fn sample_echo(&mut self, echo: u32) {
        let ms = self.timestamp().wrapping_sub(echo);
        if ms > ECHO_MS_MAX {
            // Not from our clock.
            return;
        }
        let srtt_us = self.hot.srtt_us;
        let (least, most) = echo_bounds_us(ms);
        if srtt_us == 0 {
            self.sample_rtt(ms.max(1) * 1_000);
        } else if !(least..=most).contains(&srtt_us) {
            self.sample_rtt(srtt_us.clamp(least, most));
        }
    }

    /// RFC 6298 sections 2 and 5.5: the timeout, backed off.
    #[inline]
    pub(crate) fn timeout_us(&self) -> u32 {
        let base = if self.hot.srtt_us == 0 {
            // Before a sample the variation holds the timeout, if it was set.
            TIMEOUT_FIRST_US.max(self.hot.rttvar_us)
        } else {
            self.hot.srtt_us + (4 * self.hot.rttvar_us).max(MARGIN_US)
        };
        let retries = u32::from(self.path.retries.min(16));
        (u64::from(base) << retries).min(u64::from(TIMEOUT_MAX_US)) as u32
    }
}

/// RFC 6298 section 2.3, with alpha = 1/8 and beta = 1/4: the smoothed round trip and its variation
/// after one more sample.
#[inline]
fn smoothed(srtt_us: u32, rttvar_us: u32, rtt_us: u32) -> (u32, u32) {
    let error = srtt_us.abs_diff(rtt_us);
    let rttvar_us = rttvar_us - rttvar_us / 4 + error / 4;
    ((srtt_us - srtt_us / 8 + rtt_us / 8).max(1), rttvar_us)
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
    }
}
