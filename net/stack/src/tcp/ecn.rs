//! Explicit congestion notification: marks instead of losses.
//!
//! Why here: where a router marks what it would otherwise drop, nothing has to be sent again, and
//! the queue stays short. Both directions are independent. What comes in marked (CE) is echoed in
//! all acknowledgments (ECE) until the peer says that it has slowed down (CWR); what the peer
//! echoes lowers our window, once in a window of data, as a loss would, though by less (RFC 8511).
//! Must stay true: only new data is ECN-capable: no SYN, no bare acknowledgment, no retransmission,
//! no probe of a window (RFC 3168 sections 6.1.1, 6.1.4, 6.1.5 and 6.1.6; the experiments that RFC
//! 8311 section 4.3 allows are not made); an echo never raises the window, and never lowers it
//! below two segments; a session without ECN looks at one byte that it reads in any case.
//! Where both ends count marks one by one (RFC 9768), [`super::accurate`] says what is different.
//! Source: RFC 3168 section 6.1, RFC 8311, RFC 8511.

use super::Session;
use super::cold::Cold;
use super::opening::{ASKS_CLASSIC, CWR_BIT, ECE_BIT, Opening, TAKES_CLASSIC};
use crate::congestion::Control;
use crate::shared::config::Ecn;
use crate::state::hot::{EcnFlags, Flags, Path, State, Timer};
use crate::wire::ip::Codepoint;
use crate::wire::sequence::before;
use crate::wire::tcp::{ACK, CWR, ECE, SYN, Segment};

/// Flags as RFC 3168 has them: ECE and CWR.
const CLASSIC_BITS: u8 = CWR_BIT | ECE_BIT;

