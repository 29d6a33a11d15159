//! Proportional rate reduction: the amount sent for delivered data during loss recovery.
//!
//! Why here: without it recovery either waits for half a window of acknowledgments in silence or
//! sends a burst. Source: RFC 9937 section 6, which replaced RFC 6937. For peers with SACK; without
//! it RFC 6582's inflation of the window does the same.

use super::Session;
use crate::buffer::slab::NONE;
use crate::congestion::Control;
use crate::ranges::scoreboard::Delivered;
use crate::state::hot::Flags;

/// The state of one recovery; bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prr {
    /// RecoverFS: bytes in flight when the recovery began.
    flight: u32,
    /// prr_delivered: bytes delivered since.
    delivered: u32,
    /// prr_out: bytes sent since.
    out: u32,
}

impl Prr {
    /// Bytes that may be sent now (RFC 9937's SndCnt), with `pipe` in flight and `newly` just
    /// delivered.
    fn allowance(&self, pipe: u32, threshold: u32, mss: u32, newly: u32, safe: bool) -> u32 {
        let behind = self.delivered.saturating_sub(self.out);
        let bytes = if pipe > threshold {
            let share = u64::from(self.delivered) * u64::from(threshold);
            let due = share.div_ceil(u64::from(self.flight.max(1)));
            due.saturating_sub(u64::from(self.out)) as u32
        } else {
            // Conservation (PRR-CRB), or one segment more if the recovery makes progress
            // (PRR-SSRB).
            let more = behind.max(newly) + if safe { mss } else { 0 };
            more.min(threshold - pipe)
        };
        // The acknowledgment that shows the loss releases one segment in any case.
        if self.out == 0 { bytes.max(mss) } else { bytes }
    }
}

impl Session<'_> {
    /// True during a recovery that proportional rate reduction governs: with SACK, and not after a
    /// timeout.
    #[inline]
    fn is_proportional(&self) -> bool {
        self.hot.has(Flags::RECOVERY)
            && self.hot.has(Flags::SACK)
            && !self.cold.after_timeout
            && !self.is_modelled()
    }

    /// RFC 9937 section 6, "at the beginning of recovery"; `delivered`: by the acknowledgment that
    /// showed the loss.
    pub(crate) fn prr_begin(&mut self, delivered: &Delivered) {
        let sacked = match self.hot.scoreboard {
            NONE => 0,
            scoreboard => self.common.scoreboards.get(scoreboard).sacked_bytes,
        };
        // Data delivered by this acknowledgment was in flight when the loss occurred.
        self.cold.prr = Prr {
            flight: self.hot.in_flight().saturating_sub(sacked) + delivered.bytes,
            delivered: 0,
            out: 0,
        };
    }

    /// "On every ACK starting or during fast recovery"; `lost`: it showed more losses. Also when
    /// the reordering timer detects some: nothing was delivered then, and one segment may be sent.
    pub(crate) fn prr_delivered(&mut self, delivered: u32, advanced: bool, lost: bool) {
        if !self.is_proportional() || delivered == 0 && !lost {
            return;
        }
        let mss = u32::from(self.hot.mss);
        let pipe = self.pipe();
        let threshold = self.cold.congestion.threshold();
        let prr = &mut self.cold.prr;
        prr.delivered = prr.delivered.saturating_add(delivered);
        // Losses detected by a timer come without a delivery: one segment keeps the recovery going.
        let newly = if delivered == 0 { mss } else { delivered };
        let bytes = prr.allowance(pipe, threshold, mss, newly, advanced && !lost);
        self.hot.cwnd = pipe.saturating_add(bytes).max(mss);
    }

    /// "On any data transmission".
    #[inline]
    pub(crate) fn prr_sent(&mut self, bytes: u32) {
        if self.hot.has(Flags::RECOVERY) {
            self.cold.prr.out = self.cold.prr.out.saturating_add(bytes);
        }
    }

    /// "Upon exiting".
    pub(crate) fn prr_end(&mut self) {
        if self.is_proportional() {
            self.hot.cwnd = self.cold.congestion.threshold();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// One loss of 20 segments in flight: RFC 9937 section 7's first figure, shortened.
    #[test]
    fn a_window_shrinks_in_proportion_to_what_arrives() {
        let mut prr = Prr {
            flight: 20_000,
            ..Prr::default()
        };
        let (mut pipe, threshold) = (19_000, 10_000);
        for _ in 0..19 {
            prr.delivered += MSS;
            pipe -= MSS;
            let bytes = prr.allowance(pipe, threshold, MSS, MSS, false);
            let whole = bytes - bytes % MSS;
            prr.out += whole;
            pipe += whole;
        }
        // One for two, and the threshold at the end.
        assert!((9_000..=10_000).contains(&prr.out), "{}", prr.out);
        assert!((9_000..=10_000).contains(&pipe), "{pipe}");
    }

    #[test]
    fn above_the_threshold_what_goes_out_is_a_share_of_what_arrived() {
        let prr = Prr {
            flight: 20_000,
            delivered: 9_000,
            out: 1_000,
        };
        assert_eq!(prr.allowance(15_000, 12_000, MSS, MSS, false), 4_400);
        assert_eq!(prr.allowance(15_000, 12_000, MSS, MSS, true), 4_400);
    }

    #[test]
    fn below_the_threshold_what_arrives_is_replaced_and_progress_adds_one() {
        let prr = Prr {
            flight: 20_000,
            delivered: 3_000,
            out: 2_000,
        };
        assert_eq!(prr.allowance(5_000, 10_000, MSS, MSS, false), 1_000);
        assert_eq!(prr.allowance(5_000, 10_000, MSS, MSS, true), 2_000);
        assert_eq!(prr.allowance(9_500, 10_000, MSS, MSS, true), 500);
        let first = Prr {
            flight: 20_000,
            ..Prr::default()
        };
        assert_eq!(first.allowance(19_000, 10_000, MSS, 0, false), MSS);
    }
}
