//! Acknowledgments: data that leaves the send ring, the peer's window, and their consequences.
//!
//! Source: RFC 9293 section 3.10.7.4 (fifth), RFC 5681, RFC 6582, RFC 6675, RFC 8985, RFC 2883.

use super::Session;
use super::rack::DUPLICATES_MAX;
use crate::buffer::slab::NONE;
use crate::congestion::{Acked, Control};
use crate::ranges::scoreboard::Delivered;
use crate::state::hot::{EcnFlags, Flags, Tail, Timer};
use crate::wire::sequence::{Range, before, before_or_at};
use crate::wire::tcp::{BLOCKS_MAX, Segment};

impl Session<'_> {
    /// Processes the ACK field of an acceptable segment; false if the segment is to be dropped.
    pub(crate) fn acknowledge(&mut self, segment: &Segment<'_>) -> bool {
        let ack = segment.acknowledgment;
        if before(self.hot.snd_nxt, ack) {
            // It acknowledges data that was never sent: RFC 9293 section 3.10.7.4.
            self.challenge();
            return false;
        }
        // RFC 5961 section 5.2.
        if before(ack, self.hot.snd_una.wrapping_sub(self.cold.window_max)) {
            self.challenge();
            return false;
        }
        if before(ack, self.hot.snd_una) {
            self.overtaken(segment);
            return true;
        }
        let mut echo = self.is_echo(segment);
        let delivered = self.delivered_if_accurate();
        let flight = self.hot.in_flight();
        if echo && self.hot.has(Flags::RECOVERY) {
            // Before this acknowledgment could undo the recovery: the path is congested; whether
            // the data was late or lost is no longer of interest.
            self.undo_forget();
        }
        let window_before = self.hot.snd_wnd;
        self.take_window(segment);
        let sacks = segment.options.block_count > 0 && self.hot.has(Flags::SACK);
        // With nothing in flight a D-SACK may still show a recovery to be spurious.
        let reports = sacks && (self.hot.in_flight() > 0 || self.cold.undo.waits());
        if ack != self.hot.snd_una || reports {
            self.acknowledged(ack, segment);
        } else if self.hot.in_flight() > 0
            && segment.is_empty()
            && self.hot.snd_wnd == window_before
        {
            // RFC 5681 section 2: a duplicate acknowledgment.
            self.duplicate_acknowledgment();
        }
        self.end_reduced_window();
        if let Some(delivered) = delivered {
            echo = self.take_reported(segment, delivered);
        }
        if echo {
            self.congestion_echoed(flight);
        }
        if delivered.is_some() && self.hot.in_flight() == 0 {
            self.hot.clear_ecn(EcnFlags::REDUCED);
        }
        true
    }

    /// An acknowledgment that was overtaken by a later one: its number is known, but its SACK
    /// blocks may be new (RFC 6675 section 5 processes each acknowledgment's blocks).
    #[cold]
    fn overtaken(&mut self, segment: &Segment<'_>) {
        let reports = segment.options.block_count > 0 && self.hot.has(Flags::RECOVERY);
        if reports && self.hot.has(Flags::SACK) && self.hot.scoreboard != NONE {
            self.acknowledged_part(self.hot.snd_una, 0, segment);
        }
    }

    /// RFC 9293 section 3.10.7.4: the send window follows the newest segment; as in Linux, also a
    /// retransmitted one, if it acknowledges more. An old window with a new acknowledgment number
    /// would have an edge that the peer never advertised.
    #[inline]
    pub(crate) fn take_window(&mut self, segment: &Segment<'_>) {
        let hot = &mut *self.hot;
        let newer = before(hot.snd_una, segment.acknowledgment)
            || before(hot.snd_wl1, segment.sequence)
            || hot.snd_wl1 == segment.sequence && before_or_at(hot.snd_wl2, segment.acknowledgment);
        if !newer {
            return;
        }
        let window = u32::from(segment.window) << hot.snd_scale;
        hot.snd_wl1 = segment.sequence;
        hot.snd_wl2 = segment.acknowledgment;
        if window == hot.snd_wnd {
            return;
        }
        let opened = window > hot.snd_wnd;
        hot.snd_wnd = window;
        if opened {
            self.window_opened(window);
        }
    }

    #[cold]
    fn window_opened(&mut self, window: u32) {
        self.cold.window_max = self.cold.window_max.max(window);
        if self.hot.timer() == Timer::Persist {
            self.hot.set_timer(Timer::None);
            self.hot.timer_at = 0;
            self.path.retries = 0;
        }
        if self.hot.tx.len() > 0 {
            self.make_ready();
        }
    }

    /// New data was acknowledged, cumulatively or by SACK.
    #[inline]
    pub(crate) fn acknowledged(&mut self, ack: u32, segment: &Segment<'_>) {
        let newly = ack.wrapping_sub(self.hot.snd_una);
        if self.hot.scoreboard == NONE
            && ack == self.hot.snd_nxt
            && newly > 0
            && !self.hot.has(Flags::RECOVERY)
        {
            // All data in flight, sent once: the usual case of a request and its reply.
            let rtt_us = self.common.now_us.wrapping_sub(self.hot.sent_us);
            self.sample_rtt(rtt_us);
            self.leave_ring(ack, newly);
            self.hot.set_timer(Timer::None);
            self.hot.timer_at = 0;
            if self.is_modelled() {
                self.model_acked(newly, Some(self.hot.sent_us), Some(rtt_us));
            }
            // RFC 3168 section 6.1.2: an acknowledgment that echoes a mark does not grow the
            // window.
            if self.hot.has(Flags::CWND_LIMITED) && !self.is_echo(segment) {
                self.grow(newly, Some(rtt_us));
            }
            return;
        }
        self.acknowledged_part(ack, newly, segment);
    }

    fn acknowledged_part(&mut self, ack: u32, newly: u32, segment: &Segment<'_>) {
        let una = self.hot.snd_una;
        let nxt = self.hot.snd_nxt;
        let mss = u32::from(self.hot.mss);
        let mut delivered = Delivered::default();
        let scoreboard = self.scoreboard();
        scoreboard.acknowledge(ack, &mut delivered);
        let cumulative = delivered;
        let mut duplicate = None;
        let (mut blocks, mut count) = ([Range::default(); BLOCKS_MAX], 0);
        for (index, block) in segment.options.blocks[..segment.options.block_count]
            .iter()
            .enumerate()
        {
            if index == 0 && is_duplicate(block, segment) {
                // RFC 2883: the peer received a duplicate.
                duplicate = Some(*block);
                continue;
            }
            // Only valid blocks within the data in flight.
            if before(block.start, block.end)
                && before(ack, block.end)
                && before_or_at(block.end, nxt)
            {
                let start = crate::wire::sequence::later(block.start, ack);
                blocks[count] = Range {
                    start,
                    end: block.end,
                };
                count += 1;
            }
        }
        let sacks = count > 0;
        if sacks {
            scoreboard.sack(&blocks[..count], mss, &mut delivered);
        }
        let stamps = segment.options.timestamps;
        let echo = stamps.filter(|_| self.hot.has(Flags::TIMESTAMPS));
        let echo = echo.map(|(_, echo)| echo);
        let mut sample_us = None;
        // Without SACK each duplicate acknowledgment stands for one delivered segment.
        let counted = u32::from(self.hot.duplicates) * u32::from(self.hot.mss);
        if newly > 0 {
            match (cumulative.newest, echo) {
                // Karn (RFC 6298 section 3): only from data that was sent once,
                (Some((sent_us, _, false)), _) => {
                    let rtt_us = self.common.now_us.wrapping_sub(sent_us);
                    self.sample_rtt(rtt_us);
                    sample_us = Some(rtt_us);
                }
                // or by the echo, which distinguishes the two (RFC 7323 section 4.1).
                (Some((sent_us, _, true)), Some(echo)) => self.sample_again(sent_us, echo),
                _ => {}
            }
            self.leave_ring(ack, newly);
            self.hot.duplicates = 0;
        }
        debug_assert!(before_or_at(una, self.hot.snd_una));
        if newly > 0 {
            self.undo_by_echo(ack, echo);
        }
        if let Some(range) = duplicate {
            self.duplicate_reported(range);
        }
        let duplicate = duplicate.is_some();
        let grew = !self.hot.has(Flags::RECOVERY) || self.cold.after_timeout;
        self.rack_delivered(&delivered, echo);
        self.probe_acknowledged(ack, sacks, duplicate);
        self.repair(ack, newly, &delivered);
        if self.is_modelled() {
            let sent_us = delivered.newest.map(|(sent_us, _, _)| sent_us);
            self.model_acked(delivered.bytes, sent_us, sample_us);
        }
        if self.hot.in_flight() == 0 {
            self.drop_scoreboard();
        }
        // Growth: RFC 5681 section 3.1; not during loss recovery, except after a timeout, when slow
        // start restarts (section 3.1, end). The end of a recovery leaves the window at its
        // threshold (RFC 6582 section 3.2 step 3).
        let grows = !self.hot.has(Flags::RECOVERY) || self.cold.after_timeout;
        let grows = grows && !self.is_echo(segment);
        // Only for data that this acknowledgment delivers: one that fills a hole must not release
        // all data behind it at once. A SACK block justifies growth on a reordering path, but may
        // be the first sign of a loss otherwise.
        let grown = match self.hot.has(Flags::SACK) {
            true if self.cold.rack.reordering => delivered.bytes,
            true => cumulative.bytes.max(newly.min(mss)),
            false => newly.saturating_sub(counted).max(newly.min(mss)),
        };
        if grown > 0 && grew && grows && self.hot.has(Flags::CWND_LIMITED) {
            self.grow(grown, sample_us);
        }
        self.arm_after_acknowledgment(newly > 0);
        if self.hot.tx.len() > 0 || self.hot.scoreboard != NONE {
            self.make_ready();
        }
    }

    /// RFC 2883: the peer received a duplicate.
    fn duplicate_reported(&mut self, range: Range) {
        // A tail-loss probe (RFC 8985 section 7.4) gives no evidence of reordering.
        let of_probe = self
            .cold
            .rack
            .probe
            .is_some_and(|(end, _)| end == range.end);
        if of_probe {
            return;
        }
        if self.undo_by_duplicate(range) {
            // It was retransmitted, and the original was only late.
            self.cold.rack.reordering = true;
        }
        self.rack_duplicate();
    }

    /// Removes acknowledged bytes from the send ring; a FIN has no byte there.
    #[inline]
    fn leave_ring(&mut self, ack: u32, newly: u32) {
        let bytes = (newly as usize).min(self.hot.tx.len());
        self.hot.tx.consume(&mut self.common.pool, bytes, false);
        self.hot.snd_una = ack;
        if self.hot.has(Flags::WANTS_ROOM | Flags::CWND_LIMITED) || self.hot.tx.len() > 0 {
            self.after_leaving();
        }
        if self.hot.timer() != Timer::None && self.path.retries != 0 {
            self.path.retries = 0;
        }
        if self.path.tail.has(Tail::MARKED | Tail::TIMED) {
            self.after_acknowledgment(ack);
        }
    }

    /// Rare work after data was acknowledged: features that few sessions use.
    #[cold]
    fn after_acknowledgment(&mut self, ack: u32) {
        if self.path.tail.has(Tail::MARKED) {
            self.marks_acknowledged(ack);
        }
        if self.path.tail.has(Tail::TIMED) {
            self.count_time();
        }
    }

    fn after_leaving(&mut self) {
        if self.hot.has(Flags::WANTS_ROOM) && self.is_writable() {
            self.hot.clear(Flags::WANTS_ROOM);
            self.notify();
        }
        // `MSG_MORE` waits for the application's next call or for an acknowledgment.
        self.path.tail.clear(Tail::HELD);
        self.make_ready();
    }

    /// True if an application that found the send buffer full is to be notified of room: a third is
    /// free, and less than half of the bound of unsent data is used.
    pub(crate) fn is_writable(&self) -> bool {
        let room = self.is_a_third_free();
        let low = self.path.tail.has(Tail::LOW_WATER);
        room && !(low && self.unsent() * 2 >= self.cold.unsent_low as usize)
    }

    /// Grows the congestion window.
    fn grow(&mut self, bytes: u32, rtt_us: Option<u32>) {
        if self.is_modelled() {
            return;
        }
        let in_slow_start = self.hot.cwnd < self.cold.congestion.threshold();
        if in_slow_start && self.hot.cwnd >= self.cold.flight_max.saturating_mul(2) {
            // A round trip has validated at most twice the amount in flight.
            return;
        }
        let acked = Acked {
            bytes,
            mss: u32::from(self.hot.mss),
            srtt_us: self.hot.srtt_us,
            now_us: self.common.now_us,
            rtt_us,
            ack: self.hot.snd_una,
            next: self.hot.snd_nxt,
            paced: self.is_paced(),
        };
        let window = self.cold.congestion.on_acked(self.hot.cwnd, &acked);
        // Not beyond the amount that could ever be in flight.
        let most = (2 * self.path.send_bytes).max(self.hot.cwnd);
        self.hot.cwnd = window.min(most);
        // The data just acknowledged was sent before now, and `send_data` records the time only
        // with a window above the initial one: a window that grows beyond that was not idle.
        self.cold.last_sent_us = self.common.now_us;
    }

    /// Duplicate acknowledgment without SACK; the third shows a loss (RFC 5681 section 3.2).
    fn duplicate_acknowledgment(&mut self) {
        if self.hot.has(Flags::SACK) {
            // The SACK blocks are more precise, and RACK uses them.
            return;
        }
        self.hot.duplicates = self.hot.duplicates.saturating_add(1);
        if self.hot.duplicates == DUPLICATES_MAX && !self.hot.has(Flags::RECOVERY) {
            let scoreboard = self.scoreboard();
            if !scoreboard.records.is_empty() {
                let una = scoreboard.records[0].range.start;
                let mss = u32::from(self.hot.mss);
                let scoreboard = self.scoreboard();
                scoreboard.cut(una.wrapping_add(mss));
                scoreboard.lose(0);
            }
            self.enter_recovery(&Delivered::default());
        }
        self.make_ready();
    }
}

/// RFC 2883 section 4: the first block lies before the acknowledgment, or in the second block.
fn is_duplicate(block: &Range, segment: &Segment<'_>) -> bool {
    before_or_at(block.end, segment.acknowledgment)
        || segment.options.block_count > 1 && segment.options.blocks[1].contains(block)
}
