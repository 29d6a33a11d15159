//! Acknowledgments: data that leaves the send ring, the peer's window, and their consequences.
//!
//! Source: RFC 9293 section 3.10.7.4 (fifth), RFC 5681, RFC 6582, RFC 6675, RFC 8985, RFC 2883.

use super::Input;
use crate::buffer::NONE;
use crate::congestion::bbr::Ack;
use crate::congestion::{Acked, Control, SlowStart};
use crate::ranges::scoreboard::{Delivered, Fate};
use crate::shared::config::Behaviour;
use crate::state::ecn::EcnState;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::Timer;
use crate::tcp::ecn::accurate::Report;
use crate::tcp::prr::{Progress, Prr};
use crate::tcp::rack::{DUPLICATES_MAX, ProbeOutcome};
use crate::tcp::undo::Duplicate;
use crate::timer::before;
use crate::wire::sequence::{Range, Sequence};
use crate::wire::tcp::{BLOCKS_MAX, Segment};
use sidecore_bare::width::ToUsize;

impl Input<'_, '_> {
    /// Processes the ACK field of an acceptable segment; false if the segment is to be dropped.
    pub(super) fn acknowledge(&mut self) -> bool {
        let segment = self.segment;
        let ack = segment.acknowledgment;
        let hot = &*self.session.hot;
        // One above SND.NXT acknowledges data that was never sent: RFC 9293 section 3.10.7.4. One
        // below the largest window is too old: RFC 5961 section 5.2.
        let unsent = hot.send.nxt < ack;
        if unsent || ack < hot.send.una - self.session.cold.window_max {
            if !unsent || self.session.common.config.behaviour == Behaviour::Standard {
                self.challenge();
            }
            return false;
        }
        if ack < hot.send.una {
            self.overtaken();
            return true;
        }
        let mut echo = self.is_echo();
        let accurate = self.session.hot.ecn.is_accurate();
        let delivered_before = self.delivered_end();
        let flight = self.session.hot.send.in_flight();
        if echo && self.session.hot.has(Flags::RECOVERY) {
            // Before this acknowledgment could undo the recovery: the path is congested; whether
            // the data was late or lost is no longer of interest.
            self.session.cold.undo.forget();
        }
        let window_before = self.session.hot.send.wnd;
        self.take_window();
        let hot = &*self.session.hot;
        let sacks = segment.options.block_count > 0 && hot.has(Flags::SACK);
        // With nothing in flight a D-SACK may still show a recovery to be spurious.
        let reports = sacks && (flight > 0 || self.session.cold.undo.waits());
        if ack != hot.send.una || reports {
            self.acknowledged();
        } else if flight > 0 && segment.is_empty() && hot.send.wnd == window_before {
            // RFC 5681 section 2: a duplicate acknowledgment.
            self.duplicate_acknowledgment();
        }
        let send = self.session.hot.send;
        let mut ecn = self.session.ecn();
        ecn.end_reduced_window(send.una, send.in_flight());
        if accurate {
            echo = self.take_reported(delivered_before);
        }
        if echo {
            self.congestion_echoed(flight);
        }
        if accurate && self.session.hot.send.in_flight() == 0 {
            self.session.ecn().end_reduction();
        }
        if self.session.hot.ecn.is_negotiated() && self.session.cold.prr.is_for_marks() {
            let delivered = self.delivered_end().distance(delivered_before).max(0);
            self.shrink(delivered.cast_unsigned());
        }
        true
    }

    /// An acknowledgment that was overtaken by a later one: its number is known, but its SACK
    /// blocks may be new (RFC 6675 section 5 processes each acknowledgment's blocks).
    #[cold]
    fn overtaken(&mut self) {
        let hot = &*self.session.hot;
        let reports = self.segment.options.block_count > 0 && hot.has(Flags::RECOVERY);
        if reports && hot.has(Flags::SACK) && hot.scoreboard != NONE {
            self.acknowledged_part(hot.send.una);
        }
    }

