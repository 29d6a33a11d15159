//! A received segment, processed in the order of RFC 9293 section 3.10.7.
//!
//! Nearly all segments of an established session are in order and carry nothing unusual; they take
//! [`Session::input_predicted`] and touch only the hot control block.

use super::Session;
use crate::buffer::slab::NONE;
use crate::error::SessionError;
use crate::state::hot::{EcnFlags, Flags, State};
use crate::wire::sequence::{Range, before, before_or_at};
use crate::wire::tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN, Segment};

/// RFC 7323 section 5.5.
const STAMP_GOOD_MS: u32 = 24 * 24 * 3600 * 1000;
/// Minimum interval of replies to out-of-window segments without data.
const UNACCEPTABLE_MS: u32 = 500;

impl Session<'_> {
    /// Processes a segment of this session with a correct checksum.
    #[inline]
    pub(crate) fn input(&mut self, segment: &Segment<'_>) {
        if !self.input_predicted(segment) {
            self.input_any(segment);
        }
    }

    /// Header prediction (Jacobson, RFC 1144 appendix A in spirit): true if the segment was the
    /// expected one, and has been processed.
    #[inline]
    pub(crate) fn input_predicted(&mut self, segment: &Segment<'_>) -> bool {
        let hot = &mut *self.hot;
        let ack = segment.acknowledgment;
        let len = segment.payload.len() as u32;
        if !hot.is_predictable()
            || segment.flags & !(PSH | ECE | CWR) != ACK
            || segment.sequence != hot.rcv_nxt
            || hot.out_of_order != NONE
            || segment.options.block_count != 0
            || hot.has(Flags::RECOVERY | Flags::READ_SHUTDOWN | Flags::DETACHED)
            || before(ack, hot.snd_una)
            || before(hot.snd_nxt, ack)
            || len > hot.rcv_edge.wrapping_sub(hot.rcv_nxt)
            // A pure acknowledgment of nothing new: a duplicate or a window update.
            || len == 0 && ack == hot.snd_una
            || hot.duplicates != 0
            || if hot.has_ecn(EcnFlags::NEGOTIATED) {
                !super::ecn::is_quiet(self.path, self.cold, segment)
            } else {
                segment.flags & (ECE | CWR) != 0
            }
        {
            return false;
        }
        match segment.options.timestamps {
            Some((value, _)) if hot.has(Flags::TIMESTAMPS) => {
                // RFC 7323 section 5.3 R1; an old one takes the slow path.
                if before(value, hot.ts_recent) {
                    return false;
                }
                // Section 4.3, rule 2.
                if before_or_at(segment.sequence, hot.rcv_acked) {
                    hot.ts_recent = value;
                }
            }
            None if !hot.has(Flags::TIMESTAMPS) => {}
            _ => return false,
        }
        hot.last_received_ms = self.common.now_ms;
        self.take_window(segment);
        if ack != self.hot.snd_una {
            self.acknowledged(ack, segment);
        }
        if segment.placed {
            self.received_in_order(segment.payload.len());
        } else if len > 0 {
            self.receive_in_order(segment.payload);
        }
        true
    }

    fn input_any(&mut self, segment: &Segment<'_>) {
        match self.hot.state() {
            State::Closed => {}
            State::SynSent => self.input_syn_sent(segment),
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => self.input_synchronized(segment),
        }
    }

    /// RFC 9293 section 3.10.7.4.
    fn input_synchronized(&mut self, segment: &Segment<'_>) {
        let end = segment.sequence.wrapping_add(segment.len());
        // RFC 7323 section 5.3 R1: PAWS comes first; a reset is not subject to it.
        if self.hot.has(Flags::TIMESTAMPS) && !segment.has(RST) {
            let Some((value, _)) = segment.options.timestamps else {
                // RFC 7323 section 3.2: a segment without timestamps is dropped.
                self.common.counters.unacceptable += 1;
                return;
            };
            if before(value, self.hot.ts_recent) && !self.timestamps_outdated() {
                self.common.counters.paws += 1;
                // As in Linux, an overtaken pure acknowledgment is not answered.
                if !segment.is_empty() {
                    self.note_duplicate(segment.sequence, end);
                    self.acknowledge_now();
                }
                return;
            }
        }
        // First, the sequence number: as in Linux, a segment at the edge of the window is
        // acceptable, so that its acknowledgment and its FIN are not lost.
        let in_window = !before(end, self.hot.rcv_nxt)
            && before_or_at(segment.sequence, self.hot.rcv_edge)
            // A keepalive probe is entirely before the expected number.
            && !(before(segment.sequence, self.hot.rcv_nxt) && end == self.hot.rcv_nxt);
        if !in_window {
            if segment.has(RST) {
                return;
            }
            self.common.counters.unacceptable += 1;
            if segment.has(SYN)
                && self.hot.state() == State::SynReceived
                && segment.sequence == self.cold.irs
            {
                if segment.has(ACK) {
                    // Simultaneous open (RFC 9293 section 3.5, figure 7): it repeats the peer's
                    // SYN.
                    self.agree_ecn_at_once(segment);
                    if self.input_final_ack(segment) {
                        self.acknowledge_now();
                    }
                    return;
                }
                // The peer did not receive our SYN-ACK.
                if self.agree_ecn_again(segment) {
                    self.hot.set(Flags::SEND_SYN);
                    self.make_ready();
                }
                return;
            }
            if segment.has(SYN) {
                self.opened_again(segment);
            }
            // The acknowledgment of a segment whose data a zero window excludes still counts (RFC
            // 9293 section 3.10.7.4: "special allowance").
            let duplicate = before_or_at(end, self.hot.rcv_nxt);
            if duplicate && segment.has(ACK) && self.hot.state().is_synchronized() {
                self.acknowledge(segment);
                self.after_fin_acknowledged();
                if self.hot.state() == State::Closed {
                    return;
                }
            }
            if self.hot.state() == State::TimeWait && segment.has(FIN) {
                self.enter_time_wait();
            }
            self.note_duplicate(segment.sequence, end);
            if self.may_answer_unacceptable(segment) {
                self.acknowledge_now();
            }
            return;
        }
        // Second, the RST bit: RFC 5961 section 3.2.
        if segment.has(RST) {
            if segment.sequence == self.hot.rcv_nxt {
                self.input_reset();
            } else {
                self.challenge();
            }
            return;
        }
        // Fourth, the SYN bit: RFC 5961 section 4.2.
        if segment.has(SYN) {
            self.challenge();
            return;
        }
        // Fifth, the ACK field.
        if !segment.has(ACK) {
            return;
        }
        if self.hot.state() == State::SynReceived && !self.input_final_ack(segment) {
            return;
        }
        // A segment that acknowledges bytes that were never sent is rejected below; its timestamp
        // must not be recorded.
        if let Some((value, _)) = segment.options.timestamps
            && self.hot.has(Flags::TIMESTAMPS)
            && before_or_at(segment.sequence, self.hot.rcv_acked)
            && !before(value, self.hot.ts_recent)
            && before_or_at(segment.acknowledgment, self.hot.snd_nxt)
        {
            // RFC 7323 section 4.3, rule 2.
            self.hot.ts_recent = value;
        }
        self.hot.last_received_ms = self.common.now_ms;
        self.cold.alive_probes = 0;
        if !self.acknowledge(segment) {
            return;
        }
        self.after_fin_acknowledged();
        if self.hot.state() == State::Closed {
            return;
        }
        if self.is_accurate() {
            self.note_accurate_ecn(segment);
        }
        // Seventh, the segment text; eighth, the FIN.
        self.receive(segment);
    }

    /// True if a segment outside the window is answered. Data always is, since only a timer
    /// retransmits it. Pure acknowledgments and SYNs are answered once in half a second, as in
    /// Linux (`tcp_invalid_ratelimit`): two ends that disagree about their numbers would answer
    /// each other without end, and a session with itself as fast as it can.
    fn may_answer_unacceptable(&mut self, segment: &Segment<'_>) -> bool {
        if !segment.payload.is_empty() || segment.has(FIN) {
            return true;
        }
        let now_ms = self.common.now_ms;
        let last_ms = self.cold.unacceptable_answered_ms;
        let may = last_ms.is_none_or(|last_ms| now_ms.wrapping_sub(last_ms) >= UNACCEPTABLE_MS);
        if may {
            self.cold.unacceptable_answered_ms = Some(now_ms);
        }
        may
    }

    /// RFC 7323 section 5.5: TS.Recent is valid for 24 days without a segment.
    fn timestamps_outdated(&self) -> bool {
        self.silent_ms() > STAMP_GOOD_MS
    }

    /// Stores a duplicate for the next acknowledgment: RFC 2883 section 4.
    fn note_duplicate(&mut self, start: u32, end: u32) {
        if self.hot.has(Flags::SACK) && before(start, end) && before(start, self.hot.rcv_nxt) {
            let end = crate::wire::sequence::earlier(end, self.hot.rcv_nxt);
            self.duplicate(Range { start, end });
        }
    }

    fn input_reset(&mut self) {
        self.common.counters.resets_received += 1;
        let error = match self.hot.state() {
            State::SynReceived => Some(SessionError::Refused),
            // RFC 1337 section 3 (fix 1): a reset does not end TIME-WAIT.
            State::TimeWait => return,
            State::Closing | State::LastAck => None,
            State::Closed
            | State::SynSent
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait => Some(SessionError::Reset),
        };
        self.finish(error);
    }

    /// State transitions on the acknowledgment of our FIN (RFC 9293 section 3.10.7.4, fifth).
    fn after_fin_acknowledged(&mut self) {
        if !self.hot.has(Flags::FIN_SENT) || self.hot.in_flight() != 0 {
            return;
        }
        match self.hot.state() {
            State::FinWait1 => {
                self.hot.set_state(State::FinWait2);
                self.notify();
                self.watch_fin_wait_2();
            }
            State::Closing => self.enter_time_wait(),
            State::LastAck => self.finish(None),
            State::Closed
            | State::SynSent
            | State::SynReceived
            | State::Established
            | State::FinWait2
            | State::CloseWait
            | State::TimeWait => {}
        }
    }
}
