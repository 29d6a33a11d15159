//! Explicit congestion notification: marks instead of losses.
//!
//! Why here: if a router marks a packet that it would otherwise drop, nothing has to be
//! retransmitted, and the queue stays short. Both directions are independent. A received mark (CE)
//! is echoed in all acknowledgments (ECE) until the peer reports a reduction (CWR); an echo from
//! the peer reduces our window, once in a window of data, like a loss though by less (RFC 8511).
//! [`Ecn`] is all of it for one session: the flags in the control block ([`EcnState`]), and the
//! counters in the cold part ([`EcnCounters`]). It says what a segment means and what the next one
//! carries; windows and timers are the session's.
//! Must stay true: only new data is ECN-capable: no SYN, no pure acknowledgment, no retransmission,
//! no window probe (RFC 3168 sections 6.1.1, 6.1.4, 6.1.5 and 6.1.6; the experiments that RFC 8311
//! section 4.3 allows are not used); an echo never raises the window, and never lowers it below two
//! segments; a session without ECN checks one bit that it reads anyway. If both ends count marks
//! (RFC 9768), [`accurate`] has the differences.
//! Source: RFC 3168 section 6.1, RFC 8311, RFC 8511.

use crate::shared::config;
use crate::state::ecn::EcnState;
use crate::state::hot::State;
use crate::wire::ip::Codepoint;
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{ACK, CWR, CWR_BIT, ECE, ECE_BIT, SYN, Segment};
use accurate::EcnCounters;

pub(crate) mod accurate;

/// RFC 3168's flags: ECE and CWR.
const CLASSIC_BITS: u8 = CWR_BIT | ECE_BIT;

/// Our side of a handshake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side {
    /// The configured use of ECN.
    pub(crate) config: config::Ecn,
    /// SYN-SENT, or another state for the side that answers.
    pub(crate) state: State,
    /// Retransmissions of our SYN or SYN-ACK.
    pub(crate) retries: u8,
}

/// Consequences of a received segment's ECN field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Noted {
    /// Marked packets.
    pub(crate) marks: u32,
    /// An acknowledgment is sent at once.
    pub(crate) acknowledge: bool,
}

/// ECN of one session.
#[derive(Debug)]
pub(crate) struct Ecn<'s> {
    pub(crate) state: &'s mut EcnState,
    pub(crate) counters: &'s mut EcnCounters,
}

