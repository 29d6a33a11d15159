//! RACK-TLP: time-based loss detection. A segment sent well before a delivered one is lost.
//!
//! Source: RFC 8985. If the peer does not support SACK, three duplicate acknowledgments (RFC 5681
//! section 3.2) and partial ones (RFC 6582) detect the loss instead.

use crate::ranges::scoreboard::Delivered;
use crate::timer::before;
use crate::wire::sequence::Sequence;

/// RFC 5681 section 3.2, RFC 8985 section 6.2.4.
pub(crate) const DUPLICATES_MAX: u16 = 3;
/// Round trips, in microseconds, up to which a recovery is probed: there the timeout is a hundred
/// of them. On longer paths, RFC 8985 is followed to the letter, as in Linux.
const SHORT_PATH_US: u32 = 2_000;
/// Probes of a recovery before the timeout.
const RECOVERY_PROBES_MAX: u8 = 2;
/// RACK.reo_wnd_mult less 1, at most.
const WIDENED_MAX: u8 = 15;
/// RFC 8985 section 6.2.4: recoveries after which a widened reordering window ends.
const WIDE_ROUNDS: u8 = 16;

/// An outstanding tail-loss probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probe {
    /// TLP.end_seq: it is over once this is acknowledged.
    pub(crate) end: Sequence,
    pub(crate) sent: ProbeData,
}

/// Data of a tail-loss probe: TLP.is_retrans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeData {
    New,
    Retransmitted,
}

/// Result of evaluating an acknowledgment of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    /// It is outstanding, or shows nothing new.
    Open,
    /// The probe itself replaced the lost last segment.
    Repaired,
}

/// RFC 8985 section 5.2, the state of one session.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq of the delivered segment that was sent last; none at first.
    newest: Option<(u32, Sequence)>,
    /// RACK.rtt.
    rtt_us: u32,
    /// RACK.min_RTT; 0 before the first sample.
    min_rtt_us: u32,
    /// RACK.dsack_round: the window is not widened again until this is acknowledged.
    widened_until: Option<Sequence>,
    probe: Option<Probe>,
    /// RACK.reordering_seen.
    reordering: bool,
    /// RACK.reo_wnd_mult less 1, and RACK.reo_wnd_persist.
    widened: u8,
    widened_rounds: u8,
    /// Probes of a recovery since the last delivery.
    recovery_probes: u8,
}

impl Rack {
    /// RACK.min_RTT; 0 before the first sample.
    pub(crate) fn min_rtt_us(&self) -> u32 {
        self.min_rtt_us
    }

    /// True if the path was seen to reorder.
    pub(crate) fn has_reordering(&self) -> bool {
        self.reordering
    }

    /// The path reorders: from now on a loss is marked only after a wait.
    pub(crate) fn note_reordering(&mut self) {
        self.reordering = true;
    }

    /// The delivered segment that was sent last: its time of sending, and its end.
    pub(crate) fn newest(&self) -> Option<(u32, Sequence)> {
        self.newest
    }

    /// Nothing is in flight that it could have overtaken. Kept, its time would be later than those
    /// of new segments, by the 32-bit clock, half an hour from now on.
    pub(crate) fn forget_newest(&mut self) {
        self.newest = None;
    }

    /// RFC 8985 section 6.2, steps 1 to 3: a delivery updates the state. `is_older`: the
    /// acknowledgment echoes a timestamp from before the newest delivered segment was sent.
    pub(crate) fn delivered(&mut self, delivered: &Delivered, now_us: u32, is_older: bool) {
        let Some((sent_us, end, again)) = delivered.newest else {
            return;
        };
        self.recovery_probes = 0;
        self.reordering |= delivered.reordered;
        let rtt_us = now_us.wrapping_sub(sent_us);
        // Step 2: an acknowledgment earlier than any round trip, or with an older timestamp,
        // belongs to the first transmission.
        if again && (rtt_us < self.min_rtt_us || is_older) {
            return;
        }
        if !again && (self.min_rtt_us == 0 || rtt_us < self.min_rtt_us) {
            self.min_rtt_us = rtt_us.max(1);
        }
        let newer = self
            .newest
            .is_none_or(|(time, last)| before(time, sent_us) || time == sent_us && last < end);
        if newer {
            self.newest = Some((sent_us, end));
            // If the same acknowledgment delivers data that was considered lost and sent once, the
            // path reorders: that round trip is certain, and the longer one.
            let once = delivered
                .newest_once
                .filter(|_| again && delivered.reordered);
            let once_us = once.map_or(0, |sent_us| now_us.wrapping_sub(sent_us));
            self.rtt_us = rtt_us.max(once_us);
        }
    }

