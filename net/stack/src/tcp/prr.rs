//! Proportional rate reduction: the amount sent for delivered data during loss recovery.
//!
//! Why here: without it recovery either waits for half a window of acknowledgments in silence or
//! sends a burst. Source: RFC 9937 section 6, which replaced RFC 6937. For peers with SACK; without
//! it RFC 6582's inflation of the window does the same.

/// State of a session when an acknowledgment arrives in recovery; bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) pipe: u32,
    /// The slow-start threshold, which the reduction approaches.
    pub(crate) threshold: u32,
    pub(crate) mss: u32,
    /// The cumulative acknowledgment advanced.
    pub(crate) advanced: bool,
    /// New losses were found.
    pub(crate) lost: bool,
}

/// The state of one recovery; bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prr {
    /// RecoverFS: bytes in flight when the recovery began.
    flight: u32,
    /// prr_delivered: bytes delivered since.
    delivered: u32,
    /// prr_out: bytes sent since.
    out: u32,
    /// Marks began it: no data is missing.
    marks: bool,
}

impl Prr {
    /// RFC 9937 section 6, "at the beginning of recovery", with `flight` bytes in flight when the
    /// loss occurred: those that the acknowledgment which showed it has delivered were, too.
    pub(crate) fn begin(flight: u32) -> Self {
        Self {
            flight,
            ..Self::default()
        }
    }

    /// The reduction after a mark, with `flight` bytes in flight before its acknowledgment.
    pub(crate) fn begin_for_marks(flight: u32) -> Self {
        Self {
            marks: true,
            ..Self::begin(flight)
        }
    }

    /// True while it reduces the window because of marks.
    pub(crate) fn is_for_marks(&self) -> bool {
        self.marks
    }

    /// "On every ACK starting or during fast recovery": bytes that may be sent now. `lost`: it
    /// showed more losses. Also when the reordering timer detects some: nothing was delivered then,
    /// and one segment may be sent.
    pub(crate) fn on_delivered(&mut self, bytes: u32, ack: Progress) -> u32 {
        self.delivered = self.delivered.saturating_add(bytes);
        // Losses detected by a timer come without a delivery: one segment keeps the recovery going.
        let newly = if bytes == 0 { ack.mss } else { bytes };
        let safe = ack.advanced && !ack.lost;
        self.allowance(ack.pipe, ack.threshold, ack.mss, newly, safe)
    }

    /// "On any data transmission".
    #[inline]
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// Bytes that may be sent now (RFC 9937's SndCnt), with `pipe` in flight and `newly` just
    /// delivered.
    fn allowance(&self, pipe: u32, threshold: u32, mss: u32, newly: u32, safe: bool) -> u32 {
        let behind = self.delivered.saturating_sub(self.out);
        let bytes = if pipe > threshold {
            let share = u64::from(self.delivered) * u64::from(threshold);
            let due = share.div_ceil(u64::from(self.flight.max(1)));
            // A share of 32 bits of at most the whole, which has 32 bits.
            u32::try_from(due.saturating_sub(u64::from(self.out))).unwrap_or(u32::MAX)
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
            marks: false,
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
            marks: false,
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
