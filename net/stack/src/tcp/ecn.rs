//! Explicit congestion notification: marks instead of losses.
//!
//! Why here: if a router marks a packet that it would otherwise drop, nothing has to be
//! retransmitted, and the queue stays short. Both directions are independent. A received mark (CE)
//! is echoed in all acknowledgments (ECE) until the peer reports a reduction (CWR); an echo from
//! the peer reduces our window, once in a window of data, like a loss though by less (RFC 8511).
//! Must stay true: only new data is ECN-capable: no SYN, no pure acknowledgment, no retransmission,
//! no window probe (RFC 3168 sections 6.1.1, 6.1.4, 6.1.5 and 6.1.6; the experiments that RFC 8311
//! section 4.3 allows are not used); an echo never raises the window, and never lowers it below two
//! segments; a session without ECN checks one byte that it reads anyway. If both ends count marks
//! (RFC 9768), [`super::accurate`] has the differences.
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

/// RFC 3168's flags: ECE and CWR.
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
            // Section 6.1.1.1: a broken router may drop SYNs with these flags. As in Linux, the
            // first retransmission no longer asks.
            State::SynSent => 0,
            _ if self.hot.has_ecn(EcnFlags::NEGOTIATED) => TAKES_CLASSIC,
            _ => 0,
        }
    }

    fn asked_for_ecn(&self) -> bool {
        self.common.config.ecn == Ecn::Active
    }

    /// Processes the ECN flags of a SYN or a SYN-ACK, in the state in which it was received.
    pub(crate) fn agree_ecn(&mut self, opening: Opening) {
        self.hot.clear_ecn(EcnFlags::NEGOTIATED);
        if self.common.config.ecn == Ecn::Accurate {
            self.agree_accurately(opening);
            return;
        }
        // RFC 3168 section 6.1.1: both flags in a SYN, one in a SYN-ACK. A SYN-ACK with both is
        // from a host that copies reserved bits, and does not count.
        let expected = if opening.answer {
            TAKES_CLASSIC
        } else {
            ASKS_CLASSIC
        };
        let peer = opening.bits & CLASSIC_BITS == expected;
        let we = match self.hot.state() {
            // Also in a simultaneous open: it depends on the SYN that we have sent.
            State::SynSent => self.asked_for_ecn(),
            _ => self.common.config.ecn != Ecn::Off,
        };
        if peer && we {
            self.hot.set_ecn(EcnFlags::NEGOTIATED);
            if self.hot.state() == State::SynSent && self.path.retries > 0 {
                // One of our SYNs asked and one did not: the peer may mark, and we must echo, but
                // our data must not be ECN-capable.
                self.path.ecn |= Path::NO_ECT;
            }
        }
    }

    /// A duplicate of the SYN that opened this session. RFC 3168 section 6.1.1: one that does not
    /// ask for ECN disables it, even if an earlier one asked: the peer has fallen back. False if
    /// the session is over.
    pub(crate) fn agree_ecn_again(&mut self, segment: &Segment<'_>) -> bool {
        if self.common.config.ecn == Ecn::Accurate {
            return self.agree_accurately_again(Opening::of(segment));
        }
        if segment.flags & (SYN | ACK | ECE | CWR) != SYN | ECE | CWR {
            self.hot.clear_ecn(EcnFlags::NEGOTIATED);
        }
        true
    }

    /// The SYN-ACK that crossed ours: a simultaneous open in which both SYNs asked for ECN. The
    /// reply must have the flags, too.
    pub(crate) fn agree_ecn_at_once(&mut self, segment: &Segment<'_>) {
        if self.is_accurate() {
            self.agree_accurately_at_once(Opening::of(segment));
        } else if segment.flags & (ECE | CWR) != ECE {
            self.hot.clear_ecn(EcnFlags::NEGOTIATED);
        }
    }

    /// Flags AE, CWR and ECE, and ECN field, of an outgoing segment other than a SYN; `fresh`: it
    /// carries data that was never sent before; `bare`: a pure acknowledgment.
    #[inline]
    pub(crate) fn ecn_to_send(&self, fresh: bool, bare: bool) -> (u8, Codepoint) {
        // Checked first and alone: a session without ECN needs nothing else.
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
        // RFC 8311 section 4.2: ECT(0), since ECT(1) requests a different treatment.
        (flags, Codepoint::Ect0)
    }

    /// RFC 3168 section 6.1.3: an acceptable segment with data was received.
    #[inline]
    pub(crate) fn note_ecn(&mut self, segment: &Segment<'_>) {
        if self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            self.note_negotiated_ecn(segment);
        }
    }

    fn note_negotiated_ecn(&mut self, segment: &Segment<'_>) {
        if self.is_accurate() {
            // All segments are counted, and this one was.
            return;
        }
        // CWR first, since it refers to earlier marks: the segment itself may be marked again.
        if segment.has(CWR) && self.hot.has_ecn(EcnFlags::ECHO_OWED) {
            self.hot.clear_ecn(EcnFlags::ECHO_OWED);
            // As in Linux: confirms to the sender that its CWR arrived.
            self.acknowledge_now();
        }
        if segment.ecn != Codepoint::NotEct {
            self.path.ecn |= Path::ECT_SEEN;
        }
        if segment.ecn == Codepoint::Ce {
            self.common.counters.ecn_ce_received += 1;
            if !self.hot.has_ecn(EcnFlags::ECHO_OWED) {
                self.hot.set_ecn(EcnFlags::ECHO_OWED);
                // A queue is growing: do not wait for data that could carry the acknowledgment.
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

    /// True if a segment of ours may carry CWR, which is then never a super-segment: the NIC that
    /// cuts it may set CWR in the first segment only, as RFC 3168 requires, or repeat it in each.
    #[inline]
    pub(crate) fn may_say_cwr(&self) -> bool {
        self.hot.has_ecn(EcnFlags::CWR_OWED)
            || self.is_accurate() && self.path.ecn >> Path::ACE_SHIFT & CWR_BIT != 0
    }

    /// Ends the window of data in which the window was reduced, once data sent after the reduction
    /// is acknowledged: CWR has arrived, so an echo belongs to a later mark. Also with nothing in
    /// flight, while CWR is still pending. Accurate ECN has no CWR: the acknowledgment of the last
    /// data of the window still belongs to it.
    #[inline]
    pub(crate) fn end_reduced_window(&mut self) {
        if self.hot.has_ecn(EcnFlags::REDUCED)
            && (before(self.cold.reduced_until, self.hot.snd_una)
                || self.hot.in_flight() == 0 && !self.is_accurate())
        {
            self.hot.clear_ecn(EcnFlags::REDUCED);
        }
    }

    /// True if the window was already reduced for the window of data that is being acknowledged.
    pub(crate) fn is_reduced_already(&self) -> bool {
        self.hot.has_ecn(EcnFlags::REDUCED) && before(self.hot.snd_una, self.cold.reduced_until)
    }

    /// RFC 3168 section 6.1.2: a reduction for any reason is reported to the peer, and further
    /// signals of the same window of data do not count.
    pub(crate) fn note_reduction(&mut self) {
        if !self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            return;
        }
        // RFC 9768 section 3.1.5: with counters nothing is reported, and marks are processed even
        // if our packets should not be marked.
        if !self.is_accurate() {
            if self.path.ecn & Path::NO_ECT != 0 {
                return;
            }
            self.hot.set_ecn(EcnFlags::CWR_OWED);
        }
        // With nothing in flight there is no window of data with further signals.
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
            // Reduced already; but the network was congested, even if the loss was spurious.
            self.undo_forget();
            return;
        }
        // Before CWR was sent the echo cannot belong to a later mark.
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

    /// Reduces the window, of which `used` bytes were in use and `flight` in flight, because of
    /// marks (RFC 8511).
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
    /// the retransmission timer, which is restarted.
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

/// True if a segment of a session with ECN changes no ECN state; others take the slow path.
#[inline]
pub(crate) fn is_quiet(path: &Path, cold: &Cold, segment: &Segment<'_>) -> bool {
    // RFC 3168 defines marks for data only, and only data shows that the peer is ECN-capable.
    let seen = segment.payload.is_empty() || path.ecn & Path::ECT_SEEN != 0;
    let quiet = segment.ecn == Codepoint::NotEct || segment.ecn != Codepoint::Ce && seen;
    if path.ecn & Path::ACCURATE != 0 {
        return quiet && path.ecn & Path::CE_LAST == 0 && cold.accurate.is_quiet(segment);
    }
    (quiet || segment.payload.is_empty()) && segment.flags & (ECE | CWR) == 0
}
