//! A received segment, processed in the order of RFC 9293 section 3.10.7.
//!
//! Nearly all segments of an established session are in order and carry nothing unusual; they take
//! [`Input::run_predicted`] and touch only the hot control block. The others go from here to
//! [`handshake`], [`acknowledge`] and [`receive`].

mod acknowledge;
mod handshake;
mod receive;

use super::Session;
use super::ecn::Noted;
use crate::buffer::NONE;
use crate::error::SessionError;
use crate::state::flags::Flags;
use crate::state::hot::State;
use crate::wire::sequence::{Range, Sequence};
use crate::wire::tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN, Segment};
use sidecore_bare::width::ToUsize;

/// RFC 7323 section 5.5.
const STAMP_GOOD_MS: u32 = 24 * 24 * 3600 * 1000;
/// Minimum interval of replies to out-of-window segments without data.
const UNACCEPTABLE_MS: u32 = 500;

/// A segment and the session that it arrived for; its checksum is correct.
pub(crate) struct Input<'s, 'p> {
    session: Session<'s>,
    segment: &'p Segment<'p>,
}

impl<'s, 'p> Input<'s, 'p> {
    #[inline]
    pub(crate) fn new(session: Session<'s>, segment: &'p Segment<'p>) -> Self {
        Self { session, segment }
    }

    /// Processes the segment.
    #[inline]
    pub(crate) fn run(mut self) {
        if !self.run_predicted() {
            self.run_any();
        }
    }

    /// Header prediction (Jacobson, RFC 1144 appendix A in spirit): true if the segment was the
    /// expected one, and has been processed.
    #[inline]
    pub(crate) fn run_predicted(&mut self) -> bool {
        let segment = self.segment;
        let hot = &*self.session.hot;
        let ack = segment.acknowledgment;
        let len = segment.payload.len();
        if hot.state() != State::Established
            || segment.flags & !(PSH | ECE | CWR) != ACK
            || segment.sequence != hot.receive.nxt
            || hot.out_of_order != NONE
            || segment.options.block_count != 0
            || hot.has(Flags::RECOVERY | Flags::READ_SHUTDOWN | Flags::DETACHED)
            || ack < hot.send.una
            || hot.send.nxt < ack
            || len > hot.receive.left().to_usize()
            // A pure acknowledgment of nothing new: a duplicate or a window update.
            || len == 0 && ack == hot.send.una
            || hot.duplicates != 0
            || if hot.ecn.is_negotiated() {
                !self.session.ecn().is_quiet(segment)
            } else {
                segment.flags & (ECE | CWR) != 0
            }
        {
            return false;
        }
        let hot = &mut *self.session.hot;
        match segment.options.timestamps {
            Some((value, _)) if hot.has(Flags::TIMESTAMPS) => {
                // RFC 7323 section 5.3 R1; an old one takes the slow path.
                if hot.timestamps.is_old(value) {
                    return false;
                }
                // Section 4.3, rule 2.
                if segment.sequence <= hot.receive.acked {
                    hot.timestamps.recent = value;
                }
            }
            None if !hot.has(Flags::TIMESTAMPS) => {}
            _ => return false,
        }
        hot.last_received_ms = self.session.common.now_ms;
        self.take_window();
        if ack != self.session.hot.send.una {
            self.acknowledged();
        }
        if segment.placed {
            self.received_in_order(len);
        } else if len > 0 {
            self.receive_in_order(segment.payload);
        }
        true
    }

    fn run_any(&mut self) {
        match self.session.hot.state() {
            State::Closed => {}
            State::SynSent => self.syn_sent(),
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => self.synchronized(),
        }
    }

