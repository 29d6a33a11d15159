//! RACK-TLP: time-based loss detection. A segment sent well before a delivered one is lost.
//!
//! Source: RFC 8985. If the peer does not support SACK, three duplicate acknowledgments (RFC 5681
//! section 3.2) and partial ones (RFC 6582) detect the loss instead.

use super::Session;
use crate::buffer::slab::NONE;
use crate::ranges::scoreboard::Delivered;
use crate::state::hot::Flags;
use crate::wire::sequence::before;

/// RFC 5681 section 3.2, RFC 8985 section 6.2.4.
pub(crate) const DUPLICATES_MAX: u16 = 3;
/// Round trips, in microseconds, up to which a recovery is probed: there the timeout is a hundred
/// of them. On longer paths, RFC 8985 is followed to the letter, as in Linux.
const SHORT_PATH_US: u32 = 2_000;
/// Probes of a recovery before the timeout.
const REPAIR_PROBES_MAX: u8 = 2;
/// RFC 8985 section 6.2.4: recoveries after which a widened reordering window ends.
const WIDE_ROUNDS: u8 = 16;

/// RFC 8985 section 5.2, the state of one session.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq of the delivered segment that was sent last; none at first.
    pub(crate) newest: Option<(u32, u32)>,
    /// RACK.rtt.
    pub(crate) rtt_us: u32,
    /// RACK.min_RTT; 0 before the first sample.
    pub(crate) min_rtt_us: u32,
    /// RACK.reordering_seen.
    pub(crate) reordering: bool,
    /// RACK.reo_wnd_mult less 1, and RACK.reo_wnd_persist.
    pub(crate) widened: u8,
    pub(crate) widened_rounds: u8,
    /// RACK.dsack_round: the window is not widened again until this is acknowledged.
    pub(crate) widened_until: Option<u32>,
    /// Probes of a recovery since the last delivery.
    pub(crate) repair_probes: u8,
    /// TLP.end_seq and TLP.is_retrans.
    pub(crate) probe: Option<(u32, bool)>,
}