impl Ecn<'_> {
    /// RFC 3168 section 6.1.1: flags AE, CWR and ECE by which our SYN or SYN-ACK takes part in the
    /// negotiation.
    pub(crate) fn setup(&mut self, side: Side) -> u8 {
        let asks = side.state == State::SynSent && side.config == config::Ecn::Accurate;
        if asks || self.state.is_accurate() {
            return self.accurate_setup(side);
        }
        match side.state {
            State::SynSent if side.config == config::Ecn::Active && side.retries == 0 => {
                ASKS_CLASSIC
            }
            // Section 6.1.1.1: a broken router may drop SYNs with these flags. As in Linux, the
            // first retransmission no longer asks.
            State::SynSent => 0,
            _ if self.state.is_negotiated() => TAKES_CLASSIC,
            _ => 0,
        }
    }

    /// Processes the ECN flags of a SYN or a SYN-ACK, in the state in which it was received;
    /// returns the number of marks that it reports.
    pub(crate) fn agree(&mut self, side: Side, opening: Opening) -> u32 {
        self.state.clear(EcnState::NEGOTIATED);
        if side.config == config::Ecn::Accurate {
            return self.agree_accurately(side, opening);
        }
        // RFC 3168 section 6.1.1: both flags in a SYN, one in a SYN-ACK. A SYN-ACK with both is
        // from a host that copies reserved bits, and does not count.
        let expected = if opening.answer {
            TAKES_CLASSIC
        } else {
            ASKS_CLASSIC
        };
        let peer = opening.bits & CLASSIC_BITS == expected;
        let we = match side.state {
            // Also in a simultaneous open: it depends on the SYN that we have sent.
            State::SynSent => side.config == config::Ecn::Active,
            _ => side.config != config::Ecn::Off,
        };
        if peer && we {
            self.state.set(EcnState::NEGOTIATED);
            if side.state == State::SynSent && side.retries > 0 {
                // One of our SYNs asked and one did not: the peer may mark, and we must echo, but
                // our data must not be ECN-capable.
                self.state.set(EcnState::NO_ECT);
            }
        }
        0
    }

    /// A duplicate of the SYN that opened this session. RFC 3168 section 6.1.1: one that does not
    /// ask for ECN disables it, even if an earlier one asked: the peer has fallen back. False if
    /// the session must be refused.
    pub(crate) fn agree_again(&mut self, config: config::Ecn, segment: &Segment<'_>) -> bool {
        if config == config::Ecn::Accurate {
            return self.agree_accurately_again(Opening::of(segment));
        }
        if segment.flags & (SYN | ACK | ECE | CWR) != SYN | ECE | CWR {
            self.state.clear(EcnState::NEGOTIATED);
        }
        true
    }

    /// The SYN-ACK that crossed ours: a simultaneous open in which both SYNs asked for ECN. The
    /// reply must have the flags, too. Returns the number of marks that it reports.
    pub(crate) fn agree_at_once(&mut self, segment: &Segment<'_>) -> u32 {
        if self.state.is_accurate() {
            return self.agree_accurately_at_once(Opening::of(segment));
        }
        if segment.flags & (ECE | CWR) != ECE {
            self.state.clear(EcnState::NEGOTIATED);
        }
        0
    }

    /// Flags AE, CWR and ECE, and ECN field, of an outgoing segment other than a SYN; `fresh`: it
    /// carries data that was never sent before; `bare`: a pure acknowledgment.
    #[inline]
    pub(crate) fn to_send(&self, fresh: bool, bare: bool) -> (u8, Codepoint) {
        // Checked first and alone: a session without ECN needs nothing else.
        if !self.state.is_negotiated() {
            return (0, Codepoint::NotEct);
        }
        let mut flags = 0;
        if self.state.is_accurate() {
            flags = self.accurate_flags(bare);
        } else if self.state.has(EcnState::ECHO_OWED) {
            flags |= ECE_BIT;
        }
        if !fresh || self.state.has(EcnState::NO_ECT) {
            return (flags, Codepoint::NotEct);
        }
        if self.state.has(EcnState::CWR_OWED) {
            flags |= CWR_BIT;
        }
        // RFC 8311 section 4.2: ECT(0), since ECT(1) requests a different treatment.
        (flags, Codepoint::Ect0)
    }

    /// A segment with these flags was sent; `bare`: a pure acknowledgment.
    #[inline]
    pub(crate) fn sent(&mut self, flags: u8, bare: bool) {
        // RFC 3168 section 6.1.2: CWR is sent once for each reduction.
        if flags & CWR != 0 {
            self.state.clear(EcnState::CWR_OWED);
        }
        if self.state.is_accurate() {
            self.marks_reported(bare);
        }
    }

    /// RFC 3168 section 6.1.3: an acceptable segment with data was received, in a session that
    /// negotiated ECN.
    pub(crate) fn note_data(&mut self, segment: &Segment<'_>) -> Noted {
        let mut noted = Noted::default();
        if self.state.is_accurate() {
            // All segments are counted, and this one was.
            return noted;
        }
        // CWR first, since it refers to earlier marks: the segment itself may be marked again.
        if segment.has(CWR) && self.state.has(EcnState::ECHO_OWED) {
            self.state.clear(EcnState::ECHO_OWED);
            // As in Linux: confirms to the sender that its CWR arrived.
            noted.acknowledge = true;
        }
        if segment.ecn != Codepoint::NotEct {
            self.state.set(EcnState::ECT_SEEN);
        }
        if segment.ecn == Codepoint::Ce {
            noted.marks = 1;
            if !self.state.has(EcnState::ECHO_OWED) {
                self.state.set(EcnState::ECHO_OWED);
                // A queue is growing: do not wait for data that could carry the acknowledgment.
                noted.acknowledge = true;
            }
        }
        noted
    }

    /// True if a segment of a session with ECN changes no ECN state; others take the slow path.
    #[inline]
    pub(crate) fn is_quiet(&self, segment: &Segment<'_>) -> bool {
        if self.state.has(EcnState::REDUCED) {
            // Its acknowledgment may end the reduced window.
            return false;
        }
        // RFC 3168 defines marks for data only, and only data shows that the peer is ECN-capable.
        let seen = segment.payload.is_empty() || self.state.has(EcnState::ECT_SEEN);
        let quiet = segment.ecn == Codepoint::NotEct || segment.ecn != Codepoint::Ce && seen;
        if self.state.is_accurate() {
            let unmarked = !self.state.has(EcnState::CE_LAST);
            return quiet && unmarked && self.counters.is_quiet(segment);
        }
        (quiet || segment.payload.is_empty()) && segment.flags & (ECE | CWR) == 0
    }

    /// True if the segment echoes a mark, to a session whose data may be marked; `iss`: our initial
    /// sequence number.
    #[inline]
    pub(crate) fn is_echo(&self, segment: &Segment<'_>, iss: Sequence) -> bool {
        if !self.state.is_negotiated() {
            return false;
        }
        if self.state.is_accurate() {
            return self.is_reported(segment, iss);
        }
        segment.flags & ECE != 0 && !self.state.has(EcnState::NO_ECT)
    }

    /// Ends the window of data in which the window was reduced, once data sent after the reduction
    /// is acknowledged: CWR has arrived, so an echo belongs to a later mark. Also with nothing in
    /// flight, while CWR is still pending. Accurate ECN has no CWR: the acknowledgment of the last
    /// data of the window still belongs to it.
    #[inline]
    pub(crate) fn end_reduced_window(&mut self, una: Sequence, in_flight: u32) {
        if self.state.has(EcnState::REDUCED)
            && (self.counters.reduced_until < una || in_flight == 0 && !self.state.is_accurate())
        {
            self.state.clear(EcnState::REDUCED);
        }
    }

    /// True if the window was already reduced for the window of data that is being acknowledged.
    pub(crate) fn is_reduced_already(&self, una: Sequence) -> bool {
        self.state.has(EcnState::REDUCED) && una < self.counters.reduced_until
    }

    /// True if an echo cannot belong to a mark after the last reduction: data of that window is in
    /// flight, or CWR was not sent yet.
    pub(crate) fn is_echo_of_the_past(&self) -> bool {
        self.state.has(EcnState::REDUCED | EcnState::CWR_OWED)
    }

    /// RFC 3168 section 6.1.2: a reduction for any reason, with data up to `nxt` in flight, is
    /// reported to the peer, and further signals of the same window of data do not count.
    pub(crate) fn note_reduction(&mut self, nxt: Sequence, in_flight: u32) {
        if !self.state.is_negotiated() {
            return;
        }
        // RFC 9768 section 3.1.5: with counters nothing is reported, and marks are processed even
        // if our packets should not be marked.
        if !self.state.is_accurate() {
            if self.state.has(EcnState::NO_ECT) {
                return;
            }
            self.state.set(EcnState::CWR_OWED);
        }
        // With nothing in flight there is no window of data with further signals.
        if in_flight > 0 {
            self.state.set(EcnState::REDUCED);
            self.counters.reduced_until = nxt;
        }
    }

    /// Nothing is in flight: the window of data in which the window was reduced is over.
    pub(crate) fn end_reduction(&mut self) {
        self.state.clear(EcnState::REDUCED);
    }

    /// The last reduction was undone: the peer need not be informed of it, and the next signal is a
    /// new one.
    pub(crate) fn undo_reduction(&mut self) {
        self.state.clear(EcnState::CWR_OWED | EcnState::REDUCED);
    }
}