    /// RFC 8985 section 6.2.4: the age from which on an overtaken segment is lost. `sure`: in
    /// recovery, or as many segments were overtaking it as three duplicates show.
    pub(crate) fn patience_us(&self, sure: bool, smoothed_us: u32) -> u32 {
        let reordering_us = if !self.reordering && sure {
            0
        } else {
            let quarter = self.min_rtt_us / 4;
            quarter
                .saturating_mul(1 + u32::from(self.widened))
                .min(smoothed_us)
        };
        self.rtt_us + reordering_us
    }

    /// RFC 8985 section 6.2.4: the peer had received our retransmission before, so the window was
    /// too narrow. Once per round trip.
    pub(crate) fn widen(&mut self, una: Sequence, nxt: Sequence) {
        if self.widened_until.is_some_and(|end| una < end) {
            return;
        }
        self.widened_until = Some(nxt);
        self.widened = self.widened.saturating_add(1).min(WIDENED_MAX);
        self.widened_rounds = WIDE_ROUNDS;
    }

    /// Ends a recovery.
    pub(crate) fn recovered(&mut self) {
        self.widened_rounds = self.widened_rounds.saturating_sub(1);
        if self.widened_rounds == 0 {
            self.widened = 0;
        }
    }

    /// The outstanding probe.
    pub(crate) fn probe(&self) -> Option<Probe> {
        self.probe
    }

    /// A tail-loss probe was sent; all data ends at `end`.
    pub(crate) fn probe_sent(&mut self, end: Sequence, sent: ProbeData) {
        self.probe = Some(Probe { end, sent });
    }

    /// The head of the missing data was retransmitted as a probe of the recovery.
    pub(crate) fn recovery_probe_sent(&mut self) {
        self.recovery_probes += 1;
    }

    /// The probe counts no more: a timeout has found everything lost.
    pub(crate) fn forget_probe(&mut self) {
        self.probe = None;
    }

    /// Time until the head of the missing data is retransmitted as a probe, in microseconds; none
    /// if that is not useful. `missing`: data is known to be missing.
    pub(crate) fn recovery_probe_after_us(
        &self,
        smoothed_us: u32,
        variation_us: u32,
        missing: bool,
    ) -> Option<u32> {
        // After a probe with new data, only its reply gives more information.
        let by_new_data = matches!(self.probe, Some(probe) if probe.sent == ProbeData::New);
        if smoothed_us > SHORT_PATH_US || by_new_data && !missing {
            return None;
        }
        let doubled = self.recovery_probes + u8::from(self.probe.is_some());
        // Waits as long as RFC 9002 section 6.2.1 if round trips vary.
        let us = smoothed_us + smoothed_us.max(4 * variation_us);
        (self.recovery_probes < RECOVERY_PROBES_MAX).then(|| us << doubled)
    }