impl Session<'_> {
    /// RFC 8985 section 6.2, steps 1 to 3: a delivery updates the state.
    pub(crate) fn rack_delivered(&mut self, delivered: &Delivered, echo: Option<u32>) {
        let Some((sent_us, end, again)) = delivered.newest else {
            return;
        };
        let stamp = self.stamp_at(sent_us);
        let rack = &mut self.cold.rack;
        rack.repair_probes = 0;
        rack.reordering |= delivered.reordered;
        if delivered.reordered {
            let bytes = delivered.reordering_bytes;
            self.cold.reordering_bytes = self.cold.reordering_bytes.max(bytes);
            self.cold.reorderings += 1;
        }
        let rack = &mut self.cold.rack;
        let rtt_us = self.common.now_us.wrapping_sub(sent_us);
        // Step 2: an acknowledgment earlier than any round trip, or with an older timestamp,
        // belongs to the first transmission.
        let older = echo.is_some_and(|echo| before(echo, stamp));
        if again && (rtt_us < rack.min_rtt_us || older) {
            return;
        }
        if !again && (rack.min_rtt_us == 0 || rtt_us < rack.min_rtt_us) {
            rack.min_rtt_us = rtt_us.max(1);
        }
        let newer = rack.newest.is_none_or(|(time, last)| {
            before(time, sent_us) || time == sent_us && before(last, end)
        });
        if newer {
            rack.newest = Some((sent_us, end));
            // If the same acknowledgment delivers data that was considered lost and sent once, the
            // path reorders: that round trip is certain, and the longer one.
            let once = delivered
                .newest_once
                .filter(|_| again && delivered.reordered);
            let once_us = once.map_or(0, |sent_us| self.common.now_us.wrapping_sub(sent_us));
            rack.rtt_us = rtt_us.max(once_us);
        }
    }

    /// RFC 8985 section 6.2.4: the time by which a reordered segment may be late.
    fn reordering_window_us(&self) -> u32 {
        let rack = &self.cold.rack;
        let sacked = self
            .common
            .scoreboards
            .get(self.hot.scoreboard)
            .sacked_bytes;
        if !rack.reordering
            && (self.hot.has(Flags::RECOVERY)
                || sacked >= u32::from(DUPLICATES_MAX) * u32::from(self.hot.mss))
        {
            return 0;
        }
        let quarter = rack.min_rtt_us / 4;
        (quarter.saturating_mul(1 + u32::from(rack.widened))).min(self.hot.srtt_us)
    }

    /// RFC 8985 section 6.2, step 5: marks losses, and returns true if there are new ones, and the
    /// time in microseconds after which there may be more.
    pub(crate) fn rack_detect(&mut self) -> (bool, Option<u32>) {
        if self.hot.scoreboard == NONE {
            return (false, None);
        }
        let Some((newest_us, newest_end)) = self.cold.rack.newest else {
            return (false, None);
        };
        let patience_us = self.cold.rack.rtt_us + self.reordering_window_us();
        let now_us = self.common.now_us;
        let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
        scoreboard.overdue((newest_us, newest_end), now_us, patience_us)
    }

    /// RFC 8985 section 6.2.4: the peer had received our retransmission before, so the window was
    /// too narrow. Once per round trip.
    pub(crate) fn rack_duplicate(&mut self) {
        let rack = &mut self.cold.rack;
        if rack
            .widened_until
            .is_some_and(|end| before(self.hot.snd_una, end))
        {
            return;
        }
        rack.widened_until = Some(self.hot.snd_nxt);
        rack.widened = rack.widened.saturating_add(1).min(15);
        rack.widened_rounds = WIDE_ROUNDS;
    }

    /// Ends a recovery.
    pub(crate) fn rack_recovered(&mut self) {
        let rack = &mut self.cold.rack;
        rack.widened_rounds = rack.widened_rounds.saturating_sub(1);
        if rack.widened_rounds == 0 {
            rack.widened = 0;
        }
    }

    /// RFC 8985 section 7.2: time until a tail-loss probe is due, in microseconds; none if it is
    /// not useful.
    pub(crate) fn probe_after_us(&self) -> Option<u32> {
        if self.hot.srtt_us == 0
            || self.hot.scoreboard == NONE
            || !self.hot.has(Flags::SACK)
            || self.path.retries > 0
        {
            return None;
        }
        if self.probes_repair() {
            // After a probe with new data, only its reply gives more information.
            let by_new_data = matches!(self.cold.rack.probe, Some((_, false)));
            if self.hot.srtt_us > SHORT_PATH_US || by_new_data && !self.is_repairing() {
                return None;
            }
            let probes = self.cold.rack.repair_probes;
            let doubled = probes + u8::from(self.cold.rack.probe.is_some());
            // Waits as long as RFC 9002 section 6.2.1 if round trips vary.
            let us = self.hot.srtt_us + self.hot.srtt_us.max(4 * self.hot.rttvar_us);
            return (probes < REPAIR_PROBES_MAX).then(|| us << doubled);
        }
        // With one segment in flight the peer may delay its acknowledgment; the retransmission
        // timer is not later then (`board` is none).
        Some(2 * self.hot.srtt_us)
    }

    /// True if a probe sent now would retransmit the head of the missing data: a probe is
    /// outstanding, or recovery is in progress. RFC 8985 section 7.2 does not probe then, and
    /// leaves a second loss with nothing behind it to the timeout. Retransmitting the head of the
    /// missing data after two round trips without an acknowledgment, and four, recovers in a
    /// hundredth of the time on a short path ([`SHORT_PATH_US`]).
    pub(crate) fn probes_repair(&self) -> bool {
        self.cold.rack.probe.is_some() || self.is_repairing()
    }

    /// True if data is known to be missing.
    fn is_repairing(&self) -> bool {
        self.hot.has(Flags::RECOVERY)
            || self.hot.scoreboard != NONE
                && self
                    .common
                    .scoreboards
                    .get(self.hot.scoreboard)
                    .sacked_bytes
                    > 0
    }

    /// RFC 8985 section 7.4.2: evaluates an acknowledgment of a probe.
    pub(crate) fn probe_acknowledged(&mut self, ack: u32, sacks: bool, duplicate: bool) {
        let Some((end, again)) = self.cold.rack.probe else {
            return;
        };
        if before(ack, end) {
            return;
        }
        if !again {
            self.cold.rack.probe = None;
        } else if duplicate {
            // The peer received both: nothing was lost.
            self.cold.rack.probe = None;
        } else if before(end, ack) {
            // The probe itself replaced the lost last segment.
            self.cold.rack.probe = None;
            self.shrink_once();
        } else if !sacks {
            // An acknowledgment of exactly the end may belong to the original or to the probe; a
            // second one, a duplicate, shows that nothing was lost.
            if self.hot.in_flight() == 0 {
                self.cold.rack.probe = None;
            }
        }
    }
}