// ECN in the segments that open a session: flags AE, CWR and ECE of SYN and SYN-ACK.
//
// Why here: both forms of ECN ([`super`], [`super::accurate`]) are negotiated by the same
// three flags, and a host that supports both must distinguish them.
// Source: RFC 3168 section 6.1.1; RFC 9768 section 3.1.2, table 2.

/// Flags of a SYN that asks for accurate ECN.
pub(crate) const ASKS: u8 = 0b111;
/// Flags of a SYN that asks for RFC 3168's ECN alone.
pub(crate) const ASKS_CLASSIC: u8 = CWR_BIT | ECE_BIT;
/// Flags of the SYN-ACK that accepts RFC 3168's ECN.
pub(crate) const TAKES_CLASSIC: u8 = ECE_BIT;

/// ECN in a SYN or a SYN-ACK: its flags, and its packet's field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// A SYN-ACK.
    pub(crate) answer: bool,
    /// Its flags AE, CWR and ECE: [`Segment::ace`].
    pub(crate) bits: u8,
    /// ECN field of its packet.
    pub(crate) codepoint: Codepoint,
}

impl Opening {
    pub(crate) fn of(segment: &Segment<'_>) -> Self {
        Self {
            answer: segment.has(ACK),
            bits: segment.ace(),
            codepoint: segment.ecn,
        }
    }
}

#[cfg(test)]
mod tests {
    //! ECN of one session without a session: negotiation, echoes, and one reduction per window.

    use super::*;
    use crate::wire::tcp::Options;