    /// RFC 9293 section 3.10.7.4: the send window follows the newest segment.
    #[inline]
    pub(super) fn take_window(&mut self) {
        let segment = self.segment;
        let (sequence, ack) = (segment.sequence, segment.acknowledgment);
        let send = &mut self.session.hot.send;
        if !send.is_newer(sequence, ack) {
            return;
        }
        let window = u32::from(segment.window) << self.session.path.scales.send();
        let opened = window > send.wnd;
        send.set(window, sequence, ack);
        if opened {
            self.window_opened(window);
        }
    }

    #[cold]
    fn window_opened(&mut self, window: u32) {
        let session = &mut self.session;
        session.cold.window_max = session.cold.window_max.max(window);
        if session.hot.timer() == Timer::Persist {
            session.hot.stop_timer();
            session.path.retries = 0;
        }
        if session.hot.tx.len() > 0 {
            session.make_ready();
        }
    }

    /// New data was acknowledged, cumulatively or by SACK.
    #[inline]
    pub(super) fn acknowledged(&mut self) {
        let ack = self.segment.acknowledgment;
        let hot = &*self.session.hot;
        let newly = ack - hot.send.una;
        if hot.scoreboard != NONE || ack != hot.send.nxt || newly == 0 || hot.has(Flags::RECOVERY) {
            self.acknowledged_part(ack);
            return;
        }
        // All data in flight, sent once: the usual case of a request and its reply.
        let sent_us = hot.sent_us;
        let rtt_us = self.session.common.now_us.wrapping_sub(sent_us);
        self.session.hot.rtt.sample(rtt_us);
        self.leave_ring(ack, newly);
        // Duplicates of an earlier number do not count for the next one.
        self.session.hot.duplicates = 0;
        self.session.hot.stop_timer();
        if self.session.path.is_modelled() {
            self.tell_model(newly, Some(sent_us), Some(rtt_us));
        }
        // RFC 3168 section 6.1.2: an acknowledgment that echoes a mark does not grow the window.
        if self.session.hot.has(Flags::CWND_LIMITED) && !self.is_echo() {
            self.grow(newly, Some(rtt_us));
        }
    }

    /// The general case: parts of the data in flight, retransmissions, SACK, recovery.
    fn acknowledged_part(&mut self, ack: Sequence) {
        let una = self.session.hot.send.una;
        let newly = ack - una;
        let (delivered, duplicate, sacks) = self.mark_delivered(ack);
        let negotiated = self.session.hot.has(Flags::TIMESTAMPS);
        let echo = self.segment.stamps(negotiated).map(|(_, echo)| echo);
        // Without SACK each duplicate acknowledgment stands for one delivered segment.
        let (duplicates, mss) = (self.session.hot.duplicates, self.session.hot.mss);
        let counted = u32::from(duplicates) * u32::from(mss);
        let mut sample_us = None;
        if newly > 0 {
            sample_us = self.sample(delivered.cumulative.newest, echo);
            self.leave_ring(ack, newly);
            self.session.hot.duplicates = 0;
            let recovering = self.session.hot.has(Flags::RECOVERY);
            if recovering && self.session.cold.undo.is_spurious_by_echo(ack, echo) {
                self.session.undo_recovery();
            }
        }
        if let Some(range) = duplicate {
            self.duplicate_reported(range);
        }
        let grew = self.may_grow();
        let all = delivered.all;
        self.tell_rack(&all, echo);
        let in_flight = self.session.hot.send.in_flight();
        let rack = &mut self.session.cold.rack;
        let outcome = rack.probe_acknowledged(ack, sacks, duplicate.is_some(), in_flight);
        if outcome == ProbeOutcome::Repaired {
            self.probe_repaired();
        }
        self.recover(ack, newly, &all);
        if self.session.path.is_modelled() {
            let sent_us = all.newest.map(|(sent_us, _, _)| sent_us);
            self.tell_model(all.bytes, sent_us, sample_us);
        }
        if self.session.hot.send.in_flight() == 0 {
            self.session.drop_scoreboard();
        }
        // Growth: RFC 5681 section 3.1. The end of a recovery leaves the window at its threshold
        // (RFC 6582 section 3.2 step 3).
        let grows = grew && self.may_grow() && !self.is_echo();
        // Only for data that this acknowledgment delivers: one that fills a hole must not release
        // all data behind it at once. A SACK block justifies growth on a reordering path, but may
        // be the first sign of a loss otherwise.
        let least = newly.min(u32::from(mss));
        let grown = match self.session.hot.has(Flags::SACK) {
            true if self.session.cold.rack.has_reordering() => all.bytes,
            true => delivered.cumulative.bytes.max(least),
            false => newly.saturating_sub(counted).max(least),
        };
        if grown > 0 && grows && self.session.hot.has(Flags::CWND_LIMITED) {
            self.grow(grown, sample_us);
        }
        self.session.arm_after_acknowledgment(newly > 0);
        if self.session.hot.tx.len() > 0 || self.session.hot.scoreboard != NONE {
            self.session.make_ready();
        }
    }

