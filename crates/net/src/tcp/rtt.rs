//! Round trips and the retransmission timeout. Source: RFC 6298; Linux's bounds.

use super::Session;

/// Before the first sample: RFC 6298 section 2.1.
pub(crate) const TIMEOUT_FIRST_US: u32 = 1_000_000;
/// Before the first sample where the SYN was lost: RFC 6298 section 5.7.
pub(crate) const TIMEOUT_AFTER_LOST_SYN_US: u32 = 3_000_000;
/// RFC 6298 section 2.4 asks for a second; like Linux (and RFC 8961's reasoning) we take 200 ms as
/// the least *margin* over the smoothed round trip.
const MARGIN_US: u32 = 200_000;
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
            // beta = 1/4, alpha = 1/8.
            let error = hot.srtt_us.abs_diff(rtt_us);
            hot.rttvar_us = hot.rttvar_us - hot.rttvar_us / 4 + error / 4;
            hot.srtt_us = (hot.srtt_us - hot.srtt_us / 8 + rtt_us / 8).max(1);
        }
    }

    /// RFC 6298 sections 2 and 5.5: the timeout, backed off.
    #[inline]
    pub(crate) fn timeout_us(&self) -> u32 {
        let base = if self.hot.srtt_us == 0 {
            // Before a sample the variation stands for the timeout, if it was set.
            TIMEOUT_FIRST_US.max(self.hot.rttvar_us)
        } else {
            self.hot.srtt_us + (4 * self.hot.rttvar_us).max(MARGIN_US)
        };
        let retries = u32::from(self.path.retries.min(16));
        (u64::from(base) << retries).min(u64::from(TIMEOUT_MAX_US)) as u32
    }
}