    /// A session's ECN with storage of its own.
    struct Owned(EcnState, EcnCounters);

    impl Owned {
        fn new() -> Self {
            Self(EcnState::OFF, EcnCounters::default())
        }

        fn ecn(&mut self) -> Ecn<'_> {
            Ecn {
                state: &mut self.0,
                counters: &mut self.1,
            }
        }

        /// After a handshake in which both asked for RFC 3168's ECN.
        fn classic() -> Self {
            let mut owned = Self::new();
            let opening = Opening {
                answer: true,
                bits: TAKES_CLASSIC,
                codepoint: Codepoint::NotEct,
            };
            owned.ecn().agree(client(0), opening);
            assert!(owned.0.is_negotiated());
            owned
        }
    }

    fn client(retries: u8) -> Side {
        Side {
            config: config::Ecn::Active,
            state: State::SynSent,
            retries,
        }
    }

    fn data(flags: u8, ecn: Codepoint) -> Segment<'static> {
        Segment {
            sequence: Sequence::new(1),
            acknowledgment: Sequence::new(1),
            flags: ACK | flags,
            ae: false,
            window: 1_000,
            options: Options::default(),
            payload: b"data",
            ecn,
            placed: false,
        }
    }

    #[test]
    fn a_client_asks_once_and_falls_back() {
        let mut owned = Owned::new();
        assert_eq!(owned.ecn().setup(client(0)), ASKS_CLASSIC);
        assert_eq!(owned.ecn().setup(client(1)), 0);
        let opening = Opening {
            answer: true,
            bits: TAKES_CLASSIC,
            codepoint: Codepoint::NotEct,
        };
        owned.ecn().agree(client(1), opening);
        // RFC 3168 section 6.1.1: the peer may mark, and our data is not ECN-capable.
        assert_eq!(owned.ecn().to_send(true, false), (0, Codepoint::NotEct));
        let reflected = Opening {
            bits: ASKS_CLASSIC,
            ..opening
        };
        owned.ecn().agree(client(0), reflected);
        assert!(!owned.0.is_negotiated(), "a host that copies reserved bits");
    }

    #[test]
    fn a_mark_is_echoed_until_the_peer_reports_a_reduction() {
        let mut owned = Owned::classic();
        let noted = owned.ecn().note_data(&data(0, Codepoint::Ce));
        assert_eq!((noted.marks, noted.acknowledge), (1, true));
        let again = owned.ecn().note_data(&data(0, Codepoint::Ce));
        assert_eq!((again.marks, again.acknowledge), (1, false));
        assert_eq!(owned.ecn().to_send(false, true).0, ECE_BIT);
        let reduced = owned.ecn().note_data(&data(CWR, Codepoint::Ect0));
        assert_eq!((reduced.marks, reduced.acknowledge), (0, true));
        assert_eq!(owned.ecn().to_send(false, true).0, 0);
        assert!(owned.ecn().is_quiet(&data(0, Codepoint::Ect0)));
    }

    #[test]
    fn one_window_of_data_is_reduced_once_and_reported_once() {
        let (mut owned, una, nxt) = (Owned::classic(), Sequence::new(100), Sequence::new(200));
        assert!(
            owned
                .ecn()
                .is_echo(&data(ECE, Codepoint::NotEct), Sequence::new(0))
        );
        owned.ecn().note_reduction(nxt, nxt - una);
        assert!(owned.ecn().is_echo_of_the_past() && owned.ecn().is_reduced_already(una));
        assert!(!owned.ecn().is_quiet(&data(0, Codepoint::NotEct)));
        assert_eq!(owned.ecn().to_send(true, false), (CWR_BIT, Codepoint::Ect0));
        owned.ecn().sent(CWR, false);
        assert_eq!(owned.ecn().to_send(true, false), (0, Codepoint::Ect0));
        owned.ecn().end_reduced_window(nxt, 50);
        assert!(
            owned.0.has(EcnState::REDUCED),
            "its last byte belongs to it"
        );
        owned.ecn().end_reduced_window(nxt + 1, 50);
        assert!(!owned.ecn().is_echo_of_the_past());
    }

    #[test]
    fn an_undone_reduction_is_not_reported() {
        let mut owned = Owned::classic();
        owned.ecn().note_reduction(Sequence::new(9), 9);
        owned.ecn().undo_reduction();
        assert!(!owned.ecn().is_echo_of_the_past());
        assert_eq!(owned.ecn().to_send(true, false), (0, Codepoint::Ect0));
    }
}