    /// Marks data in the scoreboard as delivered, up to `ack` and by the SACK blocks. Returns it, a
    /// range that the peer reports as a duplicate (RFC 2883), and true if other blocks count.
    fn mark_delivered(&mut self, ack: Sequence) -> (DeliveredBy, Option<Range>, bool) {
        let segment = self.segment;
        let nxt = self.session.hot.send.nxt;
        let mss = u32::from(self.session.hot.mss);
        let scoreboard = self.session.scoreboard();
        let mut all = Delivered::default();
        scoreboard.acknowledge(ack, &mut all);
        let cumulative = all;
        let mut duplicate = None;
        let (mut blocks, mut count) = ([Range::default(); BLOCKS_MAX], 0);
        let reported = &segment.options.blocks[..segment.options.block_count];
        for (index, block) in reported.iter().enumerate() {
            if index == 0 && is_duplicate(block, segment) {
                duplicate = Some(*block);
                continue;
            }
            // Only valid blocks within the data in flight.
            if block.start < block.end && ack < block.end && block.end <= nxt {
                blocks[count] = Range {
                    start: block.start.later(ack),
                    end: block.end,
                };
                count += 1;
            }
        }
        if count > 0 {
            scoreboard.sack(&blocks[..count], mss, &mut all);
        }
        (DeliveredBy { all, cumulative }, duplicate, count > 0)
    }

    /// A sample of the round trip by newly acknowledged data, of which the part that was sent last
    /// is `newest`. Returns it, if it is of data that was sent once: Karn (RFC 6298 section 3).
    fn sample(&mut self, newest: Option<(u32, Sequence, bool)>, echo: Option<u32>) -> Option<u32> {
        let (sent_us, _, again) = newest?;
        let rtt_us = self.session.common.now_us.wrapping_sub(sent_us);
        if !again {
            self.session.hot.rtt.sample(rtt_us);
            return Some(rtt_us);
        }
        // The echo distinguishes the two (RFC 7323 section 4.1).
        let echo = echo?;
        let session = &mut self.session;
        if !before(echo, session.stamp_at(sent_us)) {
            // Shorter than any round trip: it belongs to a transmission within the same
            // millisecond.
            if rtt_us >= session.cold.rack.min_rtt_us() {
                session.hot.rtt.sample(rtt_us);
            }
        } else if session.hot.has(Flags::RECOVERY) && session.cold.after_timeout {
            // An older echo belongs to an earlier transmission, or acknowledgments in between were
            // lost; that makes round trips look longer, and the timeout later. After a timeout this
            // is desired, because the round trip may be longer than the timeout; otherwise RACK and
            // probes detect losses better.
            let stamp = session.hot.timestamps.at(session.common.now_ms);
            session.hot.rtt.sample_echo(stamp.wrapping_sub(echo));
        }
        None
    }

    /// Loss detection learns what was delivered.
    fn tell_rack(&mut self, delivered: &Delivered, echo: Option<u32>) {
        let Some((sent_us, _, _)) = delivered.newest else {
            return;
        };
        let session = &mut self.session;
        if delivered.reordered {
            let bytes = delivered.reordering_bytes;
            session.cold.reordering_bytes = session.cold.reordering_bytes.max(bytes);
            session.cold.reorderings += 1;
        }
        let is_older = echo.is_some_and(|echo| before(echo, session.stamp_at(sent_us)));
        let now_us = session.common.now_us;
        session.cold.rack.delivered(delivered, now_us, is_older);
    }