    /// RFC 8985 section 7.4.2: evaluates an acknowledgment of a probe. `sacks` and `duplicate`: it
    /// has SACK blocks, and a D-SACK; `in_flight`: after it.
    pub(crate) fn probe_acknowledged(
        &mut self,
        ack: Sequence,
        sacks: bool,
        duplicate: bool,
        in_flight: u32,
    ) -> ProbeOutcome {
        let Some(probe) = self.probe.filter(|probe| ack >= probe.end) else {
            return ProbeOutcome::Open;
        };
        // A D-SACK shows that the peer received both: nothing was lost.
        if probe.sent == ProbeData::New || duplicate {
            self.probe = None;
        } else if probe.end < ack {
            self.probe = None;
            return ProbeOutcome::Repaired;
        } else if !sacks && in_flight == 0 {
            // An acknowledgment of exactly the end may belong to the original or to the probe; a
            // second one, a duplicate, shows that nothing was lost.
            self.probe = None;
        }
        ProbeOutcome::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(sent_us: u32, end: u32, again: bool) -> Delivered {
        Delivered {
            bytes: 1_000,
            newest: Some((sent_us, Sequence::new(end), again)),
            ..Delivered::default()
        }
    }

    #[test]
    fn a_retransmission_answered_too_soon_is_not_the_newest() {
        let mut rack = Rack::default();
        rack.delivered(&delivered(0, 1_000, false), 10_000, false);
        assert_eq!(
            (rack.min_rtt_us(), rack.newest()),
            (10_000, Some((0, Sequence::new(1_000))))
        );
        rack.delivered(&delivered(20_000, 2_000, true), 25_000, false);
        rack.delivered(&delivered(20_000, 2_000, true), 40_000, true);
        assert_eq!(rack.newest(), Some((0, Sequence::new(1_000))));
        rack.delivered(&delivered(20_000, 2_000, true), 40_000, false);
        assert_eq!(rack.newest(), Some((20_000, Sequence::new(2_000))));
    }

    #[test]
    fn patience_grows_with_duplicates_once_a_round_trip_and_ends() {
        let (mut rack, una, nxt) = (Rack::default(), Sequence::new(0), Sequence::new(10));
        rack.delivered(&delivered(0, 1, false), 8_000, false);
        assert_eq!(rack.patience_us(true, 8_000), 8_000);
        assert_eq!(rack.patience_us(false, 8_000), 10_000);
        rack.note_reordering();
        rack.widen(una, nxt);
        rack.widen(una, nxt);
        assert_eq!(rack.patience_us(true, 8_000), 12_000);
        rack.widen(nxt, nxt + 10);
        assert_eq!(rack.patience_us(true, 8_000), 14_000);
        for _ in 0..WIDE_ROUNDS {
            rack.recovered();
        }
        assert_eq!(rack.patience_us(true, 8_000), 10_000);
    }

    #[test]
    fn a_probe_that_replaced_the_last_segment_shows_a_loss() {
        let (mut rack, end) = (Rack::default(), Sequence::new(100));
        rack.probe_sent(end, ProbeData::Retransmitted);
        assert_eq!(
            rack.probe_acknowledged(end - 1, false, false, 1),
            ProbeOutcome::Open
        );
        assert_eq!(
            rack.probe_acknowledged(end, false, false, 5),
            ProbeOutcome::Open
        );
        assert!(rack.probe().is_some(), "of the original, or of the probe");
        assert_eq!(
            rack.probe_acknowledged(end + 1, false, false, 0),
            ProbeOutcome::Repaired
        );
        rack.probe_sent(end, ProbeData::Retransmitted);
        assert_eq!(
            rack.probe_acknowledged(end + 1, false, true, 0),
            ProbeOutcome::Open
        );
        assert!(rack.probe().is_none(), "the peer received both");
    }

    #[test]
    fn a_recovery_is_probed_twice_on_a_short_path_alone() {
        let mut rack = Rack::default();
        assert_eq!(rack.recovery_probe_after_us(3_000, 0, true), None);
        assert_eq!(rack.recovery_probe_after_us(1_000, 0, true), Some(2_000));
        rack.recovery_probe_sent();
        assert_eq!(rack.recovery_probe_after_us(1_000, 500, true), Some(6_000));
        rack.recovery_probe_sent();
        assert_eq!(rack.recovery_probe_after_us(1_000, 0, true), None);
    }
}