impl Session<'_> {
    /// RFC 3168 section 6.1.1: flags AE, CWR and ECE by which our SYN or SYN-ACK takes part in the
    /// negotiation.
    pub(crate) fn ecn_setup(&mut self) -> u8 {
        let asks = self.hot.state() == State::SynSent && self.common.config.ecn == Ecn::Accurate;
        if asks || self.is_accurate() {
            return self.accurate_setup();
        }
        match self.hot.state() {
            State::SynSent if self.asked_for_ecn() && self.path.retries == 0 => ASKS_CLASSIC,
            // Section 6.1.1.1: SYNs like the first may be what a broken router drops. As Linux
            // does, the first that is sent again asks no more.
            State::SynSent => 0,
            _ if self.hot.has_ecn(EcnFlags::NEGOTIATED) => TAKES_CLASSIC,
            _ => 0,
        }
    }

    fn asked_for_ecn(&self) -> bool {
        self.common.config.ecn == Ecn::Active
    }

    /// Takes what a SYN or a SYN-ACK says of ECN, in the state in which it came.
    pub(crate) fn agree_ecn(&mut self, opening: Opening) {
        self.hot.clear_ecn(EcnFlags::NEGOTIATED);
        if self.common.config.ecn == Ecn::Accurate {
            self.agree_accurately(opening);
            return;
        }
        // RFC 3168 section 6.1.1: both flags in a SYN, one in a SYN-ACK. A SYN-ACK with both is
        // from a host that copies reserved bits, and means nothing.
        let expected = if opening.answer {
            TAKES_CLASSIC
        } else {
            ASKS_CLASSIC
        };
        let peer = opening.bits & CLASSIC_BITS == expected;
        let we = match self.hot.state() {
            // Also where both open at once: our SYN has gone, and said what it said.
            State::SynSent => self.asked_for_ecn(),
            _ => self.common.config.ecn != Ecn::Off,
        };
        if peer && we {
            self.hot.set_ecn(EcnFlags::NEGOTIATED);
            if self.hot.state() == State::SynSent && self.path.retries > 0 {
                // One of our SYNs asked and one did not: the peer may mark, and we must echo, but
                // nothing of ours may be ECN-capable.
                self.path.ecn |= Path::NO_ECT;
            }
        }
    }

    /// A SYN like the first that opened this session. RFC 3168 section 6.1.1: one that does not ask
    /// for ECN ends it, also where an earlier one asked: the peer has fallen back. False if the
    /// session is over.
    pub(crate) fn agree_ecn_again(&mut self, segment: &Segment<'_>) -> bool {
        if self.common.config.ecn == Ecn::Accurate {
            return self.agree_accurately_again(Opening::of(segment));
        }
        if segment.flags & (SYN | ACK | ECE | CWR) != SYN | ECE | CWR {
            self.hot.clear_ecn(EcnFlags::NEGOTIATED);
        }
        true
    }

    /// The SYN-ACK that crossed ours: both opened at once, and both SYNs asked for ECN. It must be
    /// there in the answer, too.
    pub(crate) fn agree_ecn_at_once(&mut self, segment: &Segment<'_>) {
        if self.is_accurate() {
            self.agree_accurately_at_once(Opening::of(segment));
        } else if segment.flags & (ECE | CWR) != ECE {
            self.hot.clear_ecn(EcnFlags::NEGOTIATED);
        }
    }

    /// Flags AE, CWR and ECE, and ECN field, of an outgoing segment that is no SYN; `fresh`: it
    /// carries data that was never sent before; `bare`: an acknowledgment and nothing else.
    #[inline]
    pub(crate) fn ecn_to_send(&self, fresh: bool, bare: bool) -> (u8, Codepoint) {
        // Looked at first, and alone: nothing else of ECN concerns a session without it.
        if !self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            return (0, Codepoint::NotEct);
        }
        let mut flags = 0;
        if self.is_accurate() {
            flags = self.accurate_flags(bare);
        } else if self.hot.has_ecn(EcnFlags::ECHO_OWED) {
            flags |= ECE_BIT;
        }
        if !fresh || self.path.ecn & Path::NO_ECT != 0 {
            return (flags, Codepoint::NotEct);
        }
        if self.hot.has_ecn(EcnFlags::CWR_OWED) {
            flags |= CWR_BIT;
        }
        // RFC 8311 section 4.2: ECT(0), since ECT(1) asks for another treatment.
        (flags, Codepoint::Ect0)
    }

    /// RFC 3168 section 6.1.3: an acceptable segment with data came.
    #[inline]
    pub(crate) fn note_ecn(&mut self, segment: &Segment<'_>) {
        if self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            self.note_negotiated_ecn(segment);
        }
    }

    fn note_negotiated_ecn(&mut self, segment: &Segment<'_>) {
        if self.is_accurate() {
            // All segments are looked at, and this one has been.
            return;
        }
        // First CWR, which answers earlier marks: the segment itself may be marked again.
        if segment.has(CWR) && self.hot.has_ecn(EcnFlags::ECHO_OWED) {
            self.hot.clear_ecn(EcnFlags::ECHO_OWED);
            // As Linux does: the sender is not left to guess whether its CWR arrived.
            self.acknowledge_now();
        }
        if segment.ecn != Codepoint::NotEct {
            self.path.ecn |= Path::ECT_SEEN;
        }
        if segment.ecn == Codepoint::Ce {
            self.common.counters.ecn_ce_received += 1;
            if !self.hot.has_ecn(EcnFlags::ECHO_OWED) {
                self.hot.set_ecn(EcnFlags::ECHO_OWED);
                // A queue grows meanwhile: this is no time to wait for data to ride on.
                self.acknowledge_now();
            }
        }
    }

    /// True if the segment echoes a mark, to a session whose data may be marked.
    #[inline]
    pub(crate) fn is_echo(&self, segment: &Segment<'_>) -> bool {
        if !self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            return false;
        }
        if self.is_accurate() {
            return self.is_reported(segment);
        }
        segment.flags & ECE != 0 && self.path.ecn & Path::NO_ECT == 0
    }

    /// True if a segment of ours may carry CWR, which then is never a super-segment: whoever cuts
    /// it may leave CWR to the first, as RFC 3168 has it, or repeat it in each.
    #[inline]
    pub(crate) fn may_say_cwr(&self) -> bool {
        self.hot.has_ecn(EcnFlags::CWR_OWED)
            || self.is_accurate() && self.path.ecn >> Path::ACE_SHIFT & CWR_BIT != 0
    }

    /// Ends the window of data in which the window was reduced once what was sent after the
    /// reduction is acknowledged: CWR has arrived, so an echo is of a later mark. Also where
    /// nothing is in flight: then CWR is still owed, and says the same. Accurate ECN has no CWR,
    /// and what acknowledges the last of the window is of the window.
    #[inline]
    pub(crate) fn end_reduced_window(&mut self) {
        if self.hot.has_ecn(EcnFlags::REDUCED)
            && (before(self.cold.reduced_until, self.hot.snd_una)
                || self.hot.in_flight() == 0 && !self.is_accurate())
        {
            self.hot.clear_ecn(EcnFlags::REDUCED);
        }
    }

    /// True if the window was reduced already for the window of data that is acknowledged now.
    pub(crate) fn is_reduced_already(&self) -> bool {
        self.hot.has_ecn(EcnFlags::REDUCED) && before(self.hot.snd_una, self.cold.reduced_until)
    }

    /// RFC 3168 section 6.1.2: a reduction for any reason is told to the peer, and further signs of
    /// the same window of data are no new ones.
    pub(crate) fn note_reduction(&mut self) {
        if !self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            return;
        }
        // RFC 9768 section 3.1.5: who counts says nothing of it, and hears of marks also where
        // nothing of ours should be marked.
        if !self.is_accurate() {
            if self.path.ecn & Path::NO_ECT != 0 {
                return;
            }
            self.hot.set_ecn(EcnFlags::CWR_OWED);
        }
        // With nothing in flight there is no window of data whose other signs could come.
        if self.hot.in_flight() > 0 {
            self.hot.set_ecn(EcnFlags::REDUCED);
            self.cold.reduced_until = self.hot.snd_nxt;
        }
    }

    /// RFC 3168 section 6.1.2: an acknowledgment echoed a mark; `flight` bytes were in flight
    /// before it. Called after it was searched for losses, which weigh more.
    #[cold]
    pub(crate) fn congestion_echoed(&mut self, flight: u32) {
        if self.hot.has(Flags::RECOVERY) {
            // Reduced already; but the network was congested, whatever becomes of the loss.
            self.undo_forget();
            return;
        }
        // Before CWR has gone the echo cannot be of anything later.
        if flight == 0 || self.hot.has_ecn(EcnFlags::REDUCED | EcnFlags::CWR_OWED) {
            return;
        }
        let window = self.hot.cwnd;
        let used = if self.hot.has(Flags::CWND_LIMITED) {
            window
        } else {
            flight.min(window)
        };
        self.reduce_by_echo(used, flight);
        if window <= u32::from(self.hot.mss) {
            self.hold_new_data();
        }
    }

    /// Lowers the window, of which `used` bytes were in use, and `flight` in flight, for marks (RFC
    /// 8511).
    pub(crate) fn reduce_by_echo(&mut self, used: u32, flight: u32) {
        self.undo_forget();
        let mss = u32::from(self.hot.mss);
        let window = self.hot.cwnd;
        let now_us = self.common.now_us;
        let threshold = self.cold.congestion.on_echo(window, used, mss, now_us);
        self.hot.cwnd = window.min(threshold);
        if self.is_modelled() {
            self.model_marked(flight);
        }
        self.note_reduction();
        self.common.counters.ecn_reductions += 1;
    }

    /// RFC 3168 section 6.1.2: a window of one segment cannot be halved; the next new one waits for
    /// the retransmission timer, which starts again.
    fn hold_new_data(&mut self) {
        if self.hot.in_flight() > 0 {
            self.arm_retransmission();
            return;
        }
        self.hot.set_timer(Timer::Held);
        self.hot.timer_at = self.common.tick_in_us(self.timeout_us());
        self.arm_wheel();
    }
}

/// True if a segment of a session with ECN says nothing of it that is new; others take the long
/// way.
#[inline]
pub(crate) fn is_quiet(path: &Path, cold: &Cold, segment: &Segment<'_>) -> bool {
    // Only of data does RFC 3168 know marks; of data alone it matters that it may be marked.
    let seen = segment.payload.is_empty() || path.ecn & Path::ECT_SEEN != 0;
    let quiet = segment.ecn == Codepoint::NotEct || segment.ecn != Codepoint::Ce && seen;
    if path.ecn & Path::ACCURATE != 0 {
        return quiet && path.ecn & Path::CE_LAST == 0 && cold.accurate.is_quiet(segment);
    }
    (quiet || segment.payload.is_empty()) && segment.flags & (ECE | CWR) == 0
}