    /// The model of the path learns what was delivered, and sets the window.
    fn tell_model(&mut self, bytes: u32, sent_us: Option<u32>, rtt_us: Option<u32>) {
        let session = &mut self.session;
        let ack = Ack {
            sent_us,
            rtt_us,
            ..session.model_ack(bytes)
        };
        // Not beyond the amount that could ever be in flight.
        let most = (2 * session.path.send_bytes).max(session.hot.send.cwnd);
        if let Some(window) = session.cold.model.acked(&ack) {
            session.hot.send.cwnd = window.min(most);
        }
    }

    /// RFC 8985 section 7.4.2: a loss that a probe repaired reduces the window nevertheless.
    fn probe_repaired(&mut self) {
        let session = &mut self.session;
        let una = session.hot.send.una;
        if !session.hot.has(Flags::RECOVERY) && !session.ecn().is_reduced_already(una) {
            session.cold.undo.forget();
            session.reduce_after_loss();
        }
    }

    /// Loss detection after an acknowledgment, and the end of a recovery.
    fn recover(&mut self, ack: Sequence, newly: u32, delivered: &Delivered) {
        let session = &mut self.session;
        if session.hot.has(Flags::RECOVERY) && ack >= session.cold.recover {
            session.leave_recovery();
        }
        if session.hot.has(Flags::SACK) {
            session.detect_losses(delivered, newly > 0);
        } else if session.hot.has(Flags::RECOVERY) && newly > 0 && session.hot.scoreboard != NONE {
            // RFC 6582 section 3.2 step 3: a partial acknowledgment shows the next loss.
            let mss = u32::from(session.hot.mss);
            let scoreboard = session.scoreboard();
            if let Some(first) = scoreboard.records.front().copied()
                && first.fate == Fate::Flying
            {
                scoreboard.cut(first.range.start + mss);
                scoreboard.lose(0);
                session.hot.set(Flags::RETRANSMIT_OWED);
            }
        }
    }

    /// RFC 2883: the peer received a duplicate.
    fn duplicate_reported(&mut self, range: Range) {
        let session = &mut self.session;
        // A tail-loss probe (RFC 8985 section 7.4) gives no evidence of reordering.
        let probe = session.cold.rack.probe();
        if probe.is_some_and(|probe| probe.end == range.end) {
            return;
        }
        let duplicate = session
            .cold
            .undo
            .note_duplicate(range, session.cold.recover);
        if duplicate == Duplicate::Last {
            session.undo_recovery();
        }
        if duplicate != Duplicate::Unknown {
            // It was retransmitted, and the original was only late.
            session.cold.rack.note_reordering();
        }
        let send = session.hot.send;
        session.cold.rack.widen(send.una, send.nxt);
    }

    /// Removes acknowledged bytes from the send ring; a FIN has no byte there.
    #[inline]
    fn leave_ring(&mut self, ack: Sequence, newly: u32) {
        let session = &mut self.session;
        let hot = &mut *session.hot;
        let bytes = newly.to_usize().min(hot.tx.len());
        hot.tx.consume(&mut session.common.pool, bytes, false);
        hot.send.una = ack;
        if hot.has(Flags::WANTS_ROOM | Flags::CWND_LIMITED) || hot.tx.len() > 0 {
            self.after_leaving();
        }
        let session = &mut self.session;
        if session.hot.timer() != Timer::None && session.path.retries != 0 {
            session.path.retries = 0;
        }
        if session.path.tail.has(SendTail::MARKED | SendTail::TIMED) {
            self.note_acknowledged(ack);
        }
    }

