//! A segment that came in, in the order of RFC 9293 section 3.10.7.
//!
//! Nearly all segments of an established session are in order and carry nothing unusual; they take
//! [`Session::input_predicted`] and touch the hot control block alone.

use super::Session;
use super::sequence::{Range, before, before_or_at};
use crate::buffer::slab::NONE;
use crate::error::SessionError;
use crate::state::hot::{State, flag};
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN, Segment};

/// RFC 7323 section 5.5.
const STAMP_GOOD_MS: u32 = 24 * 24 * 3600 * 1000;

impl Session<'_> {
    /// Takes a segment for this session whose checksum is right.
    #[inline]
    pub(crate) fn input(&mut self, segment: &Segment<'_>) {
        if !self.input_predicted(segment) {
            self.input_any(segment);
        }
    }

    /// Header prediction (Jacobson, RFC 1144 appendix A in spirit): true if the segment was what was
    /// expected next, and has been dealt with.
    #[inline]
    pub(crate) fn input_predicted(&mut self, segment: &Segment<'_>) -> bool {
        let hot = &mut *self.hot;
        let ack = segment.acknowledgment;
        let len = segment.payload.len() as u32;
        if hot.state != State::ESTABLISHED
            || segment.flags & !PSH != ACK
            || segment.sequence != hot.rcv_nxt
            || hot.gaps != NONE
            || segment.options.block_count != 0
            || hot.has(flag::RECOVERY | flag::DEAF | flag::DETACHED)
            || before(ack, hot.snd_una)
            || before(hot.snd_nxt, ack)
            || len > hot.rcv_edge.wrapping_sub(hot.rcv_nxt)
            // A bare acknowledgment of nothing new: a duplicate or a window update.
            || len == 0 && ack == hot.snd_una
            || hot.duplicates != 0
        {
            return false;
        }
        match segment.options.timestamps {
            Some((value, _)) if hot.has(flag::TIMESTAMPS) => {
                // RFC 7323 section 5.3 R1; an old one goes the long way.
                if before(value, hot.ts_recent) {
                    return false;
                }
                // Section 4.3, rule 2.
                if before_or_at(segment.sequence, hot.rcv_acked) {
                    hot.ts_recent = value;
                }
            }
            None if !hot.has(flag::TIMESTAMPS) => {}
            _ => return false,
        }
        hot.heard_ms = self.common.now_ms;
        self.take_window(segment);
        if ack != self.hot.snd_una {
            self.acknowledged(ack, segment);
        }
        if segment.landed {
            self.received_in_order(segment.payload.len());
        } else if len > 0 {
            self.receive_in_order(segment.payload);
        }
        true
    }

    fn input_any(&mut self, segment: &Segment<'_>) {
        match self.hot.state {
            State::CLOSED => {}
            State::SYN_SENT => self.input_syn_sent(segment),
            _ => self.input_synchronized(segment),
        }
    }

    /// RFC 9293 section 3.10.7.4.
    fn input_synchronized(&mut self, segment: &Segment<'_>) {
        let end = segment.sequence.wrapping_add(segment.len());
        // RFC 7323 section 5.3 R1: PAWS, before anything else; a reset is not subject to it.
        if self.hot.has(flag::TIMESTAMPS) && !segment.has(RST) {
            let Some((value, _)) = segment.options.timestamps else {
                // RFC 7323 section 3.2: a segment without them is dropped.
                self.common.counters.unacceptable += 1;
                return;
            };
            if before(value, self.hot.ts_recent) && !self.timestamps_outdated() {
                self.common.counters.paws += 1;
                // As Linux does, a bare acknowledgment that others overtook is no reason for one.
                if segment.len() > 0 {
                    self.note_duplicate(segment.sequence, end);
                    self.acknowledge_now();
                }
                return;
            }
        }
        // First, the sequence number: as Linux does, a segment that touches the window's edges
        // counts, so that its acknowledgment and its FIN are not lost.
        let in_window = !before(end, self.hot.rcv_nxt)
            && before_or_at(segment.sequence, self.hot.rcv_edge)
            // A keepalive probe lies wholly before what is expected.
            && !(before(segment.sequence, self.hot.rcv_nxt) && end == self.hot.rcv_nxt);
        if !in_window {
            if segment.has(RST) {
                return;
            }
            self.common.counters.unacceptable += 1;
            if segment.has(SYN)
                && self.hot.state == State::SYN_RECEIVED
                && segment.sequence == self.cold.irs
            {
                if segment.has(ACK) {
                    // Both opened at once (RFC 9293 section 3.5, figure 7): it has our SYN.
                    if self.input_final_ack(segment) {
                        self.acknowledge_now();
                    }
                    return;
                }
                // The peer did not get our SYN-ACK.
                self.hot.set(flag::SEND_SYN);
                self.make_ready();
                return;
            }
            // An acknowledgment in a segment that the zero window refused still counts (RFC 9293
            // section 3.10.7.4: "special allowance").
            let duplicate = before_or_at(end, self.hot.rcv_nxt);
            if duplicate && segment.has(ACK) && self.hot.state.is_synchronized() {
                self.acknowledge(segment);
                self.after_fin_acknowledged();
                if self.hot.state == State::CLOSED {
                    return;
                }
            }
            if self.hot.state == State::TIME_WAIT && segment.has(FIN) {
                self.enter_time_wait();
            }
            self.note_duplicate(segment.sequence, end);
            self.acknowledge_now();
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
        if self.hot.state == State::SYN_RECEIVED && !self.input_final_ack(segment) {
            return;
        }
        if let Some((value, _)) = segment.options.timestamps
            && self.hot.has(flag::TIMESTAMPS)
            && before_or_at(segment.sequence, self.hot.rcv_acked)
            && !before(value, self.hot.ts_recent)
        {
            // RFC 7323 section 4.3, rule 2.
            self.hot.ts_recent = value;
        }
        self.hot.heard_ms = self.common.now_ms;
        self.cold.alive_probes = 0;
        if !self.acknowledge(segment) {
            return;
        }
        self.after_fin_acknowledged();
        if self.hot.state == State::CLOSED {
            return;
        }
        // Seventh, the text; eighth, the FIN.
        self.receive(segment);
    }

    /// RFC 7323 section 5.5: TS.Recent is good for 24 days of silence.
    fn timestamps_outdated(&self) -> bool {
        self.silent_ms() > STAMP_GOOD_MS
    }

    /// Remembers a duplicate for the next acknowledgment: RFC 2883 section 4.
    fn note_duplicate(&mut self, start: u32, end: u32) {
        if self.hot.has(flag::SACK) && before(start, end) && before(start, self.hot.rcv_nxt) {
            let end = super::sequence::earlier(end, self.hot.rcv_nxt);
            self.duplicate(Range { start, end });
        }
    }

    fn input_reset(&mut self) {
        self.common.counters.resets_received += 1;
        let error = match self.hot.state {
            State::SYN_RECEIVED => Some(SessionError::Refused),
            // RFC 1337 section 3 (fix 1): a reset does not end TIME-WAIT.
            State::TIME_WAIT => return,
            State::CLOSING | State::LAST_ACK => None,
            _ => Some(SessionError::Reset),
        };
        self.finish(error);
    }

    /// What follows from our FIN being acknowledged.
    fn after_fin_acknowledged(&mut self) {
        if !self.hot.has(flag::FIN_SENT) || self.hot.in_flight() != 0 {
            return;
        }
        match self.hot.state {
            State::FIN_WAIT_1 => {
                self.hot.state = State::FIN_WAIT_2;
                self.notify();
                self.watch_fin_wait_2();
            }
            State::CLOSING => self.enter_time_wait(),
            State::LAST_ACK => self.finish(None),
            _ => {}
        }
    }
}