    /// RFC 9293 section 3.10.7.4.
    fn synchronized(&mut self) {
        let segment = self.segment;
        let end = segment.end();
        // RFC 7323 section 5.3 R1: PAWS comes first; a reset is not subject to it.
        if self.session.hot.has(Flags::TIMESTAMPS) && !segment.has(RST) {
            let Some((value, _)) = segment.options.timestamps else {
                // RFC 7323 section 3.2: a segment without timestamps is dropped.
                self.session.common.counters.unacceptable += 1;
                return;
            };
            if self.session.hot.timestamps.is_old(value) && !self.timestamps_outdated() {
                self.session.common.counters.paws += 1;
                // As in Linux, an overtaken pure acknowledgment is not answered.
                if !segment.is_empty() {
                    self.note_duplicate(segment.sequence, end);
                    self.session.acknowledge_now();
                }
                return;
            }
        }
        // First, the sequence number.
        if !self.session.hot.receive.accepts(segment.sequence, end) {
            if !segment.has(RST) {
                self.unacceptable(end);
            }
            return;
        }
        // Second, the RST bit: RFC 5961 section 3.2.
        if segment.has(RST) {
            if segment.sequence == self.session.hot.receive.nxt {
                self.reset();
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
        if self.session.hot.state() == State::SynReceived && !self.final_ack() {
            return;
        }
        // A segment that acknowledges bytes that were never sent is rejected below; its timestamp
        // must not be recorded.
        let hot = &mut *self.session.hot;
        if let Some((value, _)) = segment.stamps(hot.has(Flags::TIMESTAMPS))
            && segment.sequence <= hot.receive.acked
            && !hot.timestamps.is_old(value)
            && segment.acknowledgment <= hot.send.nxt
        {
            // RFC 7323 section 4.3, rule 2.
            hot.timestamps.recent = value;
        }
        self.session.hot.last_received_ms = self.session.common.now_ms;
        self.session.cold.keepalive.answered();
        if !self.acknowledge() {
            return;
        }
        self.after_fin_acknowledged();
        if self.session.hot.state() == State::Closed {
            return;
        }
        if self.session.hot.ecn.is_accurate() {
            let mss = self.session.hot.mss;
            let owed = self.session.hot.has(Flags::ACK_LATER | Flags::ACK_NOW);
            let noted = self.session.ecn().note_accurate(segment, mss, owed);
            self.take_marks(noted);
        }
        // Seventh, the segment text; eighth, the FIN.
        self.receive();
    }

    /// A segment outside the window, other than a reset.
    fn unacceptable(&mut self, end: Sequence) {
        let segment = self.segment;
        let session = &mut self.session;
        session.common.counters.unacceptable += 1;
        let repeats_syn = segment.has(SYN) && segment.sequence == session.cold.irs;
        if repeats_syn && session.hot.state() == State::SynReceived {
            self.syn_again();
            return;
        }
        if segment.has(SYN) {
            let irs = session.cold.irs;
            let marks = session.ecn().opened_again(segment, irs);
            session.common.counters.ecn_ce_received += u64::from(marks);
        }
        // The acknowledgment of a segment whose data a zero window excludes still counts (RFC 9293
        // section 3.10.7.4: "special allowance").
        let duplicate = end <= session.hot.receive.nxt;
        if duplicate && segment.has(ACK) && session.hot.state().is_synchronized() {
            self.acknowledge();
            self.after_fin_acknowledged();
            if self.session.hot.state() == State::Closed {
                return;
            }
        }
        if self.session.hot.state() == State::TimeWait && segment.has(FIN) {
            self.session.enter_time_wait();
        }
        self.note_duplicate(segment.sequence, end);
        if self.may_answer_unacceptable() {
            self.session.acknowledge_now();
        }
    }

    /// The peer's SYN once more, before the handshake is complete.
    fn syn_again(&mut self) {
        let segment = self.segment;
        let session = &mut self.session;
        if segment.has(ACK) {
            // Simultaneous open (RFC 9293 section 3.5, figure 7): it repeats the peer's SYN.
            let marks = session.ecn().agree_at_once(segment);
            session.common.counters.ecn_ce_received += u64::from(marks);
            if self.final_ack() {
                self.session.acknowledge_now();
            }
            return;
        }
        // The peer did not receive our SYN-ACK.
        let config = session.common.config.ecn;
        if session.ecn().agree_again(config, segment) {
            session.hot.set(Flags::SEND_SYN);
            session.make_ready();
        } else {
            session.reset(Some(SessionError::Refused));
        }
    }

    /// True if a segment outside the window is answered. Data always is, since only a timer
    /// retransmits it. Pure acknowledgments and SYNs are answered once in half a second, as in
    /// Linux (`tcp_invalid_ratelimit`): two ends that disagree about their numbers would answer
    /// each other without end, and a session with itself as fast as it can.
    fn may_answer_unacceptable(&mut self) -> bool {
        let segment = self.segment;
        if !segment.payload.is_empty() || segment.has(FIN) {
            return true;
        }
        let now_ms = self.session.common.now_ms;
        let last_ms = self.session.cold.unacceptable_answered_ms;
        let may = last_ms.is_none_or(|last_ms| now_ms.wrapping_sub(last_ms) >= UNACCEPTABLE_MS);
        if may {
            self.session.cold.unacceptable_answered_ms = Some(now_ms);
        }
        may
    }

    /// RFC 7323 section 5.5: TS.Recent is valid for 24 days without a segment.
    fn timestamps_outdated(&self) -> bool {
        self.session.hot.silent_ms(self.session.common.now_ms) > STAMP_GOOD_MS
    }

    /// The packet's ECN field was processed.
    fn take_marks(&mut self, noted: Noted) {
        self.session.common.counters.ecn_ce_received += u64::from(noted.marks);
        if noted.acknowledge {
            self.session.acknowledge_now();
        }
    }

    /// RFC 5961: sends a challenge ACK, if the budget permits.
    fn challenge(&mut self) {
        let session = &mut self.session;
        if session.common.may_challenge() {
            session.common.counters.challenges += 1;
            session.acknowledge_now();
        }
    }

    /// Stores a duplicate for the next acknowledgment: RFC 2883 section 4.
    fn note_duplicate(&mut self, start: Sequence, end: Sequence) {
        let nxt = self.session.hot.receive.nxt;
        if self.session.hot.has(Flags::SACK) && start < end && start < nxt {
            let end = end.earlier(nxt);
            self.duplicate(Range { start, end });
        }
    }

    fn reset(&mut self) {
        self.session.common.counters.resets_received += 1;
        let error = match self.session.hot.state() {
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
        self.session.finish(error);
    }

    /// State transitions on the acknowledgment of our FIN (RFC 9293 section 3.10.7.4, fifth).
    fn after_fin_acknowledged(&mut self) {
        if !self.session.hot.has(Flags::FIN_SENT) || self.session.hot.send.in_flight() != 0 {
            return;
        }
        match self.session.hot.state() {
            State::FinWait1 => {
                self.session.hot.set_state(State::FinWait2);
                self.session.notify();
                self.session.watch_fin_wait_2();
            }
            State::Closing => self.session.enter_time_wait(),
            State::LastAck => self.session.finish(None),
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