    /// Rare work after data was acknowledged: features that few sessions use.
    #[cold]
    fn note_acknowledged(&mut self, ack: Sequence) {
        let session = &mut self.session;
        if session.path.tail.has(SendTail::MARKED) {
            let now_ns = session.common.now_ns;
            if session.cold.marks.acknowledged(ack, now_ns) {
                session.notify();
            }
        }
        if session.path.tail.has(SendTail::TIMED) {
            session.count_time();
        }
    }

    fn after_leaving(&mut self) {
        let session = &mut self.session;
        if session.hot.has(Flags::WANTS_ROOM) && session.send_buffer().has_room() {
            session.hot.clear(Flags::WANTS_ROOM);
            session.notify();
        }
        // `MSG_MORE` waits for the application's next call or for an acknowledgment.
        session.path.tail.clear(SendTail::HELD);
        session.make_ready();
    }

    /// True if the window may grow: not during loss recovery, except after a timeout, when slow
    /// start restarts (RFC 5681 section 3.1, end).
    fn may_grow(&self) -> bool {
        !self.session.hot.has(Flags::RECOVERY) || self.session.cold.after_timeout
    }

    /// Grows the congestion window.
    fn grow(&mut self, bytes: u32, rtt_us: Option<u32>) {
        let session = &mut self.session;
        if session.path.is_modelled() || session.cold.prr.is_for_marks() {
            return;
        }
        let send = session.hot.send;
        let in_slow_start = send.cwnd < session.cold.congestion.threshold();
        if in_slow_start && !session.cold.flight.uses_half_of(send.cwnd) {
            // A round trip has validated at most twice the amount in flight.
            return;
        }
        let acked = Acked {
            bytes,
            mss: u32::from(session.hot.mss),
            srtt_us: session.hot.rtt.smoothed_us,
            now_us: session.common.now_us,
            rtt_us,
            ack: send.una,
            next: send.nxt,
            paced: session.is_paced(),
            slow_start: match session.common.config.behaviour {
                Behaviour::Standard => SlowStart::HyStartPlusPlus,
                Behaviour::Linux => SlowStart::HyStart,
            },
        };
        let window = session.cold.congestion.on_acked(send.cwnd, &acked);
        // Not beyond the amount that could ever be in flight.
        let most = (2 * session.path.send_bytes).max(send.cwnd);
        session.hot.send.cwnd = window.min(most);
        // The data just acknowledged was sent before now, and output records the time only with a
        // window above the initial one: a window that grows beyond that was not idle.
        session.cold.last_sent_us = session.common.now_us;
    }

    /// Duplicate acknowledgment without SACK; the third shows a loss (RFC 5681 section 3.2).
    fn duplicate_acknowledgment(&mut self) {
        let session = &mut self.session;
        if session.hot.has(Flags::SACK) {
            // The SACK blocks are more precise, and RACK uses them.
            return;
        }
        session.hot.duplicates = session.hot.duplicates.saturating_add(1);
        if session.hot.duplicates == DUPLICATES_MAX && !session.hot.has(Flags::RECOVERY) {
            let mss = u32::from(session.hot.mss);
            let scoreboard = session.scoreboard();
            if let Some(first) = scoreboard.records.front().copied() {
                scoreboard.cut(first.range.start + mss);
                scoreboard.lose(0);
            }
            session.enter_recovery(&Delivered::default());
        }
        session.make_ready();
    }

    /// True if the segment echoes a mark.
    #[inline]
    fn is_echo(&mut self) -> bool {
        let iss = self.session.cold.iss;
        self.session.ecn().is_echo(self.segment, iss)
    }

    /// End of the data reported as delivered, minus its holes: compared before and after an
    /// acknowledgment.
    fn delivered_end(&self) -> Sequence {
        self.session.hot.send.una + self.session.sacked_bytes()
    }

    /// Processes the counter of marks in accurate ECN; true if packets of ours were marked.
    fn take_reported(&mut self, delivered_before: Sequence) -> bool {
        let segment = self.segment;
        // Data that SACK reported and the peer reneged on (RFC 2018 section 8) is negative.
        let delivered = self.delivered_end().distance(delivered_before).max(0);
        let session = &mut self.session;
        let stamps = segment.stamps(session.hot.has(Flags::TIMESTAMPS));
        let report = Report {
            iss: session.cold.iss,
            delivered: delivered.cast_unsigned(),
            stamp: stamps.map(|(value, _)| value),
            has_newest_window: session.hot.send.wl1 == segment.sequence,
            mss: session.hot.mss,
        };
        let marked = session.ecn().take_reported(segment, report);
        session.common.counters.accurate_ecn_reported += u64::from(marked);
        marked > 0
    }

    /// RFC 3168 section 6.1.2: an acknowledgment echoed a mark; `flight` bytes were in flight
    /// before it. Called after it was searched for losses, which weigh more.
    #[cold]
    fn congestion_echoed(&mut self, flight: u32) {
        let session = &mut self.session;
        if session.hot.has(Flags::RECOVERY) {
            // Reduced already; but the network was congested, even if the loss was spurious.
            session.cold.undo.forget();
            return;
        }
        if flight == 0 || session.ecn().is_echo_of_the_past() {
            return;
        }
        let window = session.hot.send.cwnd;
        let used = if session.hot.has(Flags::CWND_LIMITED) {
            window
        } else {
            flight.min(window)
        };
        self.reduce_by_echo(used, flight);
        if window <= u32::from(self.session.hot.mss) {
            self.hold_new_data();
        }
    }

    /// Reduces the window, of which `used` bytes were in use and `flight` in flight, because of
    /// marks (RFC 8511).
    pub(super) fn reduce_by_echo(&mut self, used: u32, flight: u32) {
        let session = &mut self.session;
        session.cold.undo.forget();
        let mss = u32::from(session.hot.mss);
        let window = session.hot.send.cwnd;
        let now_us = session.common.now_us;
        let threshold = session.cold.congestion.on_echo(window, used, mss, now_us);
        let by_steps = session.common.config.behaviour == Behaviour::Linux;
        // A model of the path sets its window itself.
        if by_steps && session.hot.send.in_flight() > 0 && !session.path.is_modelled() {
            session.cold.prr = Prr::begin_for_marks(flight);
        } else {
            session.hot.send.cwnd = window.min(threshold);
        }
        if session.path.is_modelled() {
            let ack = session.model_ack(0);
            session.cold.model.marked(flight, &ack);
        }
        session.note_reduction();
        session.common.counters.ecn_reductions += 1;
    }

    /// The reduction after a mark, at an acknowledgment that delivers this many bytes: it ends
    /// with the window of data in which the mark was echoed.
    #[cold]
    fn shrink(&mut self, delivered: u32) {
        let session = &mut self.session;
        let threshold = session.cold.congestion.threshold();
        if !session.hot.ecn.has(EcnState::REDUCED) {
            session.cold.prr = Prr::default();
            session.hot.send.cwnd = threshold;
        } else if delivered > 0 {
            let progress = Progress {
                pipe: session.pipe(),
                threshold,
                mss: u32::from(session.hot.mss),
                // Nothing has to be recovered: what arrives is replaced at most.
                advanced: false,
                lost: false,
            };
            let bytes = session.cold.prr.on_delivered(delivered, progress);
            session.hot.send.cwnd = progress.pipe.saturating_add(bytes).max(progress.mss);
        }
    }

    /// RFC 3168 section 6.1.2: a window of one segment cannot be halved; the next new one waits for
    /// the retransmission timer, which is restarted.
    fn hold_new_data(&mut self) {
        let session = &mut self.session;
        if session.hot.send.in_flight() > 0 {
            session.arm_retransmission();
        } else {
            session.start_timer(Timer::Held, session.timeout_us());
        }
    }
}

/// Data that one acknowledgment delivers.
struct DeliveredBy {
    all: Delivered,
    /// By its number alone, without the SACK blocks.
    cumulative: Delivered,
}

/// RFC 2883 section 4: the first block lies before the acknowledgment, or in the second block.
fn is_duplicate(block: &Range, segment: &Segment<'_>) -> bool {
    block.end <= segment.acknowledgment
        || segment.options.block_count > 1 && segment.options.blocks[1].contains(block)
}
